"""Eigenmaps by landmarks: time and accuracy beside the exact graph, and a stream of ten million points.

Claims: of MNIST's test set, 1000 landmarks and 10 columns label at least 92 % of held-out images by their 5 nearest
neighbours, in at most 0.4 times the time of the exact graph; 10⁷ × 50 points take at most 10 minutes on two cores and
8 GiB.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.memory import growth
from benchmarks.record import Record
from benchmarks.timing import in_turn, median, ratio
from experiments.data import mnist_test
from experiments.tables import Table
from torch_lapeig import KNN, Landmarks, LaplacianEigenmaps
from torch_lapeig.graph import nearest_neighbors

EXACT = "exact, KNN(10)"
BLOCK = 100_000


def accuracy(y: Tensor, labels: Tensor) -> float:
    """Return the share of points whose label most of their 5 nearest points of the other half have."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    known, asked = order.split(len(y) // 2)[:2]
    nearest = nearest_neighbors(y[known], 5, y[asked]).indices
    votes = torch.nn.functional.one_hot(labels[known][nearest]).sum(1)
    return float((votes.argmax(1) == labels[asked]).double().mean())


def shared(y: Tensor, exact: Tensor) -> float:
    """Return the mean squared cosine of the angles between the spaces of two sets of columns: 1 for one space."""
    bases = [torch.linalg.qr(columns.double())[0] for columns in (y, exact)]
    return float((bases[0].mT @ bases[1]).square().sum() / y.shape[1])


def against_exact(x: Tensor, labels: Tensor | None, k: int, rules: dict[str, object], title: str, rounds: int) -> Table:
    """Return times, accuracy and the space in common with the exact columns."""
    calls = {name: lambda rule=rule: LaplacianEigenmaps(k, rule)(x) for name, rule in rules.items()}
    seconds = in_turn(calls, rounds)
    found = {name: call() for name, call in calls.items()}
    columns = {"": "", "s": ".2f", "time / exact": ".2f", "5-NN": ".3f", "space in common": ".3f"}
    table = Table(f"{title}, {k}-D, {torch.get_num_threads()} threads, median of {rounds}", columns)
    for name, y in found.items():
        share = None if labels is None else accuracy(y, labels)
        table.add(name, median(seconds[name]), ratio(seconds[name], seconds[EXACT]), share, shared(y, found[EXACT]))
    return table


def rules_of(sizes: tuple[int, ...]) -> dict[str, object]:
    """Return the rules that are compared."""
    found: dict[str, object] = {EXACT: KNN(10)}
    for m in sizes:
        for choose in ("kmeans", "farthest", "random"):
            found[f"{m} landmarks, {choose}"] = Landmarks(m, choose=choose)
    return found


class Rolls:
    """Blocks of a two-dimensional sheet in 50 dimensions, rolled up and with noise, made anew at each reading."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.turn = torch.linalg.qr(torch.randn(50, 50, generator=torch.Generator().manual_seed(1)))[0][:3]

    def __len__(self) -> int:
        return -(-self.n // BLOCK)

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(len(self)):
            generator = torch.Generator().manual_seed(number)
            u, v = torch.rand(2, min(BLOCK, self.n - number * BLOCK), generator=generator)
            t = 4.7 + 9.4 * u
            sheet = torch.stack([t * t.cos(), 20 * v, t * t.sin()], 1) @ self.turn
            yield sheet + 0.05 * torch.randn(len(u), 50, generator=generator)


def stream(n: int, m: int) -> Table:
    """Return elapsed time and memory of one stream, and the smoothness of the answer along the sheet."""
    model, points = LaplacianEigenmaps(10, Landmarks(m)), Rolls(n)
    seconds = [0.0]

    def fit() -> None:
        begin = time.perf_counter()
        model.fit_stream(points)
        seconds[0] = time.perf_counter() - begin

    used = growth(fit)
    table = Table(
        f"Stream of {n:,} × 50 points in blocks of {BLOCK:,}, {m} landmarks, 10-D, making of the points included",
        {"": "", "s elapsed": ".0f", "memory above the input, MiB": ".0f", "largest residual": ".1e"},
    )
    table.add(f"fit_stream, {torch.get_num_threads()} threads", seconds[0], used, float(model.residuals_.max()))
    return table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark alone."""
    parser.add_argument("--points", type=int, default=10**7, help="points of the stream")
    parser.add_argument("--rounds", type=int, default=3)


def run(record: Record, options: argparse.Namespace) -> None:
    """Measure and show."""
    rounds, sizes = (1, (200,)) if options.quick else (options.rounds, (500, 1000, 2000))
    roll = torch.cat(list(Rolls(2000 if options.quick else 20_000)))
    record.show(against_exact(roll, None, 10, rules_of(sizes), f"Rolled sheet, {len(roll):,} × 50", rounds))
    try:
        images, labels = mnist_test(options.data)
    except FileNotFoundError as error:
        record.show(str(error))
    else:
        record.show(against_exact(images.float(), labels, 10, rules_of(sizes), "MNIST's test set", rounds))
    record.show(stream(100_000 if options.quick else options.points, 200 if options.quick else 2000))
