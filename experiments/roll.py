"""A swiss roll in many dimensions, embedded by one process or by several that share its points."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch import Tensor

from experiments.runs import Refusal, Run, table
from torch_lapeig import KNN, LaplacianEigenmaps, Solve
from torch_lapeig.distributed import Ranks, Sharded

CHUNK = 10_000  # points drawn together: a rank draws its own chunks only
SHOWN = 6000  # points in the picture


def roll(
    out: Path = Path("runs/roll"),
    nodes: int = 200_000,
    dims: int = 10,
    neighbors: int = 10,
    components: int = 3,
    distributed: bool = False,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """A swiss roll by Laplacian eigenmaps on one process, or on all those that torchrun has started.

    Args:
        out: folder of metrics.json and the figure; the first process writes it.
        nodes: points, drawn in chunks of 10,000.
        dims: of the space that the roll lies in.
        neighbors: k of the graph.
        components: of the embedding.
        distributed: share the points among the processes: torchrun --nproc-per-node 2 -m experiments roll --distributed
        quick: 2000 points.
        fresh: start anew where the folder holds a run already.
    """
    if quick:
        nodes = min(nodes, 2000)
    arguments = locals()
    with processes(distributed) as ranks:
        run = Run(out, arguments) if ranks.rank == 0 else None
        found = measured(ranks, nodes, dims, neighbors, components)
        everyone = every_rank(ranks, found.pop("own"))
        rows, along = found.pop("rows"), found.pop("along")
        if run is not None:
            run.figure("roll", figure(rows, along))
            run.finish(found | {"ranks": everyone}, ranks_table(everyone, found["seconds"]))


@contextmanager
def processes(distributed: bool) -> Iterator[Ranks]:
    """Yield the processes that share the points: those of torchrun, or this one alone."""
    if not distributed:
        yield Ranks.alone()
        return
    if "RANK" not in os.environ:
        raise Refusal(
            "--distributed is for processes that torchrun has started: torchrun --nproc-per-node 2 -m experiments roll "
            "--distributed"
        )
    dist.init_process_group("gloo")
    try:
        yield Ranks()
    finally:
        dist.destroy_process_group()


def drawn(nodes: int, dims: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Return this rank's points ``(n, dims)``, and the position of each along the roll."""
    turn = torch.randn(dims, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turn = torch.linalg.qr(turn)[0] if dims >= 3 else turn
    points, along = [torch.zeros(0, dims, dtype=torch.float64)], [torch.zeros(0, dtype=torch.float64)]
    for chunk in range(ranks.rank, -(-nodes // CHUNK), ranks.world):
        g = torch.Generator().manual_seed(1000 + chunk)
        u = torch.rand(2, min(CHUNK, nodes - chunk * CHUNK), generator=g, dtype=torch.float64)
        angle = 1.5 * torch.pi * (1 + 2 * u[0])
        flat = torch.stack([angle * angle.cos(), 21 * u[1], angle * angle.sin()], 1)
        points.append(flat @ turn.mT)
        along.append(angle)
    return torch.cat(points), torch.cat(along)


def measured(ranks: Ranks, nodes: int, dims: int, neighbors: int, components: int) -> dict[str, Any]:
    """Return the embedding of the roll, what it cost, and how well its first column follows the roll.

    The memory of a rank is that above the process with its points.
    """
    x, along = drawn(nodes, dims, ranks)

    def progress(iteration: int, residual: float, allowed: float) -> None:
        if ranks.rank == 0:
            print(f"iteration {iteration}: residual {residual:.1e}, goal {allowed:.1e}", flush=True)

    method = LaplacianEigenmaps(components, KNN(neighbors), solve=Solve(tolerance=1e-6, progress=progress))
    module = Sharded(method, ranks)
    before, start = peak_memory(), time.perf_counter()
    with torch.no_grad():
        found = module.embed(x)
    seconds = time.perf_counter() - start
    memory = peak_memory() - before
    # The first column of a strip is a cosine of the length along it, which grows as the angle's square, nearly.
    length = along.square()
    columns = torch.stack([found.embedding[:, 0].detach(), length], 1)
    moments = ranks.sum(torch.cat([columns.sum(0), (columns.mT @ columns).flatten(), columns.new_tensor([len(x)])]))
    mean, second = moments[:2] / moments[-1], moments[2:6].reshape(2, 2) / moments[-1]
    covariance = second - torch.outer(mean, mean)
    correlation = covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt()
    some = torch.arange(len(x)) % max(1, nodes // SHOWN) == 0
    return {
        "eigenvalues": found.eigenvalues.tolist(),
        "residual": float(found.residuals.max()),
        "correlation": abs(float(correlation)),
        "seconds": seconds,
        "own": {"points": len(x), "memory_mib": memory, "sent_mb": ranks.sent / 1e6, "collectives": ranks.calls},
        "rows": ranks.gather(found.embedding[some].detach()),
        "along": ranks.gather(along[some]),
    }


def peak_memory() -> float:
    """Return MiB of this process at its highest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def every_rank(ranks: Ranks, own: dict[str, float]) -> list[dict[str, float]]:
    """Return the measurements of each rank."""
    numbers = ranks.gather(torch.tensor([list(own.values())], dtype=torch.float64))
    return [dict(zip(own, row, strict=True)) for row in numbers.tolist()]


def ranks_table(everyone: list[dict[str, float]], seconds: float) -> Any:
    """Return one row for each process."""
    rows = [
        [str(rank), *(f"{value:,.0f}" for value in own.values()), f"{seconds:.1f}"] for rank, own in enumerate(everyone)
    ]
    names = ["rank", "points", "memory above start (MiB)", "sent (MB)", "collectives", "seconds"]
    return table("Processes", names, rows)


def figure(rows: Tensor, along: Tensor) -> Figure:
    """Return the first two columns, coloured by the angle along the roll."""
    drawing = Figure(figsize=(6, 4), layout="constrained")
    axes = drawing.subplots()
    second = rows[:, 1] if rows.shape[1] > 1 else torch.zeros_like(rows[:, 0])
    axes.scatter(rows[:, 0], second, c=along, s=2, cmap="viridis")
    axes.set(xlabel="first column", ylabel="second column", xticks=[], yticks=[])
    return drawing
