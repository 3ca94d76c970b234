"""The README on the index page has no dead link, whether the project has an address or not."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="the build backend is not installed: make test installs it")

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\]\(([^)]+)\)")


@pytest.fixture(scope="module")
def for_index_page():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.for_index_page


def test_without_an_address_files_are_words(for_index_page):
    text = for_index_page(README, "")
    assert all(link.startswith(("https://", "#")) for link in LINK.findall(text))
    assert "![" not in text
    text = for_index_page("see [the guide](docs/a.md), [there](https://x.invalid)", "")
    assert text == "see the guide, [there](https://x.invalid)"


def test_with_an_address_files_are_found_there(for_index_page):
    text = for_index_page("![p](docs/p.png) [a](docs/a.md#b) [c](#c)", "https://x.invalid/y")
    raw, blob = "https://x.invalid/y/raw/main/docs", "https://x.invalid/y/blob/main/docs"
    assert text == f"![p]({raw}/p.png) [a]({blob}/a.md#b) [c](#c)"
    assert all(to.startswith(("https://", "#")) for to in LINK.findall(for_index_page(README, "https://x.invalid/y")))


def test_no_address_is_invented():
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'^address = "(.*)"', project, re.MULTILINE) == [""]
    assert "[project.urls]" not in project
