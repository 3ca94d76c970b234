"""The number of clusters by the eigengap, what speaks for each number, and refined cuts."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score, silhouette_score

import torch_lapeig as tl
from problems import DEVICES, points, polygon, random_affinity, saved_and_loaded
from torch_lapeig.methods import refine_cut


def blobs(count, size=40, seed=0, spread=0.5):
    """Return normal groups around points of a circle, and their numbers."""
    centres = 2 * count / 3 * polygon(count)
    truth = torch.arange(count).repeat_interleave(size)
    noise = torch.randn(len(truth), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return centres[truth] + spread * noise, truth


@pytest.mark.parametrize("assign_labels", ["kmeans", "cluster_qr", "discretize"])
def test_the_eigengap_finds_the_groups(assign_labels):
    for count in (2, 3, 5, 7):
        x, truth = blobs(count)
        model = tl.SpectralClustering("eigengap", tl.KNN(20), assign_labels=assign_labels, max_clusters=9).fit(x)
        assert model.n_clusters_ == count
        assert adjusted_rand_score(truth, model.labels_) > 0.9
        fixed = tl.SpectralClustering(count, tl.KNN(20), assign_labels=assign_labels).fit(x)
        assert adjusted_rand_score(fixed.labels_, model.labels_) == 1
        torch.testing.assert_close(model.embedding_[:, :count], fixed.embedding_)
        assert not model.embedding_[:, count:].any()
        torch.testing.assert_close(model.gap_, fixed.gap_, rtol=1e-2, atol=0)  # of a value beyond the last pair
        assert torch.equal(model.predict(x), model.labels_)


@pytest.mark.parametrize("device", DEVICES)
def test_each_item_of_a_batch_has_its_own_number(device):
    parts = [blobs(count)[0] for count in (2, 3, 5)]
    length = max(map(len, parts))
    x = torch.stack([torch.nn.functional.pad(part, (0, 0, 0, length - len(part))) for part in parts]).to(device)
    mask = torch.arange(length, device=device) < torch.tensor([[len(part)] for part in parts], device=device)
    model = tl.SpectralClustering("eigengap", tl.KNN(20), max_clusters=6)
    rows = model(x, mask=mask)
    assert [int(item.any(0).sum()) for item in rows] == [2, 3, 5]
    for item, part in zip(rows.cpu(), parts, strict=True):
        torch.testing.assert_close(item[: len(part)], model(part))


def test_components_are_counted():
    """Four separate cliques have four eigenvalues of zero; isolated nodes are not counted."""
    affinity = torch.block_diag(*[1 - torch.eye(5, dtype=torch.float64)] * 4, torch.zeros(1, 1, dtype=torch.float64))
    model = tl.SpectralClustering("eigengap", tl.Precomputed("affinity"), max_clusters=6)
    with pytest.warns(tl.GraphWarning, match="isolated"):
        model.fit(affinity)
    assert model.n_clusters_ == 4
    assert adjusted_rand_score(torch.arange(4).repeat_interleave(5), model.labels_[:20]) == 1
    assert model.labels_[20] == -1


def test_more_components_than_clusters():
    """As many clusters as are allowed, with a warning; each component is in one cluster."""
    parts = torch.cat([points(12, 2, seed=seed) + 40 * seed for seed in range(7)])
    model = tl.SpectralClustering("eigengap", tl.KNN(4), max_clusters=5)
    with pytest.warns(tl.GraphWarning, match=r"7 connected components, more than max_clusters=5: 5 clusters"):
        labels = model.fit(parts).labels_.reshape(7, 12)
    assert model.n_clusters_ == len(labels.unique()) == 5
    assert (labels == labels[:, :1]).all()
    with pytest.warns(tl.GraphWarning, match="max_clusters=5"):
        assert len(model.path(parts).labels[-1].unique()) == 5
    sets = torch.stack([parts[:60], torch.cat([parts[:24], points(36, 2) + 90])])
    with pytest.warns(tl.GraphWarning, match="5 connected components, more than max_clusters=4"):
        gaps = tl.SpectralClustering("eigengap", tl.KNN(4), max_clusters=4).embed(sets).gap
    assert gaps[0] == 0
    assert gaps[1] > 0


def test_state_and_gradients():
    x, _ = blobs(3)
    model = tl.SpectralClustering("eigengap", tl.KNN(20), max_clusters=5).fit(x)
    fresh = tl.SpectralClustering("eigengap", tl.KNN(20), max_clusters=5)
    fresh.load_state_dict(saved_and_loaded(model.state_dict()))
    assert fresh.n_clusters_ == 3
    assert torch.equal(fresh.predict(x + 0.01), model.predict(x + 0.01))
    assert torch.equal(model.frozen()(x + 0.01)[:, 3:], torch.zeros(len(x), 2, dtype=x.dtype))
    few = blobs(2, 8)[0].requires_grad_()
    rows = tl.SpectralClustering("eigengap", tl.KNN(5), max_clusters=4)
    assert torch.autograd.gradcheck(lambda x: rows(x) @ rows(x).mT, few, fast_mode=True)


def test_the_path_is_that_of_single_fits():
    x, truth = blobs(4)
    model = tl.SpectralClustering("eigengap", tl.KNN(20), max_clusters=7, assign_labels="cluster_qr")
    path, graph = model.path(x), None
    assert path.n_clusters.tolist() == [2, 3, 4, 5, 6, 7]
    for number, k in enumerate(path.n_clusters.tolist()):
        single = tl.SpectralClustering(k, tl.KNN(20), assign_labels="cluster_qr").fit(x)
        torch.testing.assert_close(path.gaps[number], single.gap_, rtol=1e-2, atol=0)
        # Round-off decides between rows of equal length, and so the numbers of the clusters.
        assert adjusted_rand_score(path.labels[number], single.labels_) == 1
        graph = model.weights(x, tl.knn_graph(x, 20)) if graph is None else graph
        torch.testing.assert_close(path.cuts[number], tl.normalized_cut(single.labels_, graph))
        width = silhouette_score(single.embedding_, single.labels_)
        torch.testing.assert_close(float(path.silhouettes[number]), float(width))
    assert path.n_clusters[path.gaps.argmax()] == path.n_clusters[path.silhouettes.argmax()] == 4
    assert adjusted_rand_score(truth, path.labels[2]) > 0.97


@pytest.mark.parametrize("assign_labels", ["kmeans", "cluster_qr", "discretize"])
def test_one_cluster_is_an_answer(assign_labels):
    """Of one body, where all pairs have affinities; the first gap is λ_2, and of two nodes the only one."""
    for n in (2, 3, 30):
        x = points(n, 6)
        model = tl.SpectralClustering("eigengap", tl.KNN(n), assign_labels=assign_labels, min_clusters=1).fit(x)
        assert model.n_clusters_ == 1
        assert not model.labels_.any()
        assert torch.equal(model.predict(x), model.labels_)
        values = torch.linalg.eigvalsh(tl.Laplacian(model.weights(x, tl.knn_graph(x, n)), "symmetric").to_dense())
        torch.testing.assert_close(model.gap_, values[1])
        path = model.path(x)
        assert path.n_clusters.tolist() == list(range(1, min(n, 11)))
        assert path.silhouettes[0].isnan()
        assert path.cuts[0] == 0
        torch.testing.assert_close(path.gaps, values.diff()[: len(path.gaps)])
    both = torch.stack([points(30, 6), blobs(2, 15)[0].repeat(1, 3)])
    rows = tl.SpectralClustering("eigengap", tl.KNN(30), min_clusters=1)(both)
    assert [int(item.any(0).sum()) for item in rows] == [1, 2]
    three = tl.SpectralClustering("eigengap", tl.KNN(20), min_clusters=3).fit(blobs(2)[0])
    assert three.n_clusters_ >= 3


def voices(sizes, noise, seed, width=192):
    """Rows of speakers, as many of each as the sizes say."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    own = torch.randn(len(sizes), width, generator=generator)
    return own[truth] + noise * torch.randn(len(truth), width, generator=generator)


