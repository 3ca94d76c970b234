"""A release has one version everywhere, extras that exist, and classifiers of what was run."""

import re
from pathlib import Path

import pytest
import yaml

import torch_lapeig

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()
ADVICE = re.compile(r'pip install (?:-e )?"(?:torch-lapeig|\.)\[(\w+)\]"')


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == torch_lapeig.__version__
    assert citation["authors"] == [{"name": "The torch_lapeig developers"}]
    assert citation["license"] in PROJECT
    latest = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest[0] in ("Unreleased", torch_lapeig.__version__)


def test_errors_advise_extras_that_exist():
    extras = dict(re.findall(r"^(\w+) = \[(.*)\]", PROJECT.partition("optional-dependencies]")[2], re.MULTILINE))
    advised = {}
    for folder in ("torch_lapeig", "experiments", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            advised |= dict.fromkeys(ADVICE.findall(file.read_text()), file.name)
    assert advised.keys() >= {"sklearn", "ann", "lightning", "experiments"}
    assert advised.keys() <= extras.keys(), advised


def test_classifiers_name_the_pythons_of_ci():
    """The suite runs on one Python; what `make test-pythons` tries of the others is no test of the package."""
    found = re.findall(r"Programming Language :: Python :: (3\.\d+)", PROJECT)
    assert found == ["3.11"]


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda f: f.stem)
def test_issue_forms(form):
    known = yaml.safe_load(form.read_text())
    if form.stem != "config":
        assert {"name", "description", "body"} <= known.keys()
        assert len({part["id"] for part in known["body"]}) == len(known["body"])
