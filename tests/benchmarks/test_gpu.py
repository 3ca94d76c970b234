"""The command for a GPU runs without one, and says so."""

import json

import pytest
import torch

from benchmarks import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the command itself is run, at full size")
def test_every_part_runs_small_on_the_processor(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu.launches, "counted", lambda quick: iter(()))  # which has a test of its own
    file = tmp_path / "gpu.json"
    assert gpu.main(["--json", str(file), "--compare"]) == 0
    assert "no GPU" in capsys.readouterr().out
    parts = json.loads(file.read_text())["parts"]
    assert "Error" not in str(parts)
    tables = {part["title"]: part["rows"] for part in parts if isinstance(part, dict)}
    assert len(tables) == len(gpu.PARTS)
    (embedded,) = (rows for title, rows in tables.items() if title.startswith("Embeddings"))
    assert all(row[5] < 1e-3 and row[6] == 1 for row in embedded)  # residual, agreement with itself
    (layers,) = (rows for title, rows in tables.items() if title.startswith("Layer"))
    assert all(row[1] > 0 < row[2] for row in layers)