RECORDINGS = {  # noise, and numbers of pieces of the speakers; docs/paths/speakers.md has errors of three seeds
    "60 pieces": (0.9, lambda speakers, random: [60] * speakers),
    "noisy": (1.6, lambda speakers, random: [60] * speakers),
    "3 to 400 pieces": (1.2, lambda speakers, random: np.exp(random.uniform(*np.log([3, 400]), speakers)).astype(int)),
    "3 to 8 pieces": (1.0, lambda speakers, random: random.integers(3, 9, speakers)),
    "one speaks most": (1.2, lambda speakers, random: [400, *random.integers(5, 30, speakers - 1)]),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_speakers_are_counted_by_the_normalised_gap(name):
    (noise, sizes), options = RECORDINGS[name], {"min_clusters": 1, "assign_labels": "cluster_qr"}
    errors = {tl.KNN(10, metric="cosine"): [], tl.KNN("nme", metric="cosine"): []}
    for speakers in (1, 2, 5):
        pieces = sizes(speakers, np.random.default_rng(100 * speakers))
        x = voices(list(map(int, pieces)), noise, speakers)
        for rule, found in errors.items():
            model = tl.SpectralClustering("eigengap", rule, tl.SimpleWeights(), **options)
            found.append(abs(model.fit(x).n_clusters_ - speakers))
    fixed, chosen = errors.values()
    assert sum(chosen) <= min(sum(fixed), 1)


def test_the_number_of_neighbours_is_that_of_the_formula():
    x = voices([20, 12, 30], 1.2, 0).double()
    ratios = {}
    for p in np.unique(np.linspace(2, 62 // 4, 20).astype(int)):
        laplacian = tl.Laplacian(tl.knn_graph(x, int(p), metric="cosine"), "symmetric").to_dense()
        values = torch.linalg.eigvalsh(laplacian)
        ratios[int(p)] = float(p * values[-1] / values.diff()[:8].max())
    rule = tl.KNN("nme", metric="cosine", max_clusters=8)
    p = min(ratios, key=ratios.__getitem__)
    assert rule.number_of_neighbors(x) == p
    assert torch.equal(rule(x).to_dense(), tl.KNN(p, metric="cosine")(x).to_dense())
    model = tl.SpectralClustering("eigengap", rule, tl.SimpleWeights()).fit(x)
    fixed = tl.SpectralClustering("eigengap", tl.KNN(p, metric="cosine"), tl.SimpleWeights()).fit(x)
    assert model.n_neighbors_ == p
    assert not hasattr(fixed, "n_neighbors_")
    near = x[:9] + 0.05
    torch.testing.assert_close(model.transform(near), fixed.transform(near))
    torch.testing.assert_close(model.frozen()(near), fixed.frozen()(near))
    fresh = tl.SpectralClustering("eigengap", rule, tl.SimpleWeights())
    fresh.load_state_dict(saved_and_loaded(model.state_dict()))
    assert fresh.n_neighbors_ == p
    few = voices([4, 3], 0.5, 1).double()
    batch = torch.stack([x, torch.nn.functional.pad(few, (0, 0, 0, 55), value=torch.nan)])
    mask = torch.arange(62) < torch.tensor([[62], [7]])
    rows = tl.LaplacianEigenmaps(2, rule, components="separate")(batch, mask)
    assert torch.equal(rule(batch, mask).to_dense()[1, :7, :7], rule(few).to_dense())
    assert rows.isfinite().all()
    copies = torch.ones(30, 3)
    assert 2 <= tl.KNN("nme").number_of_neighbors(copies) <= 7
    large = voices([800, 500], 0.9, 3)  # every second point is looked at
    half = tl.KNN("nme").number_of_neighbors(large[::2])
    assert tl.KNN("nme").number_of_neighbors(large) == half * 1300 // 650


def single_moves(labels, k):
    n = len(labels)
    moves = labels.repeat(n * k, 1)
    moves[torch.arange(n * k), torch.arange(n).repeat_interleave(k)] = torch.arange(k).repeat(n)
    return moves[[len(move.unique()) == len(labels.unique()) for move in moves]]


@pytest.mark.parametrize("k", [2, 3])
def test_no_single_move_makes_a_refined_cut_smaller(k):
    for seed in range(5):
        graph = tl.Graph.from_dense(random_affinity(14, seed=seed))
        labels = torch.randint(0, k, (14,), generator=torch.Generator().manual_seed(seed))
        refined = refine_cut(labels, graph, rounds=1000)
        cut = tl.normalized_cut(refined, graph)
        assert cut <= tl.normalized_cut(labels, graph)
        assert len(refined.unique()) == len(labels.unique())
        assert cut <= torch.stack([tl.normalized_cut(move, graph) for move in single_moves(refined, k)]).min() + 1e-9


@pytest.mark.parametrize("assign_labels", ["kmeans", "cluster_qr", "discretize"])
def test_few_points_have_fewer_clusters_than_the_default_allows(assign_labels):
    """A graph of two to nine nodes: its two groups, alone and in a batch, the evidence, and new points."""
    for sizes in ((1, 1), (2, 1), (2, 3), (4, 5)):
        x = torch.cat([points(n, 2) + 90 * i for i, n in enumerate(sizes)])
        truth = torch.arange(2).repeat_interleave(torch.tensor(sizes))
        rule, weights = tl.KNN(len(x) - 1), tl.HeatKernel("median")
        model = tl.SpectralClustering("eigengap", rule, weights, assign_labels=assign_labels).fit(x)
        assert adjusted_rand_score(truth, model.labels_) == 1
        assert torch.equal(model.predict(x), model.labels_)
        torch.testing.assert_close(model(x[None])[0], model(x))
        assert model.path(x).n_clusters.tolist() == list(range(2, max(3, len(x))))
