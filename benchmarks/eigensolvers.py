"""Smallest eigenpairs from 10⁴ to 10⁶ nodes of a swiss roll. The atlas has peers, on this and on other graphs.

k = 10, float64, 15 neighbours. Claims: iterations grow at most 2 ×, 10⁶ nodes in 15 s and 4 GiB on two threads.
"""

import argparse
import multiprocessing
import os
import time

import torch

from benchmarks import graphs
from benchmarks.record import Record
from experiments.memory import status
from experiments.tables import Table
from torch_lapeig import Laplacian, eigenpairs

K, RESIDUAL = 10, 1e-6


def grown(n: int, threads: int) -> list[float]:
    """Return iterations, seconds, residual, gap and MiB at the highest of a process of its own."""
    torch.set_num_threads(threads)
    graph = graphs.swiss_roll(n)
    gap = eigenpairs(Laplacian(graph), K, tolerance=0.1).gap.item() if n < 10**6 else 1e-5
    start = time.perf_counter()
    pairs = eigenpairs(Laplacian(graph), K, tolerance=min(0.1, RESIDUAL / gap))
    seconds = time.perf_counter() - start
    return [float(pairs.iterations), seconds, float(pairs.residuals.max()), float(pairs.gap), status("VmHWM")]


def run(record: Record, options: argparse.Namespace) -> None:
    """Measure and show; the last once more with huge pages for large tensors: PyTorch asks for them itself where
    THP_MEM_ALLOC_ENABLE is 1."""
    columns = {"nodes": ",", "huge pages": "", "iterations": ".0f", "s": ".2f", "residual": ".1e", "gap": ".1e"}
    title = f"Swiss roll, residual ≤ 1e-6 and ≤ 0.1 of the gap, {torch.get_num_threads()} threads"
    table = Table(title, columns | {"peak MiB": ",.0f"})
    sizes = ((10**4, "0"), (10**5, "0"), (10**6, "0"), (10**6, "1"))
    for n, pages in sizes[: 1 if options.quick else None]:
        os.environ["THP_MEM_ALLOC_ENABLE"] = pages
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            table.add(n, "yes" if pages == "1" else "no", *pool.apply(grown, (n, torch.get_num_threads())))
    del os.environ["THP_MEM_ALLOC_ENABLE"]
    record.show(table)
