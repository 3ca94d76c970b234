"""The code of README and docs runs as pasted, and their links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = {page.name: page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
BLOCKS = {
    f"{name} {number}": block
    for name, page in PAGES.items()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
}


@pytest.mark.parametrize("name", BLOCKS)
def test_code_runs_as_pasted(name, capsys):
    torch.manual_seed(0)
    exec(compile(BLOCKS[name], name, "exec"), {})
    assert capsys.readouterr().out.count("\n") >= 1


def test_there_is_code():
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert len(links) >= 4 or page.name != "README.md"
    assert all((page.parent / link).exists() for link in links)
