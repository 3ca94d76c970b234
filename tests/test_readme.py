"""The README's code runs as pasted, and its picture is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_runs_as_pasted(number, capsys):
    exec(compile(BLOCKS[number], f"README.md, block {number}", "exec"), {})
    assert capsys.readouterr().out.count("\n") >= 1


def test_links_lead_somewhere():
    assert len(BLOCKS) >= 2
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert len(links) >= 4
    assert all((ROOT / link).exists() for link in links)
