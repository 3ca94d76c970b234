"""Positional encodings: PyTorch Geometric's own transform, batches, gradients to the edge weights."""

from functools import partial

import pytest
import torch

import torch_lapeig as tl
from problems import DEVICES, complete, covering, cycle, every, path, points, random_affinity, two_cliques
from torch_lapeig.eigen import Eigh
from torch_lapeig.methods import HeatResponse
from torch_lapeig.pyg import AddLaplacianPE, AddMagneticPE, AddSpectralFeatures


def edges_of(affinity):
    return affinity.nonzero().T.contiguous()


def joined(graphs):
    """One edge index, the graph of each node, and weights of affinity matrices."""
    starts = torch.tensor([0, *[len(a) for a in graphs]]).cumsum(0)
    edge_index = torch.cat([edges_of(a) + s for a, s in zip(graphs, starts[:-1], strict=True)], 1)
    batch = torch.arange(len(graphs)).repeat_interleave(starts.diff())
    return edge_index, batch, torch.cat([a[a > 0] for a in graphs])


def molecule(n, seed):
    generator = torch.Generator().manual_seed(seed)
    affinity = torch.zeros(n, n, dtype=torch.float64)
    for i in range(1, n):
        j = max(0, i - 1 - int(3 * torch.rand((), generator=generator)))
        affinity[i, j] = affinity[j, i] = 1
    ring = torch.randint(0, n, (2, 3), generator=generator)
    affinity[ring[0], ring[1]] = affinity[ring[1], ring[0]] = 1
    return affinity - torch.diag_embed(affinity.diagonal())


def assert_same_eigenvectors(ours, theirs, values):
    """Equal up to sign and rotation: the projectors of all clusters of eigenvalues within the columns."""
    values = values[values.isfinite()]
    ends = ((values.diff() > 1e-6).nonzero().flatten() + 1).tolist()
    for begin, end in zip([0, *ends], ends, strict=False):  # what follows the last end may be cut
        a, b = ours[:, begin:end], theirs[:, begin:end]
        torch.testing.assert_close(a @ a.T, b @ b.T, atol=1e-5, rtol=0)


NORMALIZATIONS = ["symmetric", "random_walk", "unnormalized"]
GRAPHS = [path(9), cycle(12), complete(4), molecule(20, 0), two_cliques(3, 4), molecule(37, 1), path(2)]
SINGLE_GRAPHS = {"path": path(9), "cycle": cycle(12), "complete": complete(7), "tree with rings": molecule(37, 1)}
SINGLE_GRAPHS |= {"weights": random_affinity(24), "two components": torch.block_diag(path(6), molecule(9, 2))}
SINGLE_GRAPHS |= {"more components than columns": torch.block_diag(*[path(3)] * 7)}
SINGLE_GRAPHS |= {"isolated nodes": torch.block_diag(torch.zeros(2, 2), path(9), torch.zeros(1, 1))}
SINGLE_GRAPHS |= {"loops": path(9) + torch.eye(9)}
NOT_PLAIN = {
    "nearly cut": path(8).double() * torch.where(torch.arange(8) == 4, 1e-14, 1.0) * torch.ones(8, 1),
    "a tiny degree": torch.block_diag(path(6)).double(),
    "two nodes": path(2),
    "no edges": torch.zeros(5, 5),
}
NOT_PLAIN["nearly cut"] = torch.minimum(NOT_PLAIN["nearly cut"], NOT_PLAIN["nearly cut"].T)
NOT_PLAIN["a tiny degree"][5, 4] = NOT_PLAIN["a tiny degree"][4, 5] = 1e-160
BOTH = torch.tensor([[0, 1], [1, 0]])
TRANSFORMS = {
    "vectors": lambda k: AddLaplacianPE(k, "pe", eigenvalues="values"),
    "signatures": lambda k: AddSpectralFeatures(HeatResponse([1.0, 2.0]), k, "pe", eigenvalues="values"),
    "magnetic": lambda k: AddMagneticPE(k, "pe", eigenvalues="values"),
}


