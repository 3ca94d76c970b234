"""Imports between modules run one way, the core needs torch, numpy and scipy only, and importing does nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torch_lapeig

ROOT = Path(torch_lapeig.__file__).parent
ALLOWED = {
    "_checks": set(),
    "neighbors": {"_checks"},
    "pattern": {"_checks", "neighbors"},
    "graph": {"neighbors", "pattern", "_checks"},
    "weights": {"fitted", "graph", "pattern", "_checks"},
    "operator": {"graph", "pattern", "_checks"},
    "laplacian": {"operator", "graph", "pattern", "_checks"},
    "amg": {"pattern", "_checks"},
    "direct": {"operator", "graph", "_checks"},
    "solvers": {"amg", "direct", "operator", "_checks"},
    "check": {"solvers", "operator", "_checks"},
    "cg": set(),
    "rule": {"cg", "check", "solvers", "operator", "_checks"},
    "tails": {"laplacian", "pattern", "_checks"},
    "eigen": {"check", "rule", "tails", "solvers", "direct", "graph", "laplacian", "operator", "_checks"},
    "nystrom": {"graph", "weights", "eigen", "_checks"},
    "embedding": {
        "fitted",
        "neighbors",
        "graph",
        "weights",
        "laplacian",
        "solvers",
        "eigen",
        "nystrom",
        "pattern",
        "_checks",
    },
    "clustering": {"fitted", "graph", "weights", "laplacian", "solvers", "embedding", "_checks"},
    "positional": {"_checks", "graph", "laplacian", "eigen", "embedding"},
    "sklearn": {"fitted", "graph", "weights", "embedding", "clustering", "manifold", "_checks"},
    "fitted": {"_checks"},
    "geodesics": {"pattern", "_checks"},
    "manifold": {
        *("neighbors", "pattern", "graph", "operator", "solvers", "eigen", "nystrom", "fitted", "geodesics"),
        "_checks",
    },
    "loss": {"fitted", "graph", "weights", "laplacian", "_checks"},
    "lightning": {"graph", "loss", "_checks"},
}
LIBRARIES = {"torch", "numpy", "scipy"}
# Imported where it is asked for.
OPTIONAL = {
    "neighbors": {"faiss"},
    "eigen": {"tqdm"},
    "clustering": {"sklearn"},
    "sklearn": {"sklearn"},
    "lightning": {"lightning", "pytorch_lightning"},
}


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("file", sorted(set(ROOT.glob("*.py")) - {ROOT / "__init__.py"}), ids=lambda f: f.stem)
def test_arrows(file):
    names = imported(file)
    ours = {name.split(".")[1] for name in names if name.startswith("torch_lapeig.")}
    assert ours <= ALLOWED[file.stem]
    others = {name.split(".")[0] for name in names} - {"torch_lapeig"}
    assert others <= LIBRARIES | OPTIONAL.get(file.stem, set()) | set(sys.stdlib_module_names)


def test_experiments_use_public_names_only():
    for folder in ("experiments", "benchmarks"):
        for file in (ROOT.parent / folder).glob("*.py"):
            for name in imported(file):
                if name.startswith("torch_lapeig."):
                    assert name.removeprefix("torch_lapeig.") in torch_lapeig.__all__, f"{file.name}: {name}"


def test_everything_public_is_there_and_importing_is_quiet():
    assert all(hasattr(torch_lapeig, name) for name in torch_lapeig.__all__)
    code = "import sys, torch_lapeig; assert not {'faiss', 'sklearn'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
