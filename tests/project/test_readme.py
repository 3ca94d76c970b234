"""The code of README and docs runs as pasted, and their links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
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


def test_code_fits_a_page():
    """README and its pages; `docs/conf.py` checks all that the site shows: outputs, examples and programs too."""
    for name, page in PAGES.items():
        fenced = re.findall(r"^```(.*)\n((?s:.*?))^```$", page.read_text(), re.MULTILINE)
        code = "".join(text for kind, text in fenced if not kind.startswith("{"))
        assert [line for line in code.splitlines() if len(line) > 88] == [], name


# Words that people search for, and the pages that answer.
SEARCHED = {
    "DDP": ["distributed.md", "layer.md"],
    "command line": ["command.md", "guide.md"],
    "few labels": ["newpoints.md", "losses.md", "sklearn.md"],
    "semi-supervised": ["newpoints.md"],
    "label propagation": ["newpoints.md"],
    "disconnected": ["graphs.md", "layer.md", "sklearn.md", "theory.md"],
    "out of sample": ["newpoints.md"],
}


@pytest.mark.parametrize("words", SEARCHED)
def test_pages_have_the_words_that_people_search_for(words):
    for name in SEARCHED[words]:
        assert words.lower() in " ".join(PAGES[name].read_text().lower().split()), name


def test_guide_lists_every_page_once():
    text = PAGES["guide.md"].read_text()
    listed = re.findall(r"\]\(([\w/]+)\.md\)", text)
    contents = re.findall(
        r"^(?:.*<)?([\w/]+)>?$", "".join(re.findall(r"^```{toctree}.*?^```", text, re.DOTALL | re.M)), re.M
    )
    assert len(listed) == len(set(listed))
    assert set(listed) == set(contents)


def test_links_lead_to_files():
    for name, page in PAGES.items():
        links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
        assert len(links) >= 4 or name != "README.md"
        assert [link for link in links if not (page.parent / link).exists()] == [], name


@pytest.mark.parametrize("length", [60, 75], ids=["as long as the longest", "longer"])
def test_padding_does_not_reach_the_results_of_the_layer_page(length):
    """Each cloud gives, with its gradients, what it gives alone, whatever the padding holds."""
    names = {}
    exec(compile(BLOCKS["layer.md 0"], "layer.md", "exec"), names)
    torch.manual_seed(0)
    network = names["PointNet"]().double()
    clouds = [torch.randn(1, n, 3, dtype=torch.float64) for n in (60, 30, 11, 5, 2)]
    whole = [torch.ones(1, cloud.shape[1], dtype=torch.bool) for cloud in clouds]
    alone = torch.cat([network(cloud, mask) for cloud, mask in zip(clouds, whole, strict=True)])
    mask = torch.cat([torch.nn.functional.pad(row, (0, length - row.shape[1])) for row in whole])
    for filling in (0.0, 100.0, torch.nan):
        padded = torch.full((len(clouds), length, 3), filling, dtype=torch.float64)
        padded[mask] = torch.cat([cloud[0] for cloud in clouds])
        together = network(padded, mask)
        torch.testing.assert_close(together, alone)
        slopes, expected = (
            torch.autograd.grad(result.square().sum(), list(network.parameters()), retain_graph=True)
            for result in (together, alone)
        )
        torch.testing.assert_close(slopes, expected)
