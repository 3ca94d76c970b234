"""Numbers in README and docs are those of the recorded runs, and markers that cannot be filled are refused."""

import subprocess
import sys

import pytest

from experiments import results
from experiments.results import Disagreement, Found, fill
from problems import touches_border

RECORDS = {
    "bars": Found({"mean": 0.99951, "least > x": 1234.0}, {"One, two": [["", "a"], ["x | y", "1 ± 2"], ["z", ""]]}),
    "benchmarks/layer": Found({"ours > ms": 2.0}, {}),
}


def test_text_and_records_agree():
    records = results.load()
    for page in results.pages():
        text = page.read_text()
        assert fill(text, records, page.name) == text, "run python -m experiments results"


def test_nothing_of_a_picture_is_cut():
    """Ink that reaches the border of a plot is a label or a legend that does not end there."""
    pictures = sorted((results.ROOT / "docs" / "images").rglob("*.png"))
    assert len(pictures) > 9
    assert [picture.name for picture in pictures if touches_border(picture)] == []


def test_figures_of_the_readme_are_those_of_records():
    """The README has no markers, which would stand within its sentences."""
    records = results.load()

    def cell(record, title, row, column):
        header, *rows = next(rows for name, rows in records[f"benchmarks/{record}"].tables.items() if title in name)
        return float(next(line for line in rows if line[0] == row)[header.index(column)].replace(",", ""))

    roll = [cell("eigensolvers-large", "Swiss roll", row, "s") for row in ("100,000", "1,000,000")]
    memory = cell("eigensolvers-large", "Swiss roll", "1,000,000", "peak MiB") / 1024
    text = " ".join((results.ROOT / "README.md").read_text().split())
    times = f"{roll[0]:.1f} s on two cores; those of a million points take {roll[1]:.0f} s and {memory:.1f} GiB"
    assert f"100,000 points take {times}" in text

    pyg, us, dense = "PyG, is_undirected=True", "torch_lapeig", "cdist, topk, eigh: the same graph"
    factored, eigsh = "torch_lapeig FactoredCosine", "SciPy eigsh, LinearOperator"
    shown = {
        "MNIST's test set": ("embedding", "MNIST", us, "scikit-learn lobpcg", "processor s"),
        "layer, 32 × 256": ("layer", "32 × 256", us, dense, "forward + backward ms"),
        "bumpy sphere": ("meshes", "Bumpy sphere", us, "LaPy", "s"),
        "the molecules": ("positional_encoding", "1000 graphs", "AddLaplacianPE, one by one", pyg, "graphs / s"),
        "1,000,000 sparse": ("matrix_free", "10 columns", factored, eigsh, "s of the processor"),
    }
    rows = [line for line in (results.ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    for name, (record, title, ours, theirs, column) in shown.items():
        here, there = cell(record, title, ours, column), cell(record, title, theirs, column)
        row = next(row for row in rows if row.startswith(f"| {name}")).replace(",", "")
        ratio = there / here if "a second" in row else here / there
        assert f"| {here:g} " in row, row
        assert f" {there:g} " in row or f" {there:.1f} " in row, row
        assert abs(float(row.strip("| ").split("|")[-1].strip(" *")) - ratio) < 0.1, row
    ways = "AddLaplacianPE, a batch", pyg
    ours, theirs = (1e6 / cell("positional_encoding", "1000 graphs", row, "graphs / s") for row in ways)
    assert f"| {ours:.0f} ms | PyTorch Geometric: {theirs:.0f} ms |" in text
    small = [cell("layer", "Small sets", "1 × 64", column) for column in ("torch_lapeig ms", "plain torch ms")]
    assert f"| {small[0]:g} ms | plain torch: {small[1]:g} ms |" in text
    columns = "torch_lapeig, ms", "eigh with its backward, ms"
    ours, theirs = (cell("backward", "Dense", "64 × 128, all pairs", column) for column in columns)
    assert f"| {ours:g} ms | `eigh`: {theirs:g} ms |" in text


VALUES = [("bars mean", "0.99951"), ("bars mean :.3f", "1.000"), ("bars mean :.1%", "100.0%")]
VALUES += [("bars\n  least > x :,.0f", "1,234"), ("benchmarks/layer ours > ms :.0f", "2")]


@pytest.mark.parametrize(("asked", "shown"), VALUES)
def test_a_value_is_filled_in_and_stays(asked, shown):
    filled = fill(f"it is <!-- value: {asked} -->?<!-- end -->.", RECORDS)
    assert filled == f"it is <!-- value: {asked} -->{shown}<!-- end -->."
    assert fill(filled, RECORDS) == filled


def test_a_table_is_filled_in_and_stays():
    text = "a\n\n<!-- results: bars One, two -->\n<!-- end -->\n\nb <!-- a comment --> c"
    filled = fill(text, RECORDS)
    table = "|  | a |\n| --- | ---: |\n| x \\| y | 1 ± 2 |\n| z |  |"
    assert filled == text.replace("two -->\n", f"two -->\n\n{table}\n\n")
    assert fill(filled, RECORDS) == filled


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a <!-- value: bars mean -->1", "page:1: <!-- value: bars mean --> has no <!-- end -->"),
        ("a <!-- value: bars mean -->1 <!-- value: bars mean -->1<!-- end -->", "page:1: .* has no <!-- end -->"),
        ("a\n1<!-- end -->", "page:2: an end without a beginning"),
        ("a <!-- number: bars mean -->1<!-- end -->", "unknown marker 'number': write value or results"),
        ("a <!-- value: bar mean -->1<!-- end -->", "no record 'bar'; there are bars, benchmarks/layer"),
        ("a <!-- value: bars median -->1<!-- end -->", "bars has no value 'median'; it has mean"),
        ("a <!-- value: bars -->1<!-- end -->", "a value is 'RECORD NAME'"),
        ("a <!-- value: bars mean :.3d -->1<!-- end -->", "'.3d' is no format of a number"),
        ("a\n <!-- value: bars mean -->1<!-- end -->", "page:2: a value must not begin a line"),
        ("<!-- results: bars One -->\n<!-- end -->", "bars has no table 'One'; it has 'One, two'"),
    ],
)
def test_markers_that_cannot_be_filled_are_refused_with_their_place(text, says):
    with pytest.raises(Disagreement, match=says):
        fill(text, RECORDS, "page")


def test_the_command_changes_differing_places_and_checks(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("it is <!-- value: bars mean :.0f -->2<!-- end -->")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "pages", lambda: [page])
    monkeypatch.setattr(results, "load", lambda: RECORDS)
    with pytest.raises(SystemExit, match=r"page\.md and the records differ"):
        results.main(["--check"])
    results.main([])
    assert page.read_text() == "it is <!-- value: bars mean :.0f -->1<!-- end -->"
    results.main(["--check"])
    assert capsys.readouterr().out.endswith("changed: nothing\n")


def test_reading_records_imports_no_torch():
    code = "import sys; from experiments import results; results.load(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
