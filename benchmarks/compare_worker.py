"""Runs rows of `benchmarks.compare` with the `torch_lapeig` of one checkout, asked for on standard input.

Names and arguments are those that both versions know. Graphs and data come from the checkout's own `benchmarks`.
"""

import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import scipy
import torch
from sklearn.datasets import load_digits, make_swiss_roll
from torch import Tensor

Call = Callable[[], Any]
SHORTEST = 0.05  # seconds that are timed at least


def lapeig(room: str = "") -> Any:
    """Return the package, or one of its rooms; the process that asks for rows does not need it."""
    return importlib.import_module(f"torch_lapeig{room}")


def graphs() -> Any:
    """Return the module of the benchmarks' graphs and data; MNIST's folder is named by TORCH_LAPEIG_DATA."""
    return importlib.import_module("benchmarks.graphs")


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def derived(given: Tensor, loss: Callable[[Tensor], Tensor]) -> Call:
    """Take the gradient of a loss back to a tensor."""

    def step() -> Any:
        leaf = given.clone().requires_grad_()
        loss(leaf).backward()
        return leaf.grad

    return step


def mnist() -> Tensor:
    return torch.from_numpy(graphs().mnist_points())


def roll(n: int) -> Tensor:
    return torch.from_numpy(make_swiss_roll(n, random_state=0)[0])


def layer(*shape: int) -> Call:
    """Embed sets of points, and take the gradient of a loss back to them."""
    module = lapeig().LaplacianEigenmaps(8, lapeig().KNN(10, "union"), lapeig().HeatKernel())
    return derived(normal(*shape, dtype=torch.float32), lambda x: module(x).square().square().sum())


def embed(points: Callable[[], Tensor]) -> Call:
    return partial(lapeig().LaplacianEigenmaps(10, lapeig().KNN(10)), points())


def family(name: str) -> Call:
    """Solve for four pairs of a graph of the atlas."""
    graph = importlib.import_module("benchmarks.atlas.families").graph_of(name, 20_000)
    laplacian = lapeig().Laplacian(graph)
    return lambda: lapeig().eigenpairs(laplacian, 4).values


def both(pairs: Any) -> Tensor:
    """Return a loss of vectors and values."""
    loss: Tensor = pairs.vectors.square().square().sum() + pairs.values.sum()
    return loss


def backward() -> Call:
    """Solve for ten pairs of a roll, and take the gradient of a loss back to its weights."""
    given = graphs().swiss_roll(20_000, 10, heat=True)
    return derived(given.weight, lambda w: both(lapeig().eigenpairs(lapeig().Laplacian(given.with_weight(w)), 10)))


def dense(*shape: int, k: int, has_gradient: bool = False) -> Call:
    """Solve for k pairs of all-pairs kernels of clouds ``(B, N, D)``, with the gradient in their weights if asked."""
    x = normal(*shape)
    weight = torch.exp(-torch.cdist(x, x).square())
    weight = (weight + weight.mT) / 2
    weight.diagonal(dim1=-2, dim2=-1).zero_()

    def pairs(weight: Tensor) -> Any:
        return lapeig().eigenpairs(lapeig().Laplacian(lapeig().Graph.from_dense(weight)), k)

    if has_gradient:
        return derived(weight, lambda leaf: pairs(leaf).vectors.square().square().sum())
    return lambda: pairs(weight.clone()).values


def pencil() -> Call:
    """Solve for eight pairs of a sparse random matrix of 5,000 nodes with a tridiagonal mass."""
    n, random = 5000, numpy.random.default_rng(0)
    a = scipy.sparse.random(n, n, 4 / n, random_state=0)
    a = ((a + a.T) / 2 + scipy.sparse.diags(random.normal(0, 3, n))).tocsr()
    sides = numpy.full(n - 1, 1 / 6)
    mass = scipy.sparse.diags([sides, numpy.full(n, 4 / 6), sides], [-1, 0, 1]).tocsc()
    return lambda: lapeig().eigenpairs(a, 8, mass=mass).values


def all_pairs(*shape: int) -> Call:
    """Compute all pairs of symmetric matrices, and the gradient of a loss back to them."""
    a = normal(*shape)
    return derived(a + a.mT, lambda leaf: both(lapeig().eigh(leaf)))


def spreading() -> Call:
    """Spread ten labels a class over MNIST's test images."""
    x = mnist()
    labels = torch.full((len(x),), -1)
    labels[:100] = torch.arange(100) % 10
    return partial(lapeig().LabelSpreading(lapeig().KNN(10)), x, labels)


def search(n: int, d: int, k: int) -> Call:
    """Search the neighbours of clusters that overlap."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, d, generator=generator)
    x = centres[torch.arange(n) % 10] / 2 + torch.randn(n, d, generator=generator)
    return lambda: lapeig(".graph").nearest_neighbors(x, k).squared_distances


FAMILIES = (
    *("grid", "swiss roll", "blobs", "power law", "disc mesh", "cube of 5 dimensions"),
    *("expander", "small world", "cube grid", "torus grid", "random tree"),
)
ROWS: dict[str, Callable[[], Call]] = {
    "layer 500 × 3, forward and backward": partial(layer, 500, 3),
    "layer 32 × 256 × 16, forward and backward": partial(layer, 32, 256, 16),
    "layer 16 × 512 × 16, forward and backward": partial(layer, 16, 512, 16),
    "digits to 10 columns": partial(embed, lambda: torch.from_numpy(load_digits().data)),
    "MNIST to 10 columns": partial(embed, mnist),
    "swiss roll of 20,000 to 10 columns": partial(embed, partial(roll, 20_000)),
    "swiss roll of 100,000 to 10 columns": partial(embed, partial(roll, 100_000)),
    **{f"20,000 nodes, {name}": partial(family, name) for name in FAMILIES},
    "15 neighbours of 70,000 × 50": partial(search, 70_000, 50, 15),
    "eigenpairs and backward, swiss roll of 20,000": backward,
    "label spreading, MNIST": spreading,
    "pencil of 5,000 nodes whose factors fill in": pencil,
    "dense batch of 5 × 576, 4 pairs": partial(dense, 5, 576, 5, k=4),
    "dense batch of 16 × 200, 4 pairs": partial(dense, 16, 200, 5, k=4),
    "dense graph of 1,200, 8 pairs with gradients": partial(dense, 1200, 5, k=8, has_gradient=True),
    "eigh of one 3 × 3, forward and backward": partial(all_pairs, 3, 3),
    "eigh of 1,024 of 30 × 30, forward and backward": partial(all_pairs, 1024, 30, 30),
}


def main() -> None:
    """Print for each line {"row": …} the mean seconds of a call, its result, and whether loops are compiled."""
    # Seconds of the processor with one thread, elapsed ones with more.
    warnings.simplefilter("ignore")
    threads = int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter  # the former does not see the machine's other work
    made: dict[str, tuple[Call, int]] = {}
    print(json.dumps({"torch_lapeig": lapeig().__file__}), flush=True)
    for line in sys.stdin:
        row = json.loads(line)["row"]
        if row not in made:
            call = ROWS[row]()
            call()
            start = clock()
            call()
            made[row] = call, max(1, round(SHORTEST / (clock() - start)))
        call, calls = made[row]
        start = clock()
        for _ in range(calls):
            result = call()
        seconds = (clock() - start) / calls
        answer = {"seconds": seconds, "result": float(result.detach().double().norm())}
        print(json.dumps({**answer, "is_compiled": "kernels.so" in Path("/proc/self/maps").read_text()}), flush=True)


if __name__ == "__main__":
    main()
