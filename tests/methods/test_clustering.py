"""Normalised cuts and spectral clustering against the brute-force optimum, and the labels of new points."""

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

import torch_lapeig as tl
from problems import DEVICES, DTYPES, check_derivatives, complete, every, points, random_affinity, two_cliques
from torch_lapeig.eigen import ChebyshevSubspace, Eigh

both_variants = pytest.mark.parametrize("variant", ["njw", "shi_malik"])


def bridged_cliques(*sizes, bridge=0.1):
    """Cliques in a row, neighbours joined by one weak edge."""
    affinity = torch.block_diag(*[complete(size) for size in sizes])
    for last in torch.tensor(sizes).cumsum(0)[:-1].tolist():
        affinity[last - 1, last] = affinity[last, last - 1] = bridge
    return affinity


def partitions(n, k):
    """All labels of n nodes in k clusters, none empty, the first node in cluster 0."""
    labels = torch.tensor([(0, *rest) for rest in itertools.product(range(k), repeat=n - 1)])
    return labels[(labels[..., None] == torch.arange(k)).any(1).all(1)]


def smallest_cut(affinity, k):
    labels = partitions(len(affinity), k)
    cuts = tl.normalized_cut(labels, tl.Graph.from_dense(affinity.expand(len(labels), -1, -1)))
    return cuts.min(), labels[cuts.argmin()]


def three_rings():
    """Radii 1, 2 and 3."""
    angle, noise = np.linspace(0, 6 * np.pi, 360, endpoint=False), np.random.default_rng(0).normal(0, 0.05, (360, 2))
    ring = np.repeat([0, 1, 2], 120)
    return (ring + 1)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + noise, ring


def same_clusters(labels, expected):
    return adjusted_rand_score(expected.cpu(), labels.cpu()) == 1


def test_identity_of_shi_and_malik():
    """NCut(A, B) = fᵀ L f / fᵀ D f for f = 1/vol A on A and −1/vol B on B, which is orthogonal to D 1."""
    graph = tl.Graph.from_dense(random_affinity(8))
    laplacian = tl.Laplacian(graph, "unnormalized")
    for labels in partitions(8, 2):
        volume = torch.stack([laplacian.degrees[labels == side].sum() for side in (0, 1)])
        f = torch.where(labels == 0, 1 / volume[0], -1 / volume[1])[:, None]
        quotient = (f.T @ laplacian.matmul(f)) / (laplacian.degrees[:, None] * f.square()).sum()
        torch.testing.assert_close(tl.normalized_cut(labels, graph), quotient.squeeze())
        assert (laplacian.degrees @ f).abs() < 1e-12


@every(seed=range(3), k=[2, 3])
def test_eigenvalues_bound_the_smallest_cut(k, seed):
    """λ_1 + … + λ_k ≤ min NCut, the relaxation; for k = 2 that is λ_2."""
    affinity = random_affinity(7, seed=seed, keep=0.4)
    values = tl.eigenpairs(tl.Laplacian(tl.Graph.from_dense(affinity)), k).values
    optimum, _ = smallest_cut(affinity, k)
    assert values.sum() <= optimum + 1e-12
    assert optimum < k


@both_variants
@pytest.mark.parametrize("sizes", [(4, 4), (3, 6), (5, 3), (3, 3, 3), (3, 2, 4)])
def test_clustering_finds_the_smallest_cut(sizes, variant):
    affinity = bridged_cliques(*sizes)
    optimum, labels = smallest_cut(affinity, len(sizes))
    found = tl.SpectralClustering(len(sizes), tl.Precomputed("affinity"), variant=variant).fit_predict(affinity)
    torch.testing.assert_close(tl.normalized_cut(found, tl.Graph.from_dense(affinity)), optimum)
    assert same_clusters(found, labels)


def test_empty_clusters_isolated_nodes_and_no_cluster():
    graph = tl.Graph.from_dense(torch.block_diag(two_cliques(3, 4), torch.zeros(2, 2))).to_sparse()
    components = torch.tensor([0] * 3 + [1] * 4 + [2, 3])  # clusters 2 and 3 have no volume
    assert tl.normalized_cut(components, graph) == 0
    assert tl.normalized_cut(7 * components, graph) == 0
    assert tl.normalized_cut(torch.full((9,), -1), graph) == 0
    # Six of the twelve directed edges of the second clique lead out of it when two of its nodes leave.
    torch.testing.assert_close(tl.normalized_cut(torch.tensor([0] * 3 + [1, 1, -1, -1, 0, 0]), graph).item(), 4 / 6)
    weight = graph.weight.clone().requires_grad_()
    tl.normalized_cut(components, graph.with_weight(weight)).backward()
    assert weight.grad.isfinite().all()


