"""Keeps a finished run as experiments/records/NAME.json: ``python -m experiments.keep runs/bars``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

RECORDS = Path(__file__).with_name("records")
CONFIGS = Path(__file__).parents[1] / "configs"
NO_VALUES = ("config", "versions", "tables", "threads", "elapsed")
PLACES = ("out", "data_dir", "jobs", "fresh", "device")


def keep(folder: Path) -> Path:
    """Write the record of the run in a folder, and return its path.

    Its keys: ``command``; ``environment``, versions and threads; ``values``, all numbers of metrics.json by their path
    in it, such as ``"pca.mean"``; ``tables``, by title, rows of strings, the header first.
    """
    metrics = json.loads((folder / "metrics.json").read_text())
    name = Path(yaml.safe_load((folder / "config.yaml").read_text())["out"]).name
    record = {
        "command": command(name, metrics["config"]),
        "environment": {**metrics["versions"], "threads": metrics["threads"]},
        "values": flat({key: value for key, value in metrics.items() if key not in NO_VALUES}),
        "tables": metrics["tables"],
    }
    RECORDS.mkdir(exist_ok=True)
    path = RECORDS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def command(name: str, config: dict[str, Any]) -> str:
    """What was typed: the arguments that differ from the experiment's own, without those of places."""
    defaults = json.loads(json.dumps(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())))  # as metrics.json is
    others = {key: value for key, value in config.items() if key not in PLACES and defaults.get(key) != value}
    words = [f"--{key} {shlex.quote(json.dumps(value))}" for key, value in others.items()]
    return " ".join(["python -m experiments", name, *words])


def flat(values: Any, path: str = "") -> dict[str, float]:
    """Numbers in nested dicts and lists by their path, ``{"a": {"b": [1]}}`` as ``{"a.b.0": 1}``."""
    if isinstance(values, (bool, int, float)):
        return {path: values}
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return {key: number for name, inner in items for key, number in flat(inner, f"{path}.{name}".strip(".")).items()}


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        print(keep(Path(folder)))
