"""Launches of kernels and waits of the host on a pretended accelerator, against budgets.

Claims: LOBPCG waits at most 4 times an iteration, a Chebyshev filter once, conjugate gradients once in 4 steps, a
search 10 times in all, the forward of a layer 16 times, and a layer of a small dense batch 4 times with its backward.
Counted (`pretended`), not timed. A launch takes the host about 6 µs and a wait 30 µs.
"""

import argparse
import itertools
import statistics
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import graphs, pretended
from benchmarks.record import Record
from experiments.tables import Table
from torch_lapeig import KNN, HeatKernel, Laplacian, LaplacianEigenmaps, eigenpairs, knn_graph
from torch_lapeig.eigen import ChebyshevSubspace, Lobpcg, SmoothedAggregation

LAUNCH, WAIT = 6e-3, 30e-3  # ms


class Work(NamedTuple):
    """A piece of work: launches and waits of each of its units, and the waits that a unit may have."""

    name: str
    launches: float
    waits: float
    budget: float | None = None

    @property
    def is_within(self) -> bool:
        return self.budget is None or self.waits <= self.budget + 1e-9


def once(name: str, seen: pretended.Seen, call: Callable[[], Any], budget: float | None = None) -> tuple[Work, Any]:
    """Return the cost of one call, and its result."""
    before = seen.launches, seen.waits
    result = call()
    return Work(name, seen.launches - before[0], seen.waits - before[1], budget), result


def each(name: str, seen: pretended.Seen, call: Callable[[Callable[..., None]], Any], budget: float) -> Work:
    """Return the median cost of a step between two reports of progress; the last step is checked twice."""
    reports: list[tuple[int, int]] = []
    call(lambda *_: reports.append((seen.launches, seen.waits)))
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(reports)]
    launches, waits = (statistics.median(counts) for counts in zip(*steps, strict=True))
    return Work(name, launches, waits, budget)


def of_layer(seen: pretended.Seen, shape: tuple[int, int, int], budgets: tuple[int, int | None]) -> Iterator[Work]:
    """Yield forward and backward of a layer in the middle of a network."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(pretended.NAME).requires_grad_()
    layer = LaplacianEigenmaps(8, KNN(8))
    name = " × ".join(map(str, shape))
    forward, y = once(f"layer {name}, forward", seen, lambda: layer(x), budgets[0])
    yield forward
    yield once(f"layer {name}, backward", seen, lambda: y.square().mean().backward(), budgets[1])[0]


def of_graph(seen: pretended.Seen, n: int) -> Iterator[Work]:
    """Yield a search and the weights of its edges."""
    x = torch.randn(n, 50, generator=torch.Generator().manual_seed(0)).to(pretended.NAME)
    search, graph = once(f"search, {n:,} × 50, 15 neighbours", seen, lambda: knn_graph(x, 15), 10)
    yield search
    yield once("weights, heat kernel of median bandwidth", seen, lambda: HeatKernel("median")(x, graph))[0]


class Counting:
    """Multigrid that counts its cycles."""

    def __init__(self) -> None:
        self.cycles = 0

    def __call__(self, operator: Any) -> Callable[[Tensor], Tensor]:
        inverse = SmoothedAggregation()(operator)
        assert inverse is not None

        def cycle(r: Tensor) -> Tensor:
            self.cycles += 1
            return inverse(r)

        return cycle


def of_roll(seen: pretended.Seen, n: int) -> Iterator[Work]:
    """Yield multigrid, LOBPCG and the conjugate gradients of its backward."""
    graph = graphs.swiss_roll(n, 10).to(torch.device(pretended.NAME, 0))
    graph = graph.with_weight(graph.weight.detach().requires_grad_())
    laplacian = Laplacian(graph)
    symmetric = laplacian.symmetric
    building, inverse = once(f"multigrid of {n:,} nodes", seen, lambda: SmoothedAggregation()(symmetric))
    yield building
    r = torch.ones(n, 14, dtype=torch.float64, device=pretended.NAME)
    inverse(r)  # works out the coarsest inverse
    yield once("V-cycle", seen, lambda: inverse(r))[0]
    yield each("LOBPCG, an iteration", seen, lambda report: eigenpairs(laplacian, 10, Lobpcg(), progress=report), 4)
    costs = []
    for tolerance in (1e-3, 1e-12):
        counting = Counting()
        pairs = eigenpairs(Laplacian(graph), 10, Lobpcg(preconditioner=counting), backward_tolerance=tolerance)
        counting.cycles = 0
        loss = pairs.vectors[:, 1:].pow(4).sum() * n
        costs.append((once("", seen, loss.backward)[0], counting.cycles))
    (loose, few), (tight, many) = costs
    steps = max(many - few, 1)
    yield Work("CG, 4 steps", 4 * (tight.launches - loose.launches) / steps, 4 * (tight.waits - loose.waits) / steps, 1)


def of_cube(seen: pretended.Seen, n: int) -> Iterator[Work]:
    """Yield filters on points that fill eight dimensions."""
    x = torch.rand(n, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    laplacian = Laplacian(knn_graph(x, 15).to(torch.device(pretended.NAME, 0)))

    def solve(report: Callable[..., None]) -> Any:
        return eigenpairs(laplacian, 6, ChebyshevSubspace(), progress=report, tolerance=1e-10)

    yield each("Chebyshev, a filter", seen, solve, 1)


def counted(quick: bool) -> Iterator[Work]:
    n = 1500 if quick else 20_000
    with pretended.device() as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from of_layer(seen, (8, 64, 8), (3, 1))
        yield from of_layer(seen, (32, 256, 16), (16, None))  # by filters, each of which waits once
        yield from of_graph(seen, n)
        yield from of_roll(seen, n)
        yield from of_cube(seen, n)


def run(record: Record, options: argparse.Namespace) -> None:
    columns = {"": "", "launches": ",.0f", "waits": ".1f", "budget": ".0f", "holds": "", "host, ms": ".2f"}
    table = Table("Launches and waits on an accelerator", columns)
    for work in counted(options.quick):
        holds = "–" if work.budget is None else "yes" if work.is_within else "no"
        table.add(work.name, work.launches, work.waits, work.budget, holds, LAUNCH * work.launches + WAIT * work.waits)
    record.show(table)
