"""Ten columns of a million sparse rows by cosine similarity, without the matrix: `FactoredCosine` beside its peers.

    python -m benchmarks matrix_free [--sizes 1000000]

Each candidate runs in a process of its own, which reads the rows from a file, so that its peak of memory is its own:
everything from the start of Python, rows included. Goal: 10⁶ × 2000 with 50 entries a row on two cores within 60
seconds and 4 GiB. Peers: SnapATAC2's spectral embedding, which solves the same matrix by Lanczos in Rust, with the
interpreter that SNAPATAC2_PYTHON names, and SciPy's `eigsh` on a `LinearOperator`. Residuals are those of the same
matrix in float64, of the vectors as they come.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from benchmarks.child import THREADS
from benchmarks.record import Record
from experiments.tables import Table

COLUMNS, GROUPS, WIDTH, ENTRIES = 10, 11, 2000, 50
OURS, SNAP, SCIPY = "torch_lapeig FactoredCosine", "SnapATAC2 tl.spectral", "SciPy eigsh, LinearOperator"
COMMON = """
import json, resource, sys, time
import numpy as np, scipy.sparse as sp
x = sp.load_npz(sys.argv[1]); x.has_canonical_format = True; k = int(sys.argv[3]) + 1
begin, work = time.perf_counter(), time.process_time()
"""
CANDIDATES = {
    OURS: """
import torch
from torch_lapeig import eigenpairs
from torch_lapeig.eigen import FactoredCosine
torch.set_num_threads(int(sys.argv[4]))
begin, work = time.perf_counter(), time.process_time()
pairs = eigenpairs(FactoredCosine(x), k)
assert pairs.converged
values, vectors = pairs.values.numpy(), pairs.vectors.numpy()
""",
    SNAP: """
import anndata, snapatac2
adata = anndata.AnnData(x)
begin, work = time.perf_counter(), time.process_time()
weights = [1.0] * x.shape[1]
found = snapatac2.tl.spectral(adata, k, None, weighted_by_sd=False, feature_weights=weights, inplace=False)
values, vectors = 1 - found[0], found[1]
""",
    SCIPY: """
from scipy.sparse.linalg import LinearOperator, eigsh
x = x.astype(float)
x = sp.diags(1 / np.sqrt(x.multiply(x).sum(1).A1)) @ x
d = x @ (x.T @ np.ones(len(x.indptr) - 1)) - 1
root = 1 / np.sqrt(d)
walk = LinearOperator((len(d),) * 2, matvec=lambda y: root * (x @ (x.T @ (root * y))) - y / d, dtype=float)
values, vectors = eigsh(walk, k, which="LA", v0=np.random.default_rng(0).standard_normal(len(d)))
values, vectors = 1 - values[::-1], vectors[:, ::-1]
""",
}
ANSWER = """
seconds, work = time.perf_counter() - begin, time.process_time() - work
np.savez(sys.argv[2], values=values, vectors=vectors)
print(json.dumps([seconds, work, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]))
"""


def rows(n: int) -> scipy.sparse.csr_matrix:
    """Return n rows of eleven groups: half of the entries of a row in 200 columns of its group, half anywhere."""
    rng = np.random.default_rng(0)
    own = np.stack([rng.permutation(WIDTH)[:200] for _ in range(GROUPS)])
    col = np.empty((n, ENTRIES), np.int32)
    for start in range(0, n, 50_000):
        group = rng.integers(0, GROUPS, min(50_000, n - start))
        inner = own[group[:, None], rng.integers(0, 200, (len(group), ENTRIES // 2))]
        col[start : start + 50_000] = np.concatenate([inner, rng.integers(0, WIDTH, inner.shape)], 1)
    col.sort(1)
    values, places = rng.random(n * ENTRIES, dtype=np.float32) + np.float32(0.5), np.arange(n + 1) * ENTRIES
    x = scipy.sparse.csr_matrix((values, col.ravel(), places.astype(np.int32)), shape=(n, WIDTH))
    x.sum_duplicates()
    return x


def largest_residual(x: scipy.sparse.csr_matrix, values: NDArray[Any], vectors: NDArray[Any]) -> float:
    """Return the largest ‖S v − (1 − λ) v‖ of unit vectors, in float64."""
    x = x.astype(float)
    x = scipy.sparse.diags(1 / np.sqrt(x.multiply(x).sum(1).A1)) @ x
    d = x @ (x.T @ np.ones(x.shape[0])) - 1
    root, worst = 1 / np.sqrt(d), 0.0
    for value, v in zip(values, vectors.T.astype(float), strict=True):
        v = v / np.linalg.norm(v)
        worst = max(worst, float(np.linalg.norm(root * (x @ (x.T @ (root * v))) - v / d - (1 - value) * v)))
    return worst


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=None)


def run(record: Record, options: argparse.Namespace) -> None:
    """All candidates on the same rows, one after the other."""
    pythons = {OURS: sys.executable, SNAP: os.environ.get("SNAPATAC2_PYTHON"), SCIPY: sys.executable}
    shapes = {"": "", "rows": ",", "s elapsed": ".1f", "s of the processor": ".1f"}
    columns = shapes | {"peak GiB": ".2f", "largest residual": ".0e", "values differ by": ".0e"}
    title = f"{COLUMNS} columns of rows with {ENTRIES} of {WIDTH} entries, {options.threads} threads"
    table = Table(title, columns)
    environment = {**os.environ, **dict.fromkeys(THREADS, str(options.threads))}
    for n in options.sizes or ([20_000] if options.quick else [1_000_000]):
        x = rows(n)
        first = None
        with tempfile.TemporaryDirectory() as folder:
            given, found = Path(folder) / "x.npz", Path(folder) / "found.npz"
            scipy.sparse.save_npz(given, x, compressed=False)
            for name, python in pythons.items():
                if python is None:
                    continue
                arguments = [str(given), str(found), str(COLUMNS), str(options.threads)]
                command = [python, "-W", "ignore", "-c", COMMON + CANDIDATES[name] + ANSWER, *arguments]
                answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
                pairs = np.load(found)
                first = pairs["values"] if first is None else first
                apart = float(np.abs(pairs["values"] - first).max())
                worst = largest_residual(x, pairs["values"], pairs["vectors"])
                table.add(name, n, *json.loads(answer.splitlines()[-1]), worst, None if name == OURS else apart)
    record.show(table)
