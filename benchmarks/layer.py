"""The layer inside a network: points to eigenvectors and back, against `cdist` and `eigh` with their own backward.

Claims: forward and backward at 32 × 256 × 16 and 16 × 512 × 16, k = 8, at least 3 times as fast on two threads, with a
lower peak of memory; small sets in no more than 1.1 of the time of plain torch, a single one of 64 points in twice.
The first peer embeds the same k-nearest-neighbour graph, so that gradients can be compared; the second saves itself the
search and joins all points. Random training steps are for the tests and the campaign.
"""

import argparse
import functools
import multiprocessing
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu import by_eigh
from benchmarks.record import Record
from benchmarks.timing import in_turn, ratio
from benchmarks.timing import median as middle
from experiments.memory import growth
from experiments.tables import Table
from torch_lapeig import KNN, LaplacianEigenmaps

SHAPES, K, NEIGHBORS = ((32, 256, 16), (16, 512, 16)), 8, 10
SMALL = [(1, 32), (1, 64), (8, 64), (64, 32), (256, 32), (64, 64), (64, 128), (1, 200), (1, 300), (1, 400), (1, 500)]
SMALL += [(1, 90), (12, 48), (40, 100), (1, 260)]
Shape = tuple[int, int, int]
OURS, SAME, ALL = "torch_lapeig", "cdist, topk, eigh: the same graph", "cdist, eigh: all points joined"


SAME_GRAPH = functools.partial(by_eigh, k=K, neighbors=NEIGHBORS)


def candidates() -> dict[str, Callable[[Tensor], Tensor]]:
    all_points = functools.partial(by_eigh, k=K, neighbors=None)
    return {OURS: LaplacianEigenmaps(K, KNN(NEIGHBORS, "union")), SAME: SAME_GRAPH, ALL: all_points}


def points(shape: Shape, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(dtype)
    return x, torch.randn(*shape[:2], K, generator=generator).to(dtype)


def gradient(layer: Callable[[Tensor], Tensor], shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the gradient of a loss that does not depend on signs."""
    x, probe = points(shape, dtype)
    (layer(x.requires_grad_()).square() * probe).sum().backward()
    assert x.grad is not None
    return x.grad


def peak(name: str, shape: Shape) -> float:
    """Return MiB that a forward and backward adds to what a process has at its highest."""
    layer = candidates()[name]
    x = points(shape)[0][:1]
    layer(x.requires_grad_()).sum().backward()  # what is loaded on the first call
    return growth(lambda: gradient(layer, shape))


def speed(shape: Shape, rounds: int) -> Table:
    """Return times over ours, with the peak of memory and the error of the gradient."""
    layers = candidates()
    x = points(shape)[0]
    seconds = in_turn({name: functools.partial(gradient, layer, shape) for name, layer in layers.items()}, rounds)
    forward = in_turn({name: functools.partial(layer, x) for name, layer in layers.items()}, rounds)
    exact = gradient(SAME_GRAPH, shape, torch.float64)
    title = f"{' × '.join(map(str, shape))}, k = {K}, {torch.get_num_threads()} threads, median of {rounds}"
    columns = {"": "", "forward ms": ".0f", "forward + backward ms": ".0f", "time / torch_lapeig": ".2f"}
    table = Table(title, columns | {"peak MiB": ".0f", "error of the gradient": ".1e"})
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name, layer in layers.items():
            error = float((gradient(layer, shape) - exact).norm() / exact.norm())
            times = middle(forward[name], 1e3), middle(seconds[name], 1e3), ratio(seconds[name], seconds[OURS])
            table.add(name, *times, pool.apply(peak, (name, shape)), "another graph" if name == ALL else error)
    return table


def small(rounds: int) -> Table:
    """Return small sets, forward and backward, over the same graph by plain torch."""
    title = f"Small sets of 16 dimensions, k = {K}, {torch.get_num_threads()} threads, median of {rounds}"
    table = Table(title, {"": "", "torch_lapeig ms": ".2f", "plain torch ms": ".2f", "time / plain torch": ".2f"})
    layers = candidates()
    for sets, n in SMALL:
        calls = {name: functools.partial(gradient, layers[name], (sets, n, 16)) for name in (OURS, SAME)}
        seconds = in_turn(calls, rounds, max(1, 2000 // (sets * n)))
        own, plain = seconds[OURS], seconds[SAME]
        table.add(f"{sets} × {n}", middle(own, 1e3), middle(plain, 1e3), ratio(own, plain))
    return table


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=15, help="rounds of timing")


def run(record: Record, options: argparse.Namespace) -> None:
    rounds = 3 if options.quick else options.rounds
    record.show(*(speed(shape, rounds) for shape in SHAPES), small(rounds))
