"""The atlas: its graphs are what they are called, a peer that misses a copy fails, a slow one is stopped."""

import re
import sys

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from benchmarks.atlas import candidates, judge, report, runner
from benchmarks.atlas.families import FAMILIES, graph_of
from benchmarks.results import RESULTS

SMALL = 600
GIVEN = {"MNIST", "MNIST, heat"}  # whose data a test cannot have


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - GIVEN))
def test_graphs_have_their_size_and_components(name: str) -> None:
    family = FAMILIES[name]
    graph = graph_of(name, SMALL)
    count, _ = connected_components(graph.to_scipy(), directed=False)
    # A sphere's mesh, a hypercube and a balanced tree have sizes of their own; components leave a few nodes out.
    assert SMALL / 2.1 <= graph.num_nodes <= 2.1 * SMALL
    assert count == family.components if family.components is not None else count > 1
    assert float(graph.to_scipy().data.min()) >= 0
    assert (graph.to_scipy() != graph_of(name, SMALL).to_scipy()).nnz == 0


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("path", lambda n: 1 - np.cos(np.pi * np.arange(n) / (n - 1))),
        ("cycle", lambda n: 1 - np.cos(2 * np.pi * np.arange(n) / n)),
        ("torus grid", lambda n: np.add.outer(*[1 - np.cos(2 * np.pi * np.arange(8) / 8)] * 2).ravel() / 2),
        ("hypercube", lambda n: np.array([2 * bin(node).count("1") / np.log2(n) for node in range(n)])),
    ],
)
def test_spectra_that_are_known(name: str, exact) -> None:
    s = candidates.normalized(candidates.Problem(graph_of(name, 64), 1)).toarray()
    assert np.allclose(np.linalg.eigvalsh(np.eye(len(s)) - s), np.sort(exact(len(s))), atol=1e-12)


def quality(values: list[float], residual: float = 1e-8) -> judge.Quality:
    return judge.Quality(values, residual, 0.0)


COPIES, SMOOTH = [0.0, 0.1, 0.2, 0.2], [0.0, 1e-8, 4e-8]  # on a long path smooth vectors have residuals below 1e-6
FOUND = [
    (quality(COPIES), COPIES, None),
    (quality([0.0, 0.1, 0.2, 0.3]), COPIES, "eigenvalue 4 is 0.3, 0.2 is right"),
    (quality([1e-9, 0.1 + 1e-7, 0.2, 0.2]), COPIES, None),
    (judge.Quality(COPIES, 1e-8, 0.5), COPIES, "vectors depend on each other"),
    (quality([]), COPIES, "too few vectors"),
    (quality(SMOOTH), SMOOTH, None),
    (quality([0.0, 1e-8, 9e-8]), SMOOTH, "eigenvalue 3 is 9e-08, 4e-08 is right"),
    (quality([1e-8, 1e-8, 4e-8]), SMOOTH, "eigenvalue 1 is 1e-08, 0 is right"),
]


@pytest.mark.parametrize(("found", "reference", "said"), FOUND)
def test_missed_copies_and_relative_errors_are_faults(found, reference, said) -> None:
    assert judge.fault(found, reference, 1e-6) == said


def test_smaller_eigenvalues_beat_the_reference() -> None:
    assert judge.is_beaten([0.0, 0.1, 0.3], quality([0.0, 0.1, 0.2]), 1e-6)
    assert not judge.is_beaten([0.0, 0.1, 0.2], quality([0.0, 0.1, 0.3]), 1e-6)
    # The same vector twice has small Rayleigh quotients too.
    assert not judge.is_beaten([0.0, 0.1, 0.3], judge.Quality([0.0, 0.1, 0.1], 1e-8, 1.0), 1e-6)


