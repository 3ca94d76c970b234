"""What a benchmark shows: printed as it comes, and kept as a machine-readable record."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import rich.table
from rich.console import Console

PACKAGES = (
    *("torch", "numpy", "scipy", "scikit-learn", "faiss-cpu", "pyamg", "torch-geometric", "primme"),
    *("umap-learn", "pynndescent", "jax", "xitorch", "torch-sla", "ncut-pytorch"),
)
Cell = str | float | None


class Table:
    """Rows of values under named columns.

    Args:
        title: above it.
        columns: name and format of each, such as ``.2f``; the format of text is empty.
        chart: the column that a chart of the rows shows; ``"profile"`` where the rows are problems and the columns from
            the third on solvers; None for no chart.
    """

    def __init__(self, title: str, columns: Mapping[str, str], chart: str | None = None) -> None:
        self.title, self.columns, self.chart = title, dict(columns), chart
        self.rows: list[list[Cell]] = []

    def add(self, *cells: Cell) -> None:
        """One row; None where there is no value. Numbers of other kinds become Python's."""
        if len(cells) != len(self.columns):
            raise ValueError(f"a row of {self.title!r} must have {len(self.columns)} cells, got {len(cells)}")
        plain = (c if c is None or isinstance(c, str | int | float) else float(c) for c in cells)
        self.rows.append([*plain])

    def formatted(self) -> list[list[str]]:
        """The rows as text."""
        formats = list(self.columns.values())
        return [[said(cell, form) for cell, form in zip(row, formats, strict=True)] for row in self.rows]

    def pack(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        columns = [[name, form] for name, form in self.columns.items()]
        return {"title": self.title, "columns": columns, "rows": self.rows, "chart": self.chart}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> Table:
        """The inverse of ``pack``."""
        table = cls(packed["title"], dict(packed["columns"]), packed["chart"])
        for row in packed["rows"]:
            table.add(*row)
        return table

    def rich(self) -> rich.table.Table:
        """For a terminal."""
        table = rich.table.Table(title=self.title)
        for name, form in self.columns.items():
            table.add_column(name, justify="right" if form else "left")
        for row in self.formatted():
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For a document."""
        numbers = [bool(form) for form in self.columns.values()]
        return f"**{self.title}**\n\n{markdown(list(self.columns), numbers, self.formatted())}"


def markdown(header: Sequence[str], numbers: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; columns of numbers are aligned on the right."""
    sides = ["---:" if number else "---" for number in numbers]
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [header, sides, *rows])
    return "\n".join(lines)


def said(cell: Cell, form: str) -> str:
    """A cell as text."""
    if cell is None:
        return "–"
    return cell if isinstance(cell, str) else format(cell, form)


class Record:
    """The tables and lines of one run of a benchmark, with when, on what and by which versions they were measured.

    Args:
        benchmark: its name. command: that repeats it. threads: of all libraries. quick: whether with smaller problems.
        console: where they are printed; None for nowhere.
    """

    def __init__(
        self, benchmark: str, command: str, threads: int, *, quick: bool = False, console: Console | None = None
    ) -> None:
        self.benchmark, self.command, self.threads, self.quick, self.console = (
            benchmark,
            command,
            threads,
            quick,
            console,
        )
        self.parts: list[Table | str] = []
        self.begun = datetime.datetime.now(datetime.timezone.utc)

    def show(self, *parts: Table | str) -> None:
        """Print and keep tables and lines."""
        for part in parts:
            self.parts.append(part)
            self.say(part)

    def say(self, part: Table | str) -> None:
        """Print only."""
        if self.console is not None:
            self.console.print(part.rich() if isinstance(part, Table) else part, highlight=False)

    def pack(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        seconds = (datetime.datetime.now(datetime.timezone.utc) - self.begun).total_seconds()
        return {
            "benchmark": self.benchmark,
            "command": self.command,
            "quick": self.quick,
            "date": self.begun.date().isoformat(),
            "seconds": round(seconds, 1),
            "threads": self.threads,
            "clock": clock_of(self.threads),
            "processor": processor(),
            "cores": os.cpu_count(),
            "versions": versions(),
            "parts": [part.pack() if isinstance(part, Table) else part for part in self.parts],
        }

    def write(self, file: Path) -> None:
        """Write the record, whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(self.pack(), indent=1, ensure_ascii=False) + "\n")
        part.replace(file)


def clock_of(threads: int) -> str:
    """What is measured: with one thread seconds of the processor, which a busy neighbour hardly changes."""
    return "processor" if threads == 1 else "elapsed"


def processor() -> str:
    """The model of the processor."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", file.read_text()) if file.exists() else None
    return found.group(1) if found else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Of Python, this library and its peers, where they are installed."""
    found = {"python": platform.python_version()}
    for package in ("torch_lapeig", *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
