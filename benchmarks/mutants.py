"""Single-line changes of the code that tests have to find.

    python -m benchmarks.mutants [--only TEXT] [--list]

Each mutant is a wrong line. It is put into a copy of the package, the tests named beside it run against the copy, and
one of them must fail. A mutant whose line is not found exactly once ends the run: the table is to be kept true. It ends
with 1 if a mutant survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "torch_lapeig"
PATIENCE = 600  # seconds that the tests of a mutant may take


class Mutant(NamedTuple):
    """A line of a file of the package, what takes its place, and the tests that have to fail."""

    file: str
    line: str
    wrong: str
    tests: str


UNFOUND = "tests/test_mutants.py"  # tests that were written for mutants
TABLE = "tests/test_combinations.py"
MUTANTS = (
    Mutant("losses.py", "weight = graph.pattern.without_loops(weight)", "pass", f"{TABLE} -k graphs-"),
    Mutant("losses.py", "int(graph.pattern.sum(weight.count_nonzero()))", "weight.numel()", f"{TABLE} -k graphs-"),
    Mutant("graph/weights.py", "group = group * n + graph.connected", "group = graph.connected", f"{TABLE} -k KNN"),
    Mutant("eigen/laplacian.py", "torch.where(loop > others", "torch.where(loop < 0", "tests/eigen/test_laplacian.py"),
    Mutant("eigen/problem.py", "allowed_residual(problem.", "allowed_residual(100 * problem.", UNFOUND),
    Mutant("eigen/problem.py", "<= allowed) & is_orthonormal", "<= allowed)", UNFOUND),
    Mutant("eigen/solve.py", "given.double() if", "given if", "tests/eigen/test_matrices.py -k near_the_largest"),
    Mutant("eigen/gradient/cg.py", "return best, left", "return z, norms(target - image(z))", UNFOUND),
    Mutant("eigen/gradient/cg.py", "energy.isfinite() & (energy > 0), fresh", "energy > torch.inf, fresh", UNFOUND),
    Mutant("graph/distances.py", "> 0.01 * rows", "> 10 * rows", "tests/test_errors.py -k APART"),
    Mutant("support/checks.py", "(1e-5 if numbers.bits == 32 else 1e-12)", "1e-2", UNFOUND),
    Mutant("support/checks.py", "(1e-5 if numbers.bits == 32 else 1e-12)", "0.0", UNFOUND),
    Mutant("graph/search/exact.py", "<= reach[item, point]", "< reach[item, point]", "tests/graph/test_rules.py"),
    Mutant("graph/weights.py", "1).pow(-power)", "1).log().mul(-power).exp()", "tests/eigen/test_units.py -k powers"),
    Mutant("graph/rules.py", "directions.to(dtype) / 2", "directions.to(dtype)", "tests/graph/test_rules.py"),
    Mutant("graph/algebra.py", "/ copies", "/ 1", "tests/graph/test_weights.py"),
    Mutant("eigen/solvers/dense.py", "null.mT, alpha=-1)", "null.mT, alpha=1)", "tests/eigen/test_eigenpairs.py"),
    Mutant("graph/pattern.py", "if not follows.all():", "if False:", "tests/test_errors.py -k SparsePattern"),
    Mutant("graph/pattern.py", "most < total:", "most <= total:", "tests/test_errors.py -k SparsePattern"),
    Mutant("losses.py", "squared_lengths(columns) / 2", "squared_lengths(columns)", "tests/test_loss.py"),
)


def mutated(mutant: Mutant, folder: Path) -> None:
    """Copy package and tests into a folder, with the wrong line. SystemExit where the line is not there once."""
    for name in (PACKAGE, "tests", "benchmarks", "experiments"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    file = folder / PACKAGE / mutant.file
    text = file.read_text(encoding="utf-8")
    if (found := text.count(mutant.line)) != 1:
        raise SystemExit(f"error: {mutant.file} has {found} times, not once: {mutant.line}")
    file.write_text(text.replace(mutant.line, mutant.wrong), encoding="utf-8")


def is_found(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory() as name:
        mutated(mutant, Path(name))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests.split()]
        environment = os.environ | {"PYTHONPATH": name, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=name, env=environment, capture_output=True, timeout=PATIENCE)
        if done.returncode not in (0, 1):  # 1 is a failed test, others no run at all
            raise SystemExit(f"error: the tests of {mutant} did not run: {done.stdout.decode()[-2000:]}")
        return done.returncode == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="mutants of files whose name holds this")
    parser.add_argument("--list", action="store_true", help="show the mutants and run none")
    options = parser.parse_args()
    survivors = 0
    for mutant in (m for m in MUTANTS if options.only in m.file):
        said = "" if options.list else "found   " if (found := is_found(mutant)) else "SURVIVES"
        survivors += 0 if options.list else not found
        print(said, mutant.file, "|", mutant.line.splitlines()[0], "->", mutant.wrong.splitlines()[0], flush=True)
    return int(survivors > 0)


if __name__ == "__main__":
    raise SystemExit(main())
