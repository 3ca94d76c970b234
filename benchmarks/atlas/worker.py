"""The process in which candidates run: it holds one graph, solves, and judges its own answers, when asked.

{"do": "load", "file": …, "k": …} · {"do": "choose"} · {"do": "solve", "name": …, "tolerance": …}
{"do": "count", "sigma": …}
"""

import importlib
import importlib.util
import resource
import time
import warnings
from typing import Any

import torch
from scipy.sparse import csr_array, load_npz
from scipy.sparse.csgraph import connected_components

from benchmarks.atlas import candidates, judge
from benchmarks.child import serve
from benchmarks.timing import PAUSE
from torch_lapeig import Graph, Laplacian, eigen

# The timer that limits a request makes the processor's clock of the process go in ticks; that of a thread does not.
CLOCKS = (time.perf_counter, time.process_time, time.thread_time)
TICK = 0.004
SHORT = 0.1  # seconds: of a solve that takes less the second counts, as in a network; the first waits for the caches


class Desk:
    """Answers requests about the graph it was given."""

    def __init__(self) -> None:
        self.problem: candidates.Problem
        self.s: csr_array

    def answer(self, request: dict[str, Any]) -> Any:
        return getattr(self, request.pop("do"))(**request)

    def load(self, file: str, k: int) -> dict[str, Any]:
        affinity = load_npz(file)
        is_dense = affinity.nnz > affinity.shape[0] ** 2 / 2
        made = Graph.from_dense(torch.from_numpy(affinity.toarray())) if is_dense else Graph.from_scipy(affinity)
        self.problem = candidates.Problem(made, k)
        self.s = candidates.normalized(self.problem)
        # Not part of anybody's time: what scikit-learn is given.
        _ = self.problem.matrix, self.problem.half
        components = int(connected_components(self.s, directed=False)[0])
        return {"nodes": self.problem.nodes, "components": components, "threads": torch.get_num_threads()}

    def choose(self) -> dict[str, str]:
        choice = eigen.Auto().choose(Laplacian(self.problem.graph).symmetric, self.problem.k)
        return {"solvers": "; ".join(repr(solver) for solver in choice.solvers), "reason": choice.reason}

    def solve(self, name: str, tolerance: float) -> dict[str, Any]:
        time.sleep(PAUSE)  # threads of OpenBLAS, which judged the answer before, go on spinning for a while
        try:
            vectors, found = self._timed(name, tolerance)
            if found["elapsed"] < SHORT:
                vectors, found = self._timed(name, tolerance)
        except (Exception, SystemExit) as error:
            return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}
        return {**found, **judge.quality_of(self.s, vectors)._asdict()}

    def _timed(self, name: str, tolerance: float) -> tuple[candidates.Vectors, dict[str, float]]:
        begin = [clock() for clock in CLOCKS]
        vectors = candidates.solve_quietly(self.problem, name, tolerance)
        elapsed, process, thread = (clock() - at for clock, at in zip(CLOCKS, begin, strict=True))
        return vectors, {"processor": max(thread, process - TICK), "elapsed": elapsed}

    def count(self, sigma: float) -> dict[str, Any]:
        try:
            return {"count": judge.count_below(self.s, sigma)}
        except (RuntimeError, MemoryError):
            return {"count": None}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, 2 * (10 * 2**30,))  # let what needs more fail, and not the machine
    warnings.simplefilter("ignore")
    for package in ("sklearn.manifold", "pyamg"):
        if importlib.util.find_spec(package.split(".")[0]):
            importlib.import_module(package)
    serve(Desk().answer)


if __name__ == "__main__":
    main()