@pytest.mark.filterwarnings("ignore:.*isolated")
@pytest.mark.filterwarnings("ignore:.*tiny degree:torch_lapeig.GraphWarning")
@covering(2, normalization=NORMALIZATIONS, device=DEVICES)
def test_each_graph_of_a_batch_has_its_own_eigenvectors(normalization, device):
    graphs = [affinity.double() for affinity in (*SINGLE_GRAPHS.values(), *NOT_PLAIN.values(), *GRAPHS)]
    edge_index, batch, weight = (part.to(device) for part in joined(graphs))
    encoded = partial(tl.laplacian_positional_encoding, normalization=normalization)
    found = encoded(edge_index, batch, 4, weight)
    assert found.vectors.shape == (len(batch), 4)
    assert found.vectors.device.type == found.values.device.type == device
    turned = torch.randperm(len(weight), generator=torch.Generator().manual_seed(0)).to(device)
    again = encoded(edge_index[:, turned], batch, 4, weight[turned])
    torch.testing.assert_close(again.values, found.values, atol=1e-13, rtol=1e-12)
    whole = encoded(edge_index, batch, 4, weight, solve=Eigh())
    for b, affinity in enumerate(graphs):
        mine, values = found.vectors[batch == b].cpu(), found.values[b].cpu()
        edges, nodes, own = joined([affinity])
        alone = encoded(edges, nodes, 4, own, solve=Eigh())
        torch.testing.assert_close(values, alone.values[0], atol=1e-13, rtol=1e-12)
        assert_same_eigenvectors(mine, whole.vectors[batch == b].cpu(), values)
        if mine.abs().max() < 1e9:  # or the basis of a double value is that of round-off
            assert_same_eigenvectors(mine, alone.vectors, values)
        assert not mine[:, values.isinf()].any()
        assert values[len(affinity) - 1 :].isinf().all()


@pytest.mark.filterwarnings("ignore:.*isolated")
def test_graphs_without_edges_or_nodes():
    none = torch.zeros(2, 0, dtype=torch.int64)
    for nodes in (torch.tensor([0, 0, 2]), 3):
        found = tl.laplacian_positional_encoding(none, nodes, 2)
        assert not found.vectors.any()
        assert found.values.isinf().all()
    assert found.values.shape == (1, 2)
    assert tl.laplacian_positional_encoding(none, 0, 2).vectors.shape == (0, 2)
    assert tl.laplacian_positional_encoding(none, 0, 2).values.tolist() == [[torch.inf] * 2]


@pytest.mark.filterwarnings("ignore:.*isolated")
@every(transform=TRANSFORMS, k=[1, 3, 8])
def test_graphs_without_edges_change_nothing_beside_others(transform, k, pyg):
    """A single atom, several nodes without an edge and no nodes at all have zero rows; the others have their own."""
    simple = (path(9), random_affinity(20), path(3), path(40))
    others = [pyg.data.Data(edge_index=edges_of(a), edge_weight=a[a > 0], num_nodes=len(a)) for a in simple]
    none = {"edge_index": BOTH[:, :0], "edge_weight": torch.ones(0, dtype=torch.float64)}
    bare = [pyg.data.Data(**none, num_nodes=n) for n in (1, 4, 0)]
    for data in ([*bare, *others], [others[0], bare[0]], [bare[0], others[1], bare[0]], [bare[1]] * 3):
        for item in data:
            item.edge_weight = item.edge_weight.detach().requires_grad_()
        for item, given in zip(transform(k)(data), data, strict=True):
            alone = transform(k)(given)
            torch.testing.assert_close(item["values"], alone["values"], atol=1e-12, rtol=0)
            assert item["values"].shape[0] == 1
            torch.testing.assert_close(item.pe.square().sum(1), alone.pe.square().sum(1), atol=1e-9, rtol=0)
            assert item.pe.requires_grad
            assert item.num_edges > 0 or not item.pe.any()


def test_gradcheck_to_edge_weights():
    """Each undirected edge has one weight; the loss depends on the spans only."""
    edge_index, batch, weight = joined([random_affinity(7, keep=0.5), random_affinity(4, seed=1), path(2)])
    _, undirected = (edge_index.sort(dim=0).values).unique(dim=1, return_inverse=True)
    leaf = torch.zeros(int(undirected.max()) + 1, dtype=torch.float64).index_copy(0, undirected, weight)
    h = points(13, 13)

    def loss(weight):
        v, values = tl.laplacian_positional_encoding(edge_index, batch, 3, weight[undirected])
        return (v @ v.T * (batch[:, None] == batch) * h).sum() + values[0].square().sum()

    assert torch.autograd.gradcheck(loss, leaf.requires_grad_())


