"""The roll of one process, and the refusal of several that nobody has started."""

import json

import pytest

from experiments.__main__ import main


def test_the_first_column_follows_the_roll(tmp_path, capsys, monkeypatch):
    main(["roll", "--quick", "--out", str(tmp_path)])
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["correlation"] > 0.95
    assert metrics["residual"] < 1e-6
    assert metrics["ranks"][0]["points"] == 2000
    assert (tmp_path / "roll.png").exists()
    assert "iteration" in capsys.readouterr().out
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match="torchrun --nproc-per-node 2"):
        main(["roll", "--quick", "--distributed", "--out", str(tmp_path), "--fresh"])