def test_soft_assignments():
    """Labels are the special case, and expectations over independent labels the meaning."""
    affinity = random_affinity(6) + torch.eye(6)
    graph = tl.Graph.from_dense(affinity)
    labels = torch.arange(6) % 2
    hard = torch.nn.functional.one_hot(labels).double()
    torch.testing.assert_close(tl.normalized_cut(hard, graph.to_sparse()), tl.normalized_cut(labels, graph))
    soft = points(6, 2).softmax(1)
    cut, volume = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for side in torch.cartesian_prod(*[torch.arange(2)] * 6):
        probability = soft[torch.arange(6), side].prod()
        for cluster in (0, 1):
            inside = side == cluster
            cut[cluster] += probability * affinity[inside][:, ~inside].sum()
            volume[cluster] += probability * affinity[inside].sum()
    torch.testing.assert_close(tl.normalized_cut(soft, graph), (cut / volume).sum())


def test_cut_gradcheck():
    dense = tl.Graph.from_dense(random_affinity(6, keep=0.4))
    for graph in (dense, dense.to_sparse()):
        cut = lambda assignment, w, graph=graph: tl.normalized_cut(assignment, replace(graph, weight=w))  # noqa: E731
        check_derivatives(cut, points(6, 3).softmax(1), graph.weight)
        check_derivatives(lambda w, cut=cut: cut(torch.arange(6) % 2, w), graph.weight)


@both_variants
@every(dtype=DTYPES, device=DEVICES)
def test_moons_and_rings(dtype, device, variant):
    rings = make_circles(240, factor=0.5, noise=0.03, random_state=0)
    apart, touching = (make_moons(240, noise=noise, random_state=0) for noise in (0.05, 0.07))
    for x, expected in (map(torch.tensor, data) for data in (rings, apart, touching, three_rings())):
        module = tl.SpectralClustering(len(expected.unique()), tl.KNN(10), variant=variant)
        labels = module.fit_predict(x.to(device, dtype))
        assert same_clusters(labels, expected)
        assert labels.dtype == torch.int64
        assert labels.device == x.to(device).device
        assert module.embedding_.dtype == dtype


def test_rows_are_those_of_ng_jordan_and_weiss():
    """Of length 1, from the eigenvectors of L_sym; test_combinations.py has those of Shi and Malik."""
    x = points(60, 3)
    graph = tl.HeatKernel()(x, tl.KNN(8)(x))
    module = tl.SpectralClustering(4, tl.KNN(8)).fit(x)
    rows = torch.nn.functional.normalize(tl.eigenpairs(tl.Laplacian(graph), 4).vectors, dim=1)
    torch.testing.assert_close(module.embedding_ @ module.embedding_.T, rows @ rows.T)
    values = tl.eigenpairs(tl.Laplacian(graph), 5).values
    torch.testing.assert_close(module.gap_, values[-1] - values[-2])


@both_variants
def test_isolated_nodes_belong_to_no_cluster(variant):
    affinity = torch.block_diag(torch.zeros(1, 1), bridged_cliques(4, 5), torch.zeros(1, 1))
    module = tl.SpectralClustering(2, tl.Precomputed("affinity"), variant=variant)
    with pytest.warns(tl.GraphWarning, match="2 of 11 nodes are isolated"):
        labels = module.fit_predict(affinity)
    assert (labels == -1).nonzero().flatten().tolist() == [0, 10]
    assert same_clusters(labels, torch.tensor([-1] + [0] * 4 + [1] * 5 + [-1]))
    assert not module.embedding_[labels == -1].any()
    weight = affinity.clone().requires_grad_()
    with pytest.warns(tl.GraphWarning):
        rows = module(weight)
    (rows @ rows.T).square().sum().backward()
    assert weight.grad.isfinite().all()


