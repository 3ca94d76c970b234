"""Broken parts of graphs: each kind with its error, and random faults.

Valid input with random faults either is refused by an error that names the argument, or gives a sound graph.
Compiled loops go wherever indices say, so that a fault that is let in may corrupt memory.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from combined import OwnExtendingRule

from problems import points, saved_and_loaded, sheet
from torch_lapeig import Graph, HeatKernel, LaplacianEigenmaps, knn_graph
from torch_lapeig.graph import SparsePattern

NO_NODES = [-1, -(2**31), 2**31 - 1, 2**31, 2**40, -(2**62), 2**63 - 1]


def one_of(rng, *faults):
    """Return the result of one of some functions."""
    return faults[rng.integers(len(faults))]()


def broken_indices(t, rng):
    """Integers with a fault: out of range, out of order, one too few or too many, of another kind."""
    n, place = len(t), torch.tensor([rng.integers(len(t))])
    return one_of(
        rng,
        lambda: t.long().index_fill(0, place, int(rng.choice(NO_NODES))),
        lambda: t.index_add(0, place, torch.ones(1, dtype=t.dtype), alpha=int(rng.integers(1, 50))),
        lambda: t.index_copy(0, place, t[rng.integers(n, size=1)]),
        lambda: t[torch.from_numpy(rng.permutation(n))],
        lambda: t[:-1],
        lambda: torch.cat([t, t[-1:]]),
        lambda: t.to([torch.uint8, torch.float32, torch.int16, torch.bool][rng.integers(4)]),
        lambda: t[None],
        lambda: [t.tolist(), t.numpy(), t.to("meta"), t.to_sparse()][rng.integers(4)],
    )


def broken_values(t, rng):
    """Floats with a fault: not finite, negative, on one side only, of another shape or kind."""
    t, place = t.detach().clone(), rng.integers(t.numel())
    change = torch.zeros(t.numel(), dtype=t.dtype)
    return one_of(
        rng,
        lambda: t + change.index_fill(0, torch.tensor(place), float(rng.choice([np.nan, np.inf, -9.0]))).view_as(t),
        lambda: t + change.index_fill(0, torch.tensor(place), 1).view_as(t),
        lambda: t[:-1],
        lambda: torch.cat([t, t[:1]]),
        lambda: t[..., None],
        lambda: t.to([torch.int64, torch.float16, torch.complex64, torch.float32][rng.integers(4)]),
        lambda: [t.to("meta"), t.to_sparse(), t.numpy(), None][rng.integers(4)],
        lambda: t.expand(2, *t.shape),
    )


def broken_shape(shape, rng):
    others = [(shape[0] + 1, *shape[1:]), (shape[0] - 1, *shape[1:]), (-shape[0],), (2**40,), (2**32, 2**32), ()]
    others += [(float(shape[0]),), shape[0], (*shape, 1, 1), None]
    return others[rng.integers(len(others))]


def example(rng):
    x = points(12, 3, batch=[None, 2][rng.integers(2)], seed=int(rng.integers(100)))
    return x, HeatKernel(2.0)(x, knn_graph(x, 3))


def pattern(rng):
    _, graph = example(rng)
    p, keep = graph.pattern, torch.from_numpy(rng.random(len(graph.weight)) < 0.95)
    given = one_of(
        rng,
        lambda: (broken_indices(p.row, rng), p.col, p.shape),
        lambda: (p.row, broken_indices(p.col, rng), p.shape),
        lambda: (p.row, p.col, broken_shape(p.shape, rng)),
        lambda: (p.row[keep], p.col[keep], p.shape),
    )
    made = SparsePattern(*given)
    return Graph(made, graph.weight.new_ones(len(made)))


def parts(rng):
    _, graph = example(rng)
    ones = graph.weight.new_ones(graph.shape)
    name = str(rng.choice(["weight", "mask", "similarity"]))
    return replace(graph, **{name: broken_values(graph.weight if name == "weight" else ones, rng)})


def from_edge_index(rng):
    _, graph = example(rng)
    edges, weight = graph.edge_index, graph.weight
    batch = torch.arange(graph.pattern.total) // graph.num_nodes
    of_batch = batch if rng.integers(2) else None

    def broken_edges():
        found = broken_indices(edges.flatten(), rng)
        return found.reshape(2, -1) if isinstance(found, torch.Tensor) and found.numel() % 2 == 0 else found

    given = one_of(
        rng,
        lambda: (broken_edges(), weight, None, of_batch),
        lambda: (edges, broken_values(weight, rng), None, of_batch),
        lambda: (edges, weight, None, broken_indices(batch, rng)),
        lambda: (edges, weight, [3, -1, 2**40, 2.5][rng.integers(4)], of_batch),
    )
    return Graph.from_edge_index(*given)


def from_scipy(rng):
    matrix = knn_graph(points(12, 3), 3).to_scipy().asformat(["csr", "csc", "coo"][rng.integers(3)])
    names = ("row", "col") if matrix.format == "coo" else ("indices", "indptr")
    numbers = getattr(matrix, names[rng.integers(2)])  # in place, as SciPy looks at new ones only where they are set
    numbers[rng.integers(len(numbers))] = int(rng.choice([-5, 0, 10**6]))
    return Graph.from_scipy(matrix)


def subgraph(rng):
    _, graph = example(rng)
    graph = graph if rng.integers(2) else Graph.from_dense(graph.to_dense())
    return graph.subgraph(broken_indices(torch.from_numpy(rng.permutation(graph.num_nodes)[:6]), rng))


def from_a_file(rng):
    _, graph = example(rng)
    p = graph.pattern
    one_of(
        rng,
        lambda: setattr(p, "row", broken_indices(p.row, rng)),
        lambda: setattr(p, "col", broken_indices(p.col, rng)),
        lambda: setattr(p, "shape", broken_shape(p.shape, rng)),
        lambda: vars(graph).update(weight=broken_values(graph.weight, rng)),
    )
    return saved_and_loaded(graph, weights_only=False)  # whose errors are not wrapped


WAYS = {
    "pattern": (pattern, "row|col|shape"),
    "parts": (parts, "weight|mask|similarity"),
    "from_edge_index": (from_edge_index, "edge_index|edge_weight|batch|num_nodes"),
    "from_scipy": (from_scipy, "affinity"),
    "subgraph": (subgraph, "nodes"),
    "file": (from_a_file, "row|col|shape|weight"),
}


def check(graph):
    """A sound graph has symmetric weights, and products by its rows are products with their matrix."""
    dense, n = graph.pattern.to_dense(graph.weight), graph.num_nodes
    torch.testing.assert_close(dense, dense.mT)
    assert (dense >= 0).all()
    y = torch.linspace(-1, 1, dense.shape[:-1].numel() * 2, dtype=dense.dtype).reshape(*dense.shape[:-1], 2)
    torch.testing.assert_close(graph.pattern.matmul(graph.weight, y), dense @ y)
    apart = (y[..., :, None, :] - y[..., None, :, :]).square().sum(-1)
    torch.testing.assert_close(graph.pattern.smoothness(graph.weight, y), (dense * apart).sum() / 2)
    assert graph.connected_components().max() < max(n, 1)


@pytest.mark.filterwarnings("ignore:summed .* copies:torch_lapeig.GraphWarning")
@pytest.mark.parametrize(("make", "names"), WAYS.values(), ids=WAYS)
def test_a_fault_is_refused_by_name_or_harmless(make, names):
    errors = []
    for seed in range(60):
        try:
            graph = make(np.random.default_rng(seed))
        except (TypeError, ValueError, IndexError) as error:
            errors.append(str(error))
        else:
            check(graph)
    assert len(errors) > 20
    assert all(re.search(names, error) for error in errors), errors


def test_edges_of_a_caller_are_copied():
    """Compiled loops do not read what the caller writes to an index afterwards."""
    row, col = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]], dtype=torch.int32)
    kept = SparsePattern(row, col, (3,))
    row[0], col[0] = 2**30, -1
    assert kept.keys().tolist() == [1, 3, 5, 7]


# What an extension of new points gets wrong, its new parts, and what the error says.
FAULTS = {
    "query out of range": (lambda e: {"query": e.query + 5}, "query of the Extension"),
    "negative point": (lambda e: {"point": e.point - 3}, "point of the Extension"),
    "same out of range": (lambda e: {"same": e.same + 1000}, "same of the Extension"),
    "same below −1": (lambda e: {"same": e.same - 1}, "same of the Extension"),
    "twice": (lambda e: {name: getattr(e, name).repeat(2) for name in EDGES}, "must be distinct"),
    "lengths": (lambda e: {"connectivity": e.connectivity[1:]}, "query, point and connectivity of the Extension"),
    "integers": (lambda e: {"connectivity": e.connectivity.long()}, "connectivity of the Extension"),
    "same of another length": (lambda e: {"same": e.same[1:]}, "same of the Extension must have shape"),
}
EDGES = ("query", "point", "connectivity")


@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS)
def test_edges_of_new_points_by_a_rule_of_the_users_own_are_checked(change, message):
    class Rule(OwnExtendingRule):
        def extend(self, queries, x, state):
            found = super().extend(queries, x, state)
            return found._replace(**change(found))

    x = sheet(30)
    module = LaplacianEigenmaps(2, Rule()).fit(x)
    with pytest.raises((TypeError, ValueError), match=message):
        module.transform(x[:5] + 0.01)
