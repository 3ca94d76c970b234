"""Imports between modules run one way, the core needs torch, numpy and scipy only, and importing does nothing."""

import ast
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path

import torch_lapeig

ROOT = Path(torch_lapeig.__file__).parent
# Rooms, folders or modules of the package, and the rooms that each imports from.
ARROWS = {
    "support": set(),
    "native": {"support"},
    "graph": {"support", "native"},
    "eigen": {"support", "native", "graph"},
    "methods": {"support", "graph", "eigen"},
    "losses": {"support", "graph", "eigen"},
    "samplers": {"support", "graph"},
    "sklearn": {"support", "graph", "eigen", "methods"},
    "distributed": {"support", "graph", "eigen", "losses", "methods"},
    "lightning": {"support", "graph", "losses"},
    "pyg": {"support", "graph", "eigen", "methods"},
    "command": {"support", "graph", "methods", "plots"},
    "plots": {"support", "graph", "eigen", "methods"},
    "initial": {"support", "graph", "eigen"},
    "anndata": {"support", "graph", "eigen", "methods", "initial"},
    "__main__": {"command"},
}
LIBRARIES = {"torch", "numpy", "scipy"}
# Imported where it is asked for.
OPTIONAL = {"graph.search.approximate": {"faiss"}, "methods.clustering": {"sklearn"}, "methods.assignment": {"sklearn"}}
OPTIONAL |= {"support.progress": {"tqdm"}, "sklearn": {"sklearn"}, "sklearn.base": {"sklearn"}}
OPTIONAL |= {"sklearn.labels": {"sklearn"}, "sklearn.manifolds": {"sklearn"}, "sklearn.spectral": {"sklearn"}}
OPTIONAL |= {"sklearn.affinities": {"sklearn"}, "lightning": {"lightning", "pytorch_lightning"}}
OPTIONAL |= {"command.reading": {"pandas", "anndata"}, "command.columns": {"pandas"}, "command": {"pandas"}}
OPTIONAL |= {"plots": {"matplotlib"}, "command.report": {"matplotlib", "bokeh"}}
FILES = sorted(set(ROOT.rglob("*.py")) - {ROOT / "__init__.py"})


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def ours(file: Path) -> set[str]:
    known = {module_of(file) for file in FILES}
    parts = (name.removeprefix("torch_lapeig.") for name in imported(file) if name.startswith("torch_lapeig."))
    return {part if part in known else part.rpartition(".")[0] for part in parts}


def test_arrows_between_rooms():
    found: dict[str, set[str]] = {}
    for file in FILES:
        room = module_of(file).partition(".")[0]
        found.setdefault(room, set()).update({module.partition(".")[0] for module in ours(file)} - {room})
    assert found == ARROWS


def test_no_circles_between_modules():
    arrows = {module_of(file): ours(file) for file in FILES}
    assert set(graphlib.TopologicalSorter(arrows).static_order()) >= set(arrows)  # a circle raises CycleError


def test_a_module_imports_the_libraries_it_may():
    for file in FILES:
        others = {name.split(".")[0] for name in imported(file)} - {"torch_lapeig"}
        allowed = LIBRARIES | OPTIONAL.get(module_of(file), set()) | set(sys.stdlib_module_names)
        assert others <= allowed, module_of(file)


def test_experiments_use_public_names_only():
    rooms = {room: importlib.import_module(f"torch_lapeig.{room}") for room in ("graph", "eigen", "methods", "losses")}
    for folder in ("experiments", "benchmarks", "tests/campaign"):
        for file in (ROOT.parent / folder).rglob("*.py"):
            for name in imported(file):
                room, _, last = name.removeprefix("torch_lapeig.").rpartition(".")
                faces = ("sklearn", "lightning", "pyg", *rooms)
                if name.startswith("torch_lapeig.") and room in ("", *rooms) and last not in faces:
                    assert last in (rooms[room].__all__ if room else torch_lapeig.__all__), f"{file.name}: {name}"


def test_benchmarks_import_experiments_and_not_the_other_way():
    files = (ROOT.parent / "experiments").rglob("*.py")
    assert not any(name.split(".")[0] == "benchmarks" for file in files for name in imported(file))


def test_everything_public_is_there_and_importing_is_quiet():
    assert all(hasattr(torch_lapeig, name) for name in torch_lapeig.__all__)
    slow = ("faiss", "scipy", "sklearn", "sympy")
    code = f"import sys, torch, scipy; before = set(sys.modules); import torch_lapeig; slow = {slow}\n"
    code += "print(*(name for name in set(sys.modules) - before if name.partition('.')[0] in slow), end='')"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


def test_the_engine_has_one_of_each():
    """One autograd Function of pairs, one of their complement, none of the wrappers that the normal form replaced."""
    nodes = (node for file in (ROOT / "eigen").rglob("*.py") for node in ast.walk(ast.parse(file.read_text())))
    classes = {node.name: {ast.unparse(b) for b in node.bases} for node in nodes if isinstance(node, ast.ClassDef)}
    gone = {"ScaledProducts", "NegatedProducts", "ShiftedOperator", "Inverted", "ScaledAndReordered", "Pencil"}
    assert not gone & classes.keys()
    functions = {name for name, bases in classes.items() if bases & {"Function", "precision.Function", "_Implicit"}}
    assert functions == {"_Implicit", "Pairs", "Values", "Outside", "_SecondOrder"}