@every(how=["cluster_qr", "discretize"], device=DEVICES)
@both_variants
def test_other_ways_to_labels(variant, how, device):
    """Labels are as good as those of k-means on clear clusters, also for new points and after loading."""
    x, ring = three_rings()
    x = torch.from_numpy(x).to(device)

    def make():
        return tl.SpectralClustering(3, tl.KNN(8), tl.HeatKernel(0.05), variant=variant, assign_labels=how)

    module = make().fit(x[::2])
    labels = torch.cat([module.labels_, module.predict(x[1::2])])
    assert same_clusters(labels, torch.from_numpy(np.concatenate([ring[::2], ring[1::2]])))
    assert torch.equal(module.predict(x[::2]), module.labels_)
    assert module.cluster_centers_ is None
    assert module.cluster_axes_.shape == (3, 3)
    other = make()
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.to(device).predict(x), module.predict(x))
    assert torch.equal(module.float().predict(x.float()), module.predict(x.float()))
    assert module.predict(x.bfloat16()).dtype == torch.int64
    with pytest.raises(RuntimeError, match=r"assign_labels is .* in the state"):
        tl.SpectralClustering(3, tl.KNN(8), tl.HeatKernel(0.05), variant=variant).load_state_dict(module.state_dict())


def test_solver_and_seed():
    x = points(200, 2)
    labels = tl.SpectralClustering(3, tl.KNN(8), solve=Eigh()).fit_predict(x)
    assert same_clusters(tl.SpectralClustering(3, tl.KNN(8), solve=ChebyshevSubspace()).fit_predict(x), labels)
    assert torch.equal(tl.SpectralClustering(3, tl.KNN(8), solve=Eigh()).fit_predict(x), labels)
    one, other = (tl.SpectralClustering(9, tl.KNN(8), seed=7).fit_predict(x) for _ in range(2))
    assert torch.equal(torch.stack([one, other]).unique(), torch.arange(9))


@every(dtype=DTYPES, device=DEVICES)
@both_variants
def test_training_points_get_their_labels(variant, dtype, device):
    """Of centres that are means of rows; test_contract.py and test_combinations.py have the rows themselves."""
    x = points(80, 3, dtype=dtype).to(device)
    for neighbors in (tl.KNN(7), tl.Radius(2.5)):
        module = tl.SpectralClustering(4, neighbors, variant=variant).fit(x)
        assert torch.equal(module.predict(x), module.labels_)
        for label, centre in enumerate(module.cluster_centers_):
            torch.testing.assert_close(centre, module.embedding_[module.labels_ == label].mean(0))
    affinity = tl.HeatKernel()(x, tl.KNN(7)(x)).to_dense()
    module = tl.SpectralClustering(4, tl.Precomputed("affinity"), variant=variant).fit(affinity)
    assert torch.equal(module.predict(affinity), module.labels_)


@both_variants
def test_new_points_of_two_moons(variant):
    """Half of the points are held out; their rows are those of Nyström's formula, in the form of the variant."""
    x, moon = map(torch.from_numpy, make_moons(400, noise=0.06, random_state=0))
    module = tl.SpectralClustering(2, tl.KNN(10), variant=variant).fit(x[::2])
    assert same_clusters(torch.cat([module.labels_, module.predict(x[1::2])]), torch.cat([moon[::2], moon[1::2]]))
    plain = tl.LaplacianEigenmaps(2, tl.KNN(10), drop_trivial=False).fit(x[::2]).transform(x[1::2])
    expected = torch.nn.functional.normalize(plain, dim=1) if variant == "njw" else plain
    torch.testing.assert_close(module.transform(x[1::2]), expected)


@both_variants
def test_new_points_that_no_edge_reaches_belong_to_no_cluster(variant):
    x = torch.cat([points(40, 2), torch.full((1, 2), 30.0, dtype=torch.float64)])
    module = tl.SpectralClustering(2, tl.Radius(2.0), variant=variant)
    with pytest.warns(tl.GraphWarning, match="isolated"):
        module.fit(x)
    new = torch.cat([x[-1:], torch.full((1, 2), -30.0, dtype=torch.float64), x[:1]])
    with pytest.warns(tl.GraphWarning, match="2 of 3 new points have no neighbour"):
        assert module.predict(new).tolist() == [-1, -1, module.labels_[0].item()]
    with pytest.warns(tl.GraphWarning):
        assert not module.transform(new)[:2].any()


def test_without_scikit_learn_only_fit_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    module = tl.SpectralClustering(2, tl.KNN(5))
    assert module(points(30, 2)).shape == (30, 2)
    with pytest.raises(ImportError, match=r"cluster_qr.*pip install .scikit-learn"):
        module.fit(points(30, 2))
    assert len(tl.SpectralClustering(2, tl.KNN(5), assign_labels="cluster_qr").fit_predict(points(30, 2))) == 30
