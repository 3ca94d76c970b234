"""Starts for UMAP and t-SNE: eigenvectors of each component, laid apart and scaled as the libraries do."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import block_diag, coo_array, csr_array

import torch_lapeig as tl
from problems import every, points, random_affinity
from torch_lapeig.eigen import ChebyshevSubspace


def graph_of(n=120, k=9):
    x = points(n, 3) * torch.tensor([4.0, 2.0, 0.3])  # no two eigenvalues are close
    return tl.HeatKernel()(x, tl.knn_graph(x, k))


def blobs(*sizes, seed=0):
    """Complete graphs of random weights side by side, and points of them."""
    parts = [random_affinity(n, seed=seed + n, keep=1.0).numpy() for n in sizes]
    x = np.concatenate([np.full((n, 2), 3.0 * i) + 0.1 * np.eye(2)[i % 2] for i, n in enumerate(sizes)])
    return csr_array(block_diag([coo_array(part) for part in parts])), x


@pytest.mark.parametrize(("scale", "normalization"), [("umap", "symmetric"), ("tsne", "random_walk")])
def test_columns_are_those_of_a_dense_solver_scaled_as_the_library_does(scale, normalization):
    graph = graph_of()
    start = tl.spectral_init(graph, 3, seed=0, scale=scale)
    degrees = graph.to_dense().sum(1)
    values, v = torch.linalg.eigh(tl.Laplacian(graph, "symmetric").to_dense())
    expected = v[:, 1:4] if scale == "umap" else v[:, 1:4] / degrees.sqrt()[:, None] * (1 - values[1:4])
    if scale == "umap":
        assert 9.999 < start.embedding.abs().max() < 10.001
        allowed = 1e-3
    else:
        assert abs(start.embedding[:, 0].std(correction=0) - 1e-4) < 1e-6
        allowed = 0.05
    ratio = start.embedding.norm() / expected.norm()  # one factor for all columns
    signs = (start.embedding * expected).sum(0).sign()
    assert (start.embedding - ratio * signs * expected).norm() < allowed * start.embedding.norm()
    torch.testing.assert_close(start.eigenvalues, values[None, 1:4])
    assert start.residuals.max() < 1e-6
    assert start.converged
    assert isinstance(start, tl.InitialLayout)
    assert not start.component.any()


def test_every_form_of_a_graph_has_the_same_start():
    graph = graph_of()
    matrix = graph.to_scipy()
    expected = tl.spectral_init(graph, 2, seed=1).embedding
    forms = [matrix, coo_array(matrix), tl.Graph.from_dense(graph.to_dense()), (graph.edge_index, graph.weight)]
    forms += [SimpleNamespace(graph_=matrix), SimpleNamespace(P=matrix)]
    for form in forms:
        torch.testing.assert_close(tl.spectral_init(form, 2, seed=1).embedding, expected, rtol=1e-5, atol=1e-5)
    ones = tl.spectral_init(graph.edge_index, 2, seed=1).embedding
    torch.testing.assert_close(ones, tl.spectral_init((graph.edge_index, None), 2, seed=1).embedding)
    assert ones.dtype == torch.float32
    assert not torch.equal(tl.spectral_init(graph, 2, seed=2).embedding, expected)
    torch.manual_seed(0)
    first = tl.spectral_init(graph, 2).embedding
    torch.manual_seed(0)
    assert torch.equal(tl.spectral_init(graph, 2).embedding, first)


def test_up_to_four_components_lie_on_the_axes_and_do_not_touch():
    affinity, _ = blobs(9, 40, 12)
    start = tl.spectral_init(affinity, 2, seed=0)
    y = start.embedding / 10
    assert start.component.unique(return_counts=True)[1].tolist() == [9, 40, 12]
    places = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])  # up to the scale of the whole
    room = 2**0.5 / 2
    scale = y.abs().max() / (1 + room)
    for c in range(3):
        assert (y[start.component == c] - scale * places[c]).abs().max() <= scale * room * 1.001


@pytest.mark.parametrize("with_points", [True, False])
def test_many_components_of_all_sizes_have_places_of_their_own(with_points):
    """Each is where it is on its own, shifted and scaled, with random columns beyond its own; none overlaps another."""
    affinity, x = blobs(1, 30, 5, 3, 33, 8, 2)
    start = tl.spectral_init(affinity, 2, seed=0, points=x if with_points else None)
    y, parts = start.embedding, [start.component == c for c in range(7)]
    assert y.isfinite().all()
    assert start.eigenvalues.isinf().sum(1).tolist() == [2, 0, 0, 0, 0, 0, 1]
    assert torch.equal(start.residuals < 1e-6, start.eigenvalues.isfinite())
    assert not start.converged
    alone = tl.spectral_init(affinity[parts[4].numpy()][:, parts[4].numpy()], 2, seed=5).embedding
    both = torch.cat([y[parts[4]], alone], 1).T.corrcoef()
    assert min(both[0, 2].abs(), both[1, 3].abs()) > 0.999
    low, high = (torch.stack([getattr(y[p], side)(0) for p in parts]) for side in ("amin", "amax"))
    centres = (low + high) / 2
    distance = torch.cdist(centres, centres) + 1e9 * torch.eye(7)
    assert distance.min() > 0.05
    for c in range(7):
        assert (high - low)[c].max() <= 2 * distance[c].min()


@every(k=[4, 6, 7, 8, 20], scale=["umap", "tsne"])
def test_few_nodes_have_all_their_eigenvectors(k, scale):
    """More columns than half of the nodes, and more than all eigenvectors, which is said."""
    graph = tl.Graph.from_dense(random_affinity(8, keep=1.0))
    v = torch.linalg.eigh(tl.Laplacian(graph, "symmetric").to_dense())[1][:, 1 : k + 1]
    if k < 8:
        start = tl.spectral_init(graph, k, seed=0, scale=scale)
        assert start.converged
    else:
        with pytest.warns(tl.GraphWarning, match=rf"last {k - 7} of {k} columns are random.*use k=7 at most"):
            start = tl.spectral_init(graph, k, seed=0, scale=scale)
        assert not start.converged
    assert torch.equal(start.residuals[0] < 1e-9, torch.arange(k) < 7)
    y = start.embedding[:, :7] * (1 if scale == "umap" else tl.Laplacian(graph).degrees[:, None].sqrt())
    cosine = (y * v).sum(0).abs() / y.norm(dim=0)
    assert cosine.min() > (0.999 if scale == "umap" else 0.9)  # noise of 1 % of the first column


def test_nearly_disconnected_graphs_are_solved_for_each_scale_of_their_links():
    """Blobs joined by 1e-8 lie on opposite sides, whatever else."""
    affinity, _ = blobs(300, 280)
    linked = affinity.tolil()
    linked[0, 400] = linked[400, 0] = 1e-8
    start = tl.spectral_init(linked.tocsr(), 1, seed=0)
    y = start.embedding[:, 0]
    assert start.eigenvalues[0, 0] < 1e-8
    assert (y[:300].sign() * y[300:].sign()[0] == -1).all()
    assert y[:300].std() < 0.2 * y.std()


def test_work_is_bounded_and_failure_is_loud():
    affinity = graph_of(400)
    with pytest.warns(tl.ConvergenceWarning, match="converge"):
        start = tl.spectral_init(affinity, 2, solve=tl.Solve(ChebyshevSubspace(max_products=30), tolerance=1e-12))
    assert not start.converged
    assert start.residuals.max() > 1e-12
