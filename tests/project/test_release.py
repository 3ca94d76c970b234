"""A release has one version everywhere, extras that exist, and classifiers of what was run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import torch_lapeig
from benchmarks import ran
from torch_lapeig.support.extras import how_to_install

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()
OPTIONAL = PROJECT.partition("optional-dependencies]")[2].partition("[tool")[0]
EXTRAS = dict(re.findall(r"^(\w+) = \[(.*)\]", OPTIONAL, re.MULTILINE))
ADVICE = re.compile(r"how_to_install\(['\"](\w+)|\bneeded\([^()]*\"(\w+)\"\)|\[(experiments)\]")


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == torch_lapeig.__version__
    assert citation["authors"] == [{"name": "The torch_lapeig developers"}]
    assert citation["license"] in PROJECT
    latest = re.findall(r"^## ([\d.]+) - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest[0] == torch_lapeig.__version__
    assert f'version = "{latest[0]}"' in (ROOT / "recipe" / "meta.yaml").read_text()


def test_errors_advise_extras_that_exist():
    advised = {}
    for folder in ("torch_lapeig", "experiments", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            advised |= dict.fromkeys(map("".join, ADVICE.findall(file.read_text())), file.name)
    assert advised.keys() >= {"sklearn", "ann", "lightning", "experiments"}
    assert advised.keys() <= EXTRAS.keys(), advised


def test_advice_installs_what_the_extras_of_the_project_need():
    for extra, listed in EXTRAS.items():
        if "torch-lapeig[" not in listed and "python_version" not in listed:
            advised = re.findall(r'"(.*?)"', how_to_install(extra))
            assert sorted(advised) == sorted(re.findall(r'"(.*?)"', listed)), extra


def test_without_compiled_loops_large_graphs_say_so_once():
    code = "import torch, torch_lapeig as t\nfor _ in 1, 2: t.LaplacianEigenmaps(1, t.KNN(10))(torch.rand(6000, 3))"
    environment = {**os.environ, "TORCH_LAPEIG_COMPILED": "none.so"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr.count("without compiled loops") == 1
    environment["TORCH_LAPEIG_COMPILED"] = "0"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment).returncode == 0


def test_show_versions_says_what_a_report_needs(capsys):
    torch_lapeig.show_versions()
    said = capsys.readouterr().out
    assert f"torch-lapeig {torch_lapeig.__version__}\ntorch {torch.__version__}" in said
    assert all(word in said for word in ("compiled loops: ", "threads: ", "devices: cpu", "onnx"))


def test_classifiers_name_pythons_that_ran():
    found = re.findall(r"Programming Language :: Python :: (3\.\d+)", PROJECT)
    ran_on = {".".join(row["python"].split(".")[:2]) for row in json.loads(ran.RECORD.read_text())}
    assert {"3.10", "3.11", "3.12"} <= {*found} <= ran_on


def test_the_table_of_versions_is_written_by_its_script(tmp_path):
    """A run of one test gives its row, which takes the place of the older one; the page has the recorded rows."""
    recorded = json.loads(ran.RECORD.read_text())
    assert ran.BEGIN + ran.table(recorded) + ran.END in ran.PAGE.read_text()
    (tmp_path / "test_one.py").write_text("def test_one(): pass\ndef test_other(): assert 0\n")
    row = ran.run("two", [str(tmp_path), "-p", "no:cacheprovider"])
    assert (row["passed"], row["failed"], row["torch"]) == ("1", "1", torch.__version__)
    assert len(ran.added(ran.added(recorded, row), row)) == len(recorded) + 1


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda f: f.stem)
def test_issue_forms(form):
    known = yaml.safe_load(form.read_text())
    if form.stem != "config":
        assert {"name", "description", "body"} <= known.keys()
        assert len({part["id"] for part in known["body"]}) == len(known["body"])


@pytest.mark.parametrize("file", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda file: file.stem)
def test_workflows_run_what_there_is_on_the_pythons_of_the_classifiers(file):
    jobs = yaml.safe_load(file.read_text())["jobs"]
    makefile = (ROOT / "Makefile").read_text()
    for command in (step["run"] for job in jobs.values() for step in job["steps"] if "run" in step):
        for target in re.findall(r"make (\w+)", command):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    if file.stem == "tests":
        ran = {jobs["gate"]["steps"][1]["with"]["python-version"], *jobs["tests"]["strategy"]["matrix"]["python"]}
        assert ran == set(re.findall(r"Python :: (\d\.\d+)", PROJECT))


@pytest.mark.parametrize(("compiler", "reason"), [("absent-cc", "there is no absent-cc"), ("false", "false failed")])
def test_where_loops_cannot_be_compiled_one_sentence_says_why_and_what_to_install(compiler, reason, tmp_path):
    """The library that worked stays."""
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    native = shutil.copytree(ROOT / "torch_lapeig" / "native", tmp_path / "torch_lapeig" / "native")
    (native / "kernels.so").write_text("worked")
    command, environment = [sys.executable, tmp_path / "hatch_build.py"], {**os.environ, "CC": compiler}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (native / "kernels.so").read_text() == "worked"
    assert done.stdout.startswith("Compiling")
    (sentence,) = done.stderr.splitlines()
    assert reason in sentence
    assert "install a C compiler" in sentence
