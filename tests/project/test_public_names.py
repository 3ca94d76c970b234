"""Every public name says in an example how it is used, and the reference has a page of it that links to a guide."""

import ast
import contextlib
import importlib
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_lapeig

ROOT = Path(__file__).parents[2]
PACKAGE, DOCS = ROOT / "torch_lapeig", ROOT / "docs"
OTHERS = {"command", "native", "support"}  # the command line has a page; the others are for the library alone
ROOMS = [
    torch_lapeig,
    *(
        importlib.import_module(f"torch_lapeig.{found.name}")
        for found in pkgutil.iter_modules(torch_lapeig.__path__)
        if not found.name.startswith("_") and found.name not in OTHERS
    ),
]
NAMES = {f"{room.__name__}.{name}": getattr(room, name) for room in ROOMS for name in room.__all__}
SECTIONS = re.split(r"^## ", (DOCS / "api.md").read_text(), flags=re.MULTILINE)[1:]
ROW = re.compile(r"^\| `(torch_lapeig\.[\w.]+)` \|", re.MULTILINE)
LISTED = [name for section in SECTIONS[:-1] for name in ROW.findall(section)]


def test_there_are_names():
    assert len(ROOMS) >= 10
    assert len(NAMES) >= 90


def test_every_name_has_an_example_in_its_docstring():
    assert [name for name, value in NAMES.items() if ">>> " not in (value.__doc__ or "")] == []


def test_reference_lists_every_name_once():
    listed = [id(NAMES[name]) for name in LISTED]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(value) for value in NAMES.values()}


def test_reference_has_the_first_sentence_of_every_docstring():
    for section in SECTIONS:
        for name, line in re.findall(r"^\| `(torch_lapeig\.[\w.]+)` \| (.*) \|$", section, re.MULTILINE):
            value = NAMES.get(name) or importlib.import_module(name)
            first = " ".join(inspect.getdoc(value).split("\n\n")[0].split())
            assert line == first.replace("``", "`").replace("|", "&#124;"), name


def test_every_section_of_the_reference_links_to_its_guide():
    for section in SECTIONS:
        page = re.search(r"\]\((\w+\.md)[)#]", section)
        assert page, section.splitlines()[0]
        assert (DOCS / page[1]).exists()


def knows(cls: type, name: str) -> bool:
    ours = [base for base in cls.__mro__ if base.__module__.startswith("torch_lapeig")]
    written = (name in vars(of).get("__annotations__", ()) or f"self.{name}" in inspect.getsource(of) for of in ours)
    return hasattr(cls, name) or any(written)


def names_in(file: Path) -> set[str]:
    """Return the names in the syntax tree, without those of texts; of C all words."""
    if file.suffix != ".py":
        return set(re.findall(r"\w+", file.read_text()))
    nodes = ast.walk(ast.parse(file.read_text()))
    return {getattr(node, part, "") for node in nodes for part in ("name", "id", "attr", "arg")}


def test_names_in_texts_exist():
    """`Class.attribute` in code and pages; `torch_lapeig.x.y` in pages; `file` (`name`) in the architecture."""
    classes: dict[str, set[type]] = {}
    for found in pkgutil.walk_packages(torch_lapeig.__path__, "torch_lapeig."):
        with contextlib.suppress(ImportError):  # of a library that is not installed
            for name, value in vars(importlib.import_module(found.name)).items():
                if isinstance(value, type):
                    classes.setdefault(name, set()).add(value)
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    dead = []
    for file in [*sorted(PACKAGE.rglob("*.py")), *pages]:
        text = file.read_text()
        for cls, name in re.findall(r"`~?(?:\w+\.)*([A-Z][a-z]\w*)(?:\([^`()]*\))?\.(\w+)", text):
            dead += [f"{file.name}: {cls}.{name}"] * (not any(knows(known, name) for known in classes.get(cls, ())))
        for name in re.findall(r"`(torch_lapeig(?:\.\w+)+)", text) if file in pages else ():
            dead += [f"{file.name}: {name}"] * (pydoc.locate(name) is None)
    text = (DOCS / "architecture.md").read_text()
    for name, listed in re.findall(r"`((?:\w+/)*\w+\.(?:py|c|h))`(?: \(([^()]+)\))?", text):
        files = [ROOT / name] if (ROOT / name).exists() else [*PACKAGE.rglob(name)]
        names = re.findall(r"`(\w+)`", listed)
        dead += [f"architecture.md: {name} {names}"] * (not any(set(names) <= names_in(file) for file in files))
    assert dead == []


def test_faces_are_attributes():
    code = "import sys, torch_lapeig as t; assert 'sklearn' not in sys.modules"
    code += "; print(t.sklearn.SpectralEmbedding, t.pyg)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        torch_lapeig.nonsense  # noqa: B018
