"""Benchmarks keep what they show; RESULTS.md is made from that and from the template, and nothing else."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import results
from benchmarks.record import Record
from experiments.tables import Table


def table() -> Table:
    found = Table("Times", {"": "", "s": ".2f", "nodes": ","})
    found.add("torch_lapeig", 0.125, 1000)
    found.add("a | b", np.float64(2.0), None)
    return found


def test_results_are_those_of_the_records() -> None:
    generated = results.generate(results.TEMPLATE.read_text(), results.load())
    assert generated == results.RESULTS.read_text(), "run python -m benchmarks results"


def test_the_template_has_a_place_for_every_benchmark() -> None:
    places = results.PLACE.findall(results.TEMPLATE.read_text())
    assert sorted(places) == sorted([*command.BENCHMARKS, *results.PAST, "versions"])


def test_records_are_of_benchmarks_that_there_are() -> None:
    for stem, record in results.load().items():
        assert stem.partition("-")[0] == record["benchmark"]
        assert record["benchmark"] in (*command.BENCHMARKS, *results.PAST)
        assert {"date", "versions", "processor", "cores", "threads", "command"} <= set(record)


def test_tables_keep_numbers_and_say_them_as_asked() -> None:
    found = table()
    assert Table.unpack(json.loads(json.dumps(found.pack()))).pack() == found.pack()
    assert found.formatted() == [["torch_lapeig", "0.12", "1,000"], ["a | b", "2.00", "–"]]
    assert found.markdown().splitlines()[2:] == [
        "|  | s | nodes |", "| --- | ---: | ---: |", "| torch_lapeig | 0.12 | 1,000 |", "| a \\| b | 2.00 | – |",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="3 cells, got 2"):
        found.add("x", 1.0)


def test_a_record_names_its_versions(tmp_path) -> None:
    record = Record("layer", "python -m benchmarks layer", 1)
    record.show(table(), "a line")
    record.write(tmp_path / "deep" / "layer.json")
    packed = json.loads((tmp_path / "deep" / "layer.json").read_text())
    assert packed["clock"] == "processor"
    assert {"torch", "numpy", "scipy"} <= set(packed["versions"])
    assert packed["parts"][0]["rows"][0] == ["torch_lapeig", 0.125, 1000]
    document = results.generate("# Head\n\n{{ versions }}\n\n{{ layer }}\n\n{{ meshes }}\n", {"layer": packed})
    assert "| torch_lapeig | 0.12 | 1,000 |" in document
    assert "a line" in document
    assert f"torch {packed['versions']['torch']}" in document
    assert results.NOTHING in document, "what has no record is not passed over in silence"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch Geometric
@pytest.mark.parametrize("name", command.BENCHMARKS)
def test_every_benchmark_can_be_asked(name: str) -> None:
    try:
        module = command.module_of(name)
    except ImportError as error:
        pytest.skip(f"its peer is not installed: {error}")
    assert command.parser_of(name, module).parse_args(["--quick"]).quick
    assert callable(module.run)
    assert (module.__doc__ or "").strip()