FAKES = """
import time
import numpy as np
from benchmarks.atlas import candidates, worker

def exact(problem):
    s = candidates.normalized(problem).toarray()
    return np.linalg.eigh(np.eye(len(s)) - s)[1]

def missing_a_copy(problem, tolerance):
    return np.delete(exact(problem), 2, axis=1)[:, :problem.k]

def busy(problem, tolerance):
    while True:
        pass

def right_when_tight(problem, tolerance):
    rng = np.random.default_rng(0)
    vectors = exact(problem)[:, :problem.k]
    return vectors + tolerance * rng.standard_normal(vectors.shape) / 10

def broken(problem, tolerance):
    raise RuntimeError("singular")

fakes = dict(default=right_when_tight, missing=missing_a_copy, busy=busy, broken=broken)
candidates.CANDIDATES = {name: candidates.Candidate("shipped", solve) for name, solve in fakes.items()}
worker.main()
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch) -> runner.Settings:
    script = tmp_path / "fakes.py"
    script.write_text(FAKES)
    monkeypatch.setattr(runner, "LEAST_PATIENCE", 0.5)
    names = ("default", "missing", "busy", "broken")
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in ("", *sys.path) if path))
    columns = {name: candidates.Candidate("ours" if name == "default" else "shipped", None) for name in names}
    monkeypatch.setattr(runner, "CANDIDATES", columns)
    return runner.Settings(k=5, names=names, rounds=1, command=(sys.executable, str(script)))


def test_a_run_says_who_failed_and_who_was_stopped(fakes: runner.Settings) -> None:
    said: list[str] = []
    (record,) = runner.run([("torus grid", 144)], fakes, said.append)
    results = {result["name"]: result for result in record["results"]}
    assert results["default"]["status"] == "ok"
    assert results["default"]["residual"] <= 1e-6
    assert 1e-7 <= results["default"]["tolerance"] <= 1e-5, "the loosest tolerance that is enough"
    assert results["missing"]["status"] == "failed"
    assert "is right" in results["missing"]["why"]
    assert results["busy"]["status"] == "stopped"
    assert (results["broken"]["status"], results["broken"]["why"]) == ("failed", "RuntimeError: singular")
    assert record["reference"]["checked"].startswith("by count")


def result(name: str, column: str, seconds: float, status: str = "ok") -> dict:
    return {"name": name, "column": column, "seconds": seconds, "status": status}


def record_of(*results: dict, size: int = 2000) -> dict:
    return {
        "family": "grid", "size": size, "nodes": size, "threads": 1, "residual": 1e-6, "results": list(results),
        "choice": {"solvers": "ShiftInvert(basis=None)", "reason": ""}, "reference": {"checked": "by count: 3"},
    }  # fmt: skip


def test_ratios_are_those_over_the_best_right_answer() -> None:
    record = record_of(
        result("default", "ours", 2.0), result("Lobpcg", "ours", 1.0), result("wrong", "shipped", 0.1, "failed"),
        result("right", "shipped", 4.0), result("slow", "expert", 20.0, "stopped"),
    )  # fmt: skip
    assert report.ratio(record, "ours") == 2.0
    assert report.ratio(record, "shipped") == 0.5, "a wrong answer is not a fast one"
    assert report.ratio(record, "expert") == 0.1, "a stopped one took at least as long as it was given"
    failed = record_of(result("default", "ours", 2.0, "failed"), result("right", "shipped", 4.0))
    assert report.ratio(failed, "shipped") == np.inf
    lines = list(report.summary([record, record_of(result("default", "ours", 1.0), size=1000)]))
    assert any("default / best peer as shipped: worst 0.50 (grid, 2,000)" in line for line in lines)


def test_nothing_is_compared_with_itself() -> None:
    alone = record_of(result("default", "ours", 1.0), result("peer", "shipped", 2.0))
    rows = report.table([alone], "").rows
    assert rows[0][4:-1] == ["–", "2.000 peer", "–", 0.5, report.UNMEASURED, report.UNMEASURED]
    lines = list(report.summary([alone, record_of(result("default", "ours", 1.0))]))
    assert lines[0].endswith("above 1.0 on 0 of 1 graphs, not measured on 1 (goal ≤ 1.0, 0.4)")
    assert lines[1:] == [
        "default / best expert's way: not measured (goal ≤ 1.1, 0.8)",
        "default / our best other solver: not measured (goal ≤ 1.15)",
    ]
    ours = {name for name, candidate in candidates.CANDIDATES.items() if candidate.column == "ours"}
    assert ours > {"Eigh", "Krylov"}
    assert re.findall(r"\d default \|", RESULTS.read_text()) == [], "the best of ours is another one"


def test_shares_count_right_answers_only() -> None:
    fast, slow, wrong = result("a", "ours", 1.0), result("b", "shipped", 3.0), result("b", "shipped", 0.1, "failed")
    rows = {row[0]: row[1:] for row in report.shares([record_of(fast, slow), record_of(fast, wrong)]).rows}
    assert rows == {"a": [1.0, 1.0, 1.0], "b": [0.0, 0.0, 0.5]}
