"""Numbers that count nothing there is: a clear error, not an allocation, an overflow or a hang. See `test_errors`."""

import pytest
import torch

from problems import points
from torch_lapeig import (
    KNN,
    MDS,
    Graph,
    HarmonicFunction,
    HeatKernel,
    LaplacianEigenmaps,
    SpectralClustering,
    laplacian_positional_encoding,
    normalized_cut,
    pad_batch,
)
from torch_lapeig.eigen import ShiftInvert

X, NAMES, PAIR = points(10, 2), torch.arange(10) + 10**15, torch.tensor([[0, 1], [1, 0]])
CASES = {
    "k = 10³⁰": (lambda: KNN(10**30), "k must be at most 2147483647, got 10{30}"),
    "k of 400 digits": (lambda: KNN(10**400), "k must be at most 2147483647, got an integer of 1329 bits"),
    "columns": (lambda: MDS(2**40)(X[None]), "n_components must be at most 1048576, got 1099511627776"),
    "starts": (lambda: SpectralClustering(2, n_init=10**12), "n_init must be at most 2147483647, got 10{12}"),
    "products": (lambda: ShiftInvert(max_products=10**30), "max_products must be at most 2147483647, got 10{30}"),
    "seed": (lambda: ShiftInvert(seed=2**32), "seed must be at most 4294967295, got 4294967296"),
    "labels": (
        lambda: HarmonicFunction(KNN(3))(X, NAMES),
        r"labels must be counted from 0 and smaller than 1048576, got 10+9; .*unique\(return_inverse=True\)",
    ),
    "classes": (lambda: HarmonicFunction(KNN(3), n_classes=2**40), "n_classes must be at most 1048576"),
    "clusters": (lambda: normalized_cut(NAMES, KNN(3)(X)), "labels must be counted from 0"),
    "nodes": (
        lambda: Graph.from_edge_index(2**40 * PAIR),
        "edge_index must hold the numbers of nodes, counted from 0, got 1099511627776 among 2 edges; .* num_nodes",
    ),
    "graphs": (lambda: pad_batch(X, NAMES), "batch must count the graphs from 0, got 1000000000000009 for 10 nodes"),
    "num_nodes": (lambda: Graph.from_edge_index(PAIR, num_nodes=2**31), "num_nodes must be at most 2147483647"),
    "num_graphs": (
        lambda: Graph.from_edge_index(PAIR, batch=torch.tensor([0, 0]), num_graphs=2**40),
        "num_graphs must be at most 1048578, got 1099511627776",
    ),
    "nodes of encodings": (lambda: laplacian_positional_encoding(PAIR, 10**30, 2), "nodes must be at most 2147483647"),
    "number of 400 digits": (lambda: HeatKernel(10**400), "t must be positive and finite, got an integer of 1329 bits"),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_that_count_nothing(case):
    call, message = CASES[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_integers_beyond_int64_are_numbers():
    """Where a number need not be whole an integer is its float: no overflow in torch."""
    assert torch.equal(HeatKernel(10**30)(X, KNN(3)(X)).weight, HeatKernel(1e30)(X, KNN(3)(X)).weight)
    columns = LaplacianEigenmaps(2, KNN(9), HeatKernel(1e9), diffusion=10**30)(X)
    assert torch.equal(columns, torch.zeros_like(columns))  # eigenvalues near 1.1, and |1 − λ| to such a power


@pytest.mark.parametrize("memory", [torch.ones(3), torch.tensor(1.0), [1.0], "1", True], ids=str)
def test_memory_is_a_number(memory):
    with pytest.raises(TypeError, match="memory must be a number, got"):
        ShiftInvert(memory=memory)
