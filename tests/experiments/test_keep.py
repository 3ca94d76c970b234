"""Records of runs: what is kept of metrics.json."""

import json

from experiments import keep
from experiments.__main__ import main


def test_record_has_command_environment_values_and_tables(tmp_path, monkeypatch):
    folder = tmp_path / "bars"
    few = ["--images", "100", "--seeds", "1", "--others", "[[12, 3]]", "--seeds_of_others", "1", "--device", "cpu"]
    main(["bars", *few, "--out", str(folder)])
    monkeypatch.setattr(keep, "RECORDS", tmp_path)
    record = json.loads(keep.keep(folder).read_text(encoding="utf-8"))
    metrics = json.loads((folder / "metrics.json").read_text())
    assert list(record) == ["command", "environment", "values", "tables"]
    expected = "--images 100 --seeds 1 --others '[[12, 3]]' --seeds_of_others 1"
    assert record["command"] == f"python -m experiments bars {expected}"
    assert record["environment"]["threads"] == metrics["threads"]
    assert record["values"]["pca.mean"] == metrics["pca"]["mean"]
    assert all(isinstance(value, (int, float)) for value in record["values"].values())
    rows = next(iter(record["tables"].values()))
    assert {len(row) for row in rows} == {len(rows[0])}


def test_numbers_by_their_path():
    assert keep.flat({"a": {"b": [1, 2.5]}, "c": "text", "d": None, "e": True}) == {"a.b.0": 1, "a.b.1": 2.5, "e": True}