def test_copies_of_edges_are_summed_with_a_warning():
    with pytest.warns(tl.GraphWarning, match="summed 2 copies"):
        found = tl.laplacian_positional_encoding(torch.cat([edges_of(path(3)), BOTH], 1), 3, 2)
    expected = tl.laplacian_positional_encoding(edges_of(path(3)), 3, 2, torch.tensor([2.0, 2.0, 1.0, 1.0]))
    torch.testing.assert_close(found, expected)


@pytest.fixture
def pyg():
    return pytest.importorskip("torch_geometric", reason="compares with PyTorch Geometric")


@pytest.fixture
def data(pyg):
    graphs = [molecule(n, n) for n in range(12, 38, 5)] + [cycle(20), complete(9)]
    return [pyg.data.Data(x=torch.randn(len(a), 2), edge_index=edges_of(a), num_nodes=len(a)) for a in graphs]


@pytest.mark.parametrize("sizes", [(4,), (4, 30), (3, 400)])
def test_isolated_nodes_are_warned_of(sizes, pyg):
    """A list of edges counted from 1 leaves node 0 of each graph without an edge, in every way to its eigenvectors."""
    graphs = [torch.block_diag(torch.zeros(1, 1), path(n)) for n in sizes]
    edge_index, batch, _ = joined(graphs)
    items = [pyg.data.Data(edge_index=edges_of(affinity), num_nodes=len(affinity)) for affinity in graphs]
    made = {of: of.from_edge_index(edge_index, batch=batch) for of in (tl.Graph, tl.SignedGraph, tl.DirectedGraph)}
    calls = [
        lambda: tl.laplacian_positional_encoding(edge_index, batch, 2),
        *(partial(transform(2), pyg.data.Batch.from_data_list(items)) for transform in TRANSFORMS.values()),
        lambda: tl.eigenpairs(tl.Laplacian(made[tl.Graph]), 2),
        lambda: tl.eigenpairs(tl.SignedLaplacian(made[tl.SignedGraph]), 2),
        lambda: tl.MagneticLaplacian(made[tl.DirectedGraph]).eigenpairs(2),
    ]
    for call in calls:
        with pytest.warns(tl.GraphWarning, match=rf"({len(sizes)} of {len(batch)}|1 of (4|401)) nodes are isolated"):
            call()


def test_the_vectors_of_pytorch_geometric(pyg, data):
    theirs = pyg.transforms.AddLaplacianEigenvectorPE(8, is_undirected=True)
    ours = AddLaplacianPE(8, eigenvalues="values")
    for item in data:
        found = ours(item)
        assert "laplacian_eigenvector_pe" not in item
        expected = theirs(item.clone()).laplacian_eigenvector_pe.float()
        assert_same_eigenvectors(found.laplacian_eigenvector_pe, expected, found["values"][0])


def test_one_list_batch_and_pipeline_agree(pyg, data):
    transform = TRANSFORMS["vectors"](5)
    alone = [transform(item) for item in data]
    in_list, batch = transform(data), transform(pyg.data.Batch.from_data_list(data))
    pipeline = pyg.transforms.Compose([pyg.transforms.ToUndirected(), transform])
    assert isinstance(batch, pyg.data.Batch)
    for begin, one, other in zip(batch.ptr, alone, in_list, strict=False):
        for rows in (batch.pe[begin : begin + one.num_nodes], other.pe, pipeline(one).pe):
            assert_same_eigenvectors(one.pe, rows, one["values"][0])
        torch.testing.assert_close(other["values"], one["values"])
    torch.testing.assert_close(batch["values"], torch.cat([item["values"] for item in alone]))
    again = pyg.data.Batch.from_data_list(in_list)
    assert again.pe.shape == batch.pe.shape
    assert again["values"].shape == (len(data), 5)
    assert transform([]) == []


@pytest.mark.filterwarnings("ignore:.*isolated")
@pytest.mark.parametrize("transform", [*TRANSFORMS.values(), lambda k: AddLaplacianPE(k, None)])
@pytest.mark.parametrize("has_x", [True, False])
def test_the_parts_of_a_batch_have_their_encodings(transform, has_x, pyg, data):
    """As the data of a list have them; the batch that was given has none, and further transforms keep them."""
    items = [*data, pyg.data.Data(x=torch.zeros(1, 2), edge_index=BOTH[:, :0], num_nodes=1)]
    items = items if has_x else [pyg.data.Data(edge_index=item.edge_index, num_nodes=item.num_nodes) for item in items]
    given = pyg.data.Batch.from_data_list(items)
    whole = AddSpectralFeatures(HeatResponse([1.0]), 3, "more")(transform(3)(given))
    for part, alone, before in zip(whole.to_data_list(), transform(3)(items), given.to_data_list(), strict=True):
        assert {*part.keys()} == {*alone.keys(), "more"}
        assert {*before.keys()} == {*items[0].keys()}
        for name in {*alone.keys()} - {"num_nodes"}:
            torch.testing.assert_close(part[name], alone[name])
        assert len(part.more) == part.num_nodes


