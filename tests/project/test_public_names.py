"""Every public name says in an example how it is used, and the reference has a page of it that links to a guide."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import torch_lapeig

DOCS = Path(__file__).parents[2] / "docs"
OTHERS = {
    "command",
    "native",
    "support",
}  # the command line has a page of its own; the others are for the library alone
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
LISTED = [name for section in SECTIONS for name in re.findall(r"^   ~(torch_lapeig\.[\w.]+)$", section, re.MULTILINE)]


def test_there_are_names():
    assert len(ROOMS) >= 10
    assert len(NAMES) >= 90


def test_every_name_has_an_example_in_its_docstring():
    assert [name for name, value in NAMES.items() if ">>> " not in (value.__doc__ or "")] == []


def test_reference_lists_every_name_once():
    listed = [id(NAMES[name]) for name in LISTED]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(value) for value in NAMES.values()}


def test_every_section_of_the_reference_links_to_its_guide():
    for section in SECTIONS:
        page = re.search(r"\]\((\w+\.md)[)#]", section)
        assert page, section.splitlines()[0]
        assert (DOCS / page[1]).exists()


def test_removed_names_name_their_replacement():
    from torch_lapeig.eigen import Lanczos

    with pytest.raises(TypeError, match=r"torch_lapeig\.eigen\.Lanczos is gone; use ChebyshevSubspace\(\)"):
        Lanczos(seed=0)
    with pytest.raises(ImportError, match="cannot import name 'Lancos'"):
        from torch_lapeig.eigen import Lancos  # noqa: F401
