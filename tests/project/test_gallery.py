"""The gallery's scripts run without a warning, in sections that the site knows; pages show what the records say.

All scripts run when the site is built. Here run those of a second or two; ``TORCH_LAPEIG_GALLERY=all`` runs all.
"""

import ast
import os
import re
import runpy
from pathlib import Path

import pytest
import torch

from benchmarks import results

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
SCRIPTS = {str(file.relative_to(GALLERY)): file for file in sorted(GALLERY.rglob("plot_*.py"))}
SECTIONS = {"1_first", "2_network", "3_loss", "4_researcher", "5_sklearn"}
QUICK = ("first_embedding", "new_points", "components", "save_and_load", "equal_eigenvalues", "eigengap")
ALL = os.environ.get("TORCH_LAPEIG_GALLERY") == "all"


def test_every_section_has_a_header_and_examples():
    assert {file.parent.name for file in SCRIPTS.values()} == SECTIONS
    assert all((GALLERY / section / "GALLERY_HEADER.rst").is_file() for section in SECTIONS)
    assert len(SCRIPTS) >= 20


def test_a_script_begins_with_a_title_and_uses_public_names_only():
    for name, script in SCRIPTS.items():
        tree = ast.parse(script.read_text())
        title, line, *_ = ast.get_docstring(tree).splitlines()
        assert line == "=" * len(title), name
        imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        ours = [module for module in imported if module.startswith("torch_lapeig")]
        assert ours, name
        assert not any(part.startswith("_") for module in ours for part in module.split(".")), name


def test_the_page_of_the_gallery_has_every_program_and_its_thumbnail():
    """`python docs/thumbnails.py` writes it after `make docs`."""
    page = GALLERY.with_suffix(".md").read_text()
    rows = re.findall(r"^\| !\[(.*?)\]\((.*?)\) \| \[(.*?)\]\((.*?)\)", page, re.MULTILINE)
    assert sorted(script for *_, script in rows) == sorted(f"gallery/{name}" for name in SCRIPTS)
    for name, picture, title, script in rows:
        assert name == title == ast.get_docstring(ast.parse((GALLERY.parent / script).read_text())).splitlines()[0]
        assert (GALLERY.parent / picture).exists()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # of PyTorch Geometric's import
@pytest.mark.parametrize("name", [name for name in SCRIPTS if ALL or any(quick in name for quick in QUICK)])
def test_a_script_runs(name, monkeypatch, capsys):
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.get_fignums()))
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
    finally:
        plt.close("all")
    assert shown
    assert all(shown)
    assert capsys.readouterr().out
    assert torch.get_num_threads() == threads


def test_pages_show_the_numbers_of_the_records():
    records = results.load()
    for page in results.PAGES:
        assert results.fill(page.read_text(), records) == page.read_text(), "run python -m benchmarks results"


def test_a_place_in_a_page_is_filled():
    filled = results.fill("a\n<!-- record nothing begins -->\nold\n<!-- record nothing ends -->\nb\n", {})
    assert "Not recorded on this version." in filled
    assert "old" not in filled
    assert results.fill(filled, {}) == filled