@every(dtype=[torch.float32, torch.bfloat16, torch.float64], normalization=NORMALIZATIONS)
def test_gradients_of_losses_in_the_dtype_of_the_weights_are_plain(normalization, dtype):
    """Pairs are solved in float64, and the round-off of a coarser loss is not taken for one that needs a basis."""
    edges = edges_of(cycle(6))
    weight = torch.ones(edges.shape[1], dtype=dtype, requires_grad=True)
    found = tl.laplacian_positional_encoding(edges, 6, 5, weight, normalization=normalization)
    (found.vectors[:, :4].square() * torch.arange(1, 7)[:, None]).sum().backward()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("solve", [None, Eigh()], ids=["default", "Eigh"])
def test_more_columns_than_any_graph_has_nodes_beside_tiny_degrees(solve):
    """Lacking columns are zero, also where tiny degrees make D^-½ inaccurate."""
    affinity = path(6)
    affinity[4, 5] = affinity[5, 4] = 1e-14
    edge_index, batch, weight = joined([affinity, cycle(5)])
    found = tl.laplacian_positional_encoding(edge_index, batch, 9, weight, normalization="random_walk", solve=solve)
    assert found.values.isfinite().sum(1).tolist() == [5, 4]
    assert not found.vectors[:, 5:].any()
    for first, last, a in ((0, 6, affinity), (6, 11, cycle(5))):
        y, value = found.vectors[first:last, : last - first - 1], found.values[int(first > 0), : last - first - 1]
        walk = a / a.sum(1, keepdim=True)
        torch.testing.assert_close(y - walk @ y, y * value, atol=1e-9, rtol=1e-12)


class TestMagneticTransform:
    @pytest.fixture
    def flows(self, pyg):
        """Directed graphs: a flow around each ring, a path of arcs in both directions, and nodes without arcs."""
        sizes = [3, 5, 20, 60]
        rings = [torch.stack([torch.arange(n), torch.arange(n).roll(-1)]) for n in sizes]
        line = torch.tensor([[0, 2, 2, 3, 5, 5, 6, 8], [1, 1, 3, 4, 4, 6, 7, 7]])
        edges = [*rings, line, torch.zeros(2, 0, dtype=torch.int64)]
        return [pyg.data.Data(edge_index=e, num_nodes=n) for e, n in zip(edges, [*sizes, 9, 2], strict=True)]

    def test_columns_are_real_and_imaginary_parts_of_each_charge(self, flows):
        transform = AddMagneticPE(3, "pe", q=[0.1, 0.25], eigenvalues="values")
        for data in flows[:-1]:
            found = transform(data)
            graph = tl.DirectedGraph.from_edge_index(data.edge_index, num_nodes=data.num_nodes)
            pairs = tl.MagneticLaplacian(graph, [0.1, 0.25]).eigenpairs(3)
            expected = torch.cat([torch.cat([y.real, y.imag], 1) for y in pairs.vectors], 1)
            torch.testing.assert_close(found.pe, expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(found["values"], pairs.values.reshape(1, 6))

    @pytest.mark.filterwarnings("ignore:.*isolated")
    def test_columns_that_a_graph_lacks_are_zero(self, flows):
        found = AddMagneticPE(4, "pe", q=0.2, eigenvalues="values")(flows)
        assert not found[0].pe[:, 3].any()  # a ring of three nodes has three vectors
        assert found[0]["values"][0, 3].isinf()
        assert not found[-1].pe.any()

    def test_weights_have_gradients_and_their_dtype(self, pyg):
        weight = torch.rand(12, dtype=torch.float64, requires_grad=True)
        edges = torch.stack([torch.arange(12), torch.arange(12).roll(-1)])
        found = AddMagneticPE(2, None, q=0.2)(pyg.data.Data(edge_index=edges, edge_weight=weight, num_nodes=12))
        assert found.x.dtype == torch.float64
        found.x.square().square().sum().backward()
        assert weight.grad.abs().max() > 1e-3
