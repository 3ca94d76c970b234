"""One graph on several processes of this machine: end to end, phase by phase, with memory and messages.

    python -m benchmarks.distributed                   # rolls of 10⁵, 4·10⁵ and 10⁶ points, blobs; 1 and 2 ranks
    python -m benchmarks.distributed --quick           # of 2·10⁴ points, and 4 ranks
    python -m benchmarks.distributed --nodes 100000 --blobs 50000

Each rank computes on one thread. The default solver, which gathers the graph on the first rank, is part of the sum;
beside it stands `Lobpcg` on all ranks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from benchmarks import __main__ as command
from benchmarks.memory import status
from benchmarks.record import Record
from experiments.tables import Table
from torch_lapeig import KNN, HeatKernel, Laplacian, eigenpairs
from torch_lapeig.distributed import Ranks, ShardedPoints, sharded_graph
from torch_lapeig.eigen import Lobpcg

CHUNK = 10_000  # points drawn together, so that a rank draws its own only
PHASES = ("spread", "graph", "weights", "solve", "on all")
NEIGHBORS, PAIRS, TOLERANCE = 10, 10, 1e-6


def roll(chunk: int, dims: int) -> Tensor:
    """Return a part of a swiss roll, turned in ``dims`` dimensions."""
    g = torch.Generator().manual_seed(1000 + chunk)
    t = 1.5 * torch.pi * (1 + 2 * torch.rand(CHUNK, generator=g, dtype=torch.float64))
    x = torch.stack([t * t.cos(), 21 * torch.rand(CHUNK, generator=g, dtype=torch.float64), t * t.sin()], 1)
    turn = torch.randn(dims, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned: Tensor = x @ torch.linalg.qr(turn)[0].mT
    return turned


def blobs(chunk: int, dims: int) -> Tensor:
    """Return a part of 20 normal blobs that overlap."""
    g = torch.Generator().manual_seed(1000 + chunk)
    centres = 0.5 * torch.randn(20, dims, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    of_point = torch.randint(20, (CHUNK,), generator=g)
    return centres[of_point] + torch.randn(CHUNK, dims, generator=g, dtype=torch.float64)


SETS: dict[str, Callable[[int, int], Tensor]] = {"roll": roll, "blobs": blobs}


class Clock:
    """Processor seconds of each phase: all ranks begin and end it together."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.busy = ranks, dict.fromkeys(PHASES, 0.0)
        self.start()

    def start(self) -> None:
        self.ranks.sum(torch.ones(()))
        self.last = time.process_time()

    def lap(self, phase: str) -> None:
        self.ranks.sum(torch.ones(()))
        now = time.process_time()
        self.busy[phase] += now - self.last
        self.last = now


def measure(ranks: Ranks, data: str, nodes: int, dims: int, before: float) -> dict[str, Any]:
    """Measure one run from points to eigenpairs on all ranks."""
    chunks = range(nodes // CHUNK)
    mine = [SETS[data](chunk, dims) for chunk in chunks if chunk % ranks.world == ranks.rank]
    x = torch.cat(mine) if mine else torch.zeros(0, dims, dtype=torch.float64)
    clock, counted = Clock(ranks), Counted(ranks)
    points = ShardedPoints.spread(x, ranks)
    clock.lap("spread")
    graph = sharded_graph(points, KNN(NEIGHBORS))
    clock.lap("graph")
    laplacian = Laplacian(HeatKernel()(points.x, graph))
    clock.lap("weights")
    pairs, memory = eigenpairs(laplacian, PAIRS, tolerance=TOLERANCE), status("VmHWM") - before
    clock.lap("solve")
    on_all = eigenpairs(laplacian, PAIRS, Lobpcg(), tolerance=TOLERANCE, progress=counted.look)
    clock.lap("on all")
    halo: int = len(laplacian.graph.pattern.halo)  # type: ignore[union-attr]
    edges = ranks.sum(torch.tensor(float(len(graph.weight))))
    return {
        "data": data, "nodes": nodes, "dims": dims, "ranks": ranks.world, "busy": clock.busy,
        "halo": halo, "own": len(points.x), "edges": float(edges), "iterations": on_all.iterations,
        "converged": bool(pairs.converged & on_all.converged), "values": pairs.values.tolist(),
        "on_all": on_all.values.tolist(), "collectives": counted.of_iteration()[0],
        "bytes": counted.of_iteration()[1], "memory": memory,
    }  # fmt: skip


class Counted:
    """Collectives and bytes of iterations."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.looks = ranks, list[tuple[int, int]]()

    def look(self, iteration: int, residual: float, allowed: float) -> None:
        self.looks.append((self.ranks.calls, self.ranks.sent))

    def of_iteration(self) -> tuple[float, float]:
        """Return collectives and bytes of an iteration, the median."""
        steps = list(itertools.pairwise(self.looks)) or [((0, 0), (0, 0))]
        return tuple(median(after[i] - before[i] for before, after in steps) for i in (0, 1))  # type: ignore[return-value]


def worker(rank: int, world: int, port: int, runs: list[tuple[str, int, int]], folder: str) -> None:
    """Run all measurements as one process, each in a group of its own."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    ranks = Ranks(timeout=600)
    ranks.sum(torch.ones(3))
    (data, nodes, dims), before = runs[0], status("VmRSS")
    found = measure(ranks, data, nodes, dims, before)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()  # who leaves early takes the others' connections along
    dist.destroy_process_group()


def measured(data: str, nodes: int, dims: int, world: int) -> dict[str, Any]:
    """Return the measures of all ranks together: the largest memory and halo, the messages of one rank."""
    with socket.socket() as found, tempfile.TemporaryDirectory() as folder:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
        found.close()
        start_processes(worker, (world, port, [(data, nodes, dims)], folder), world, start_method="spawn")
        all_ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]
    first = all_ranks[0]
    first["same"] = all(other["values"] == first["values"] for other in all_ranks)
    for name in ("memory", "halo", "own"):
        first[name] = max(other[name] for other in all_ranks)
    first["busy"] = {phase: max(other["busy"][phase] for other in all_ranks) for phase in PHASES}
    return dict(first)


