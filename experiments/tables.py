"""Tables of measured values, and the environment that they were measured in; nothing here imports torch."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import rich.table

PACKAGES = (
    *("torch", "numpy", "scipy", "scikit-learn", "faiss-cpu", "pyamg", "torch-geometric", "primme"),
    *("umap-learn", "pynndescent", "jax", "xitorch", "torch-sla", "ncut-pytorch", "scanpy", "scikit-image"),
)
Cell = str | float | None
PAGE_WIDTH = 100  # maximum characters of a row of a table in a document, unless two columns take more


class Table:
    """Rows of values under named columns.

    Args:
        title: above it.
        columns: name and format of each, such as ``.2f``; the format of text is empty.
    """

    def __init__(self, title: str, columns: Mapping[str, str]) -> None:
        self.title, self.columns = title, dict(columns)
        self.rows: list[list[Cell]] = []

    def add(self, *cells: Cell) -> None:
        """Add one row; None where there is no value; other numbers become Python's."""
        if len(cells) != len(self.columns):
            raise ValueError(f"a row of {self.title!r} must have {len(self.columns)} cells, got {len(cells)}")
        plain = (c if c is None or isinstance(c, str | int | float) else float(c) for c in cells)
        self.rows.append([*plain])

    def formatted(self) -> list[list[str]]:
        """Return the rows as text."""
        formats = list(self.columns.values())
        return [[said(cell, form) for cell, form in zip(row, formats, strict=True)] for row in self.rows]

    def pack(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        columns = [[name, form] for name, form in self.columns.items()]
        return {"title": self.title, "columns": columns, "rows": self.rows}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> Table:
        """Return the inverse of ``pack``."""
        table = cls(packed["title"], dict(packed["columns"]))
        for row in packed["rows"]:
            table.add(*row)
        return table

    def rich(self) -> rich.table.Table:
        """Return the table for a terminal."""
        table = rich.table.Table(title=self.title)
        for name, form in self.columns.items():
            table.add_column(name, justify="right" if form else "left")
        for row in self.formatted():
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """Return the table for a document, in parts that fit a page, without columns in which every cell is empty.

        Each part begins with the leading columns that identify a row.
        """
        rows = self.formatted()
        kept = [i for i, _ in enumerate(self.columns) if not rows or any(row[i] not in ("", "–") for row in rows)]
        names, forms = list(self.columns), list(self.columns.values())
        widths = [max(len(cell) for cell in (names[i], *(row[i] for row in rows))) + 3 for i in kept]
        keys = 1
        while keys < len(kept) and len({tuple(row[i] for i in kept[:keys]) for row in rows}) < len(rows):
            keys += 1
        parts: list[list[int]] = [[]]
        for position in range(keys, len(kept)):
            if parts[-1] and sum(widths[:keys]) + sum(widths[p] for p in [*parts[-1], position]) > PAGE_WIDTH:
                parts.append([])
            parts[-1].append(position)
        shown = [[*kept[:keys], *(kept[p] for p in part)] for part in parts]
        found = [
            markdown([names[i] for i in part], [bool(forms[i]) for i in part], [[row[i] for i in part] for row in rows])
            for part in shown
        ]
        return "\n\n".join([f"**{self.title}**", *found])


def markdown(header: Sequence[str], numbers: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown; columns of numbers are aligned on the right."""
    sides = ["---:" if number else "---" for number in numbers]
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [header, sides, *rows])
    return "\n".join(lines)


def said(cell: Cell, form: str) -> str:
    """Return a cell as text."""
    if cell is None:
        return "–"
    return cell if isinstance(cell, str) else format(cell, form)


def processor() -> str:
    """Return the model of the processor."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", file.read_text()) if file.exists() else None
    return found.group(1) if found else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python, this library and its peers, if they are installed."""
    found = {"python": platform.python_version()}
    for package in ("torch_lapeig", *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