def table(found: list[dict[str, Any]]) -> Table:
    """Return the runs, each beside one rank on the same data; sums are of the default, without ``on all``."""
    columns = {"data": "", "points": ".0f", "ranks": ".0f", **dict.fromkeys(PHASES, ".2f"), "sum": ".2f"}
    columns |= {"times less": ".2f", "memory MiB": ".0f", "of one": ".2f", "halo %": ".1f", "iterations": ".0f"}
    columns |= {"collectives an iteration": ".1f", "MB an iteration": ".2f", "|Δλ|": ".0e"}
    shown = Table(f"{NEIGHBORS}-NN, {PAIRS} pairs, one thread a rank: seconds of the busiest rank's processor", columns)
    for r in found:
        same = (
            other
            for other in found
            if (other["data"], other["nodes"], other["dims"]) == (r["data"], r["nodes"], r["dims"])
        )
        one = next((other for other in same if other["ranks"] == 1), r)
        busy, of_one = (sum(run["busy"][phase] for phase in PHASES[:-1]) for run in (r, one))
        pairs = (*zip(r["values"], one["values"], strict=True), *zip(r["on_all"], one["values"], strict=True))
        error = max(abs(a - b) for a, b in pairs)
        shown.add(
            f"{r['data']} × {r['dims']}", r["nodes"], r["ranks"], *(r["busy"][phase] for phase in PHASES), busy,
            of_one / busy, r["memory"], r["memory"] / one["memory"], 100 * r["halo"] / r["own"], r["iterations"],
            r["collectives"], r["bytes"] / 1e6, error,
        )  # fmt: skip
    return shown


def cases(options: argparse.Namespace) -> list[tuple[str, int, int, int]]:
    """Return data, points, dimensions and ranks of each run."""
    if options.quick:
        return [("roll", 20_000, 10, 1), ("roll", 20_000, 10, 2), ("roll", 20_000, 10, 4), ("blobs", 10_000, 20, 2)]
    wanted = [("roll", n, 10, world) for n in options.nodes for world in options.ranks]
    wanted += [("roll", min(options.nodes), 10, 4)] if options.nodes and 4 not in options.ranks else []
    return wanted + [("blobs", n, 50, world) for n in options.blobs for world in options.ranks]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--nodes", type=int, nargs="*", default=[100_000, 400_000, 1_000_000], help="of the rolls")
    parser.add_argument("--blobs", type=int, nargs="*", default=[200_000], help="points, in 50 dimensions")


def run(record: Record, options: argparse.Namespace) -> None:
    """Run and show; each rank has one thread."""
    found = []
    for data, nodes, dims, world in cases(options):
        found.append(measured(data, nodes, dims, world))
        record.say(f"{data}, {nodes} points, {world} ranks: {sum(found[-1]['busy'].values()):.1f} s")
    record.show(table(found))


if __name__ == "__main__":
    command.run("distributed", sys.argv[1:], Console(width=240))
