"""Numbers in README and docs, filled in from recorded runs.

    python -m experiments results             # fills README.md and docs/**/*.md
    python -m experiments results --check     # says what does not agree, and fails
    python -m experiments results --take runs/bars [--name bars]    # keeps a finished run as a record, then fills

A record is ``experiments/records/NAME.json``: the command, the environment, ``values`` (numbers by name) and ``tables``
(rows of text by title, the header first). Text shows it between two comments, which Markdown hides:

    accuracy <!-- value: bars eigenmaps.mean :.3f -->1.000<!-- end -->, and in a line of its own

    <!-- results: bars 2-means accuracy in 2-D, 20 seeds -->
    (the table)
    <!-- end -->

What follows ``value:`` is a record, the number's name and, after `` :``, a format of Python (``:.1%``, ``:,``).
``benchmarks/layer`` is the record of a benchmark; its numbers are named ``ROW > COLUMN``, or ``TITLE > ROW > COLUMN``
where several tables have that row and column. Nothing here imports torch, but for `record`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.tables import Table, markdown, processor, said, versions

ROOT = Path(__file__).resolve().parents[1]
RECORDS, BENCHMARKS = ROOT / "experiments" / "records", ROOT / "benchmarks" / "records"
COMMENT = re.compile(r"<!--\s*(\w+:\s.*?|end)\s*-->", re.DOTALL)
VALUE = re.compile(r"(?P<record>\S+)\s+(?P<name>.+?)(?:\s+:(?P<form>\S*))?")

Rows = Sequence[Sequence[str]]


class Disagreement(ValueError):
    """A marker that cannot be filled, with its place and the way to mend it."""


@dataclass(frozen=True)
class Found:
    """Content of a record that text may show: numbers by name, tables by title (the header first)."""

    values: Mapping[str, float]
    tables: Mapping[str, Rows]


def record(
    name: str,
    command: str,
    values: Mapping[str, float],
    tables: Mapping[str, Rows],
    folder: Path = RECORDS,
) -> Path:
    """Write the record of a run, whole or not at all; what is not finite is left out of the values.

    Args:
        name: of the file, without ``.json``.
        command: that repeats the run.
        values: numbers by name; a name has no `` :``, which begins the format in text.
        tables: rows of text by title, the header first.
        folder: where records lie.

    Returns:
        The file.

    Raises:
        ValueError: a table is empty or ragged, or a name cannot be written in text.
    """
    import torch

    for title, rows in tables.items():
        if not rows or {len(row) for row in rows} != {len(rows[0])}:
            raise ValueError(f"table {title!r} must have rows of one length, got {[len(row) for row in rows]}")
    for named in (*values, *tables):
        if " :" in named or "--" in named or named != " ".join(named.split()):
            raise ValueError(f"a name must have single spaces, no ' :' and no '--', got {named!r}")
    packed = {
        "command": command,
        "environment": {
            "versions": versions(),
            "threads": torch.get_num_threads(),
            "processor": processor(),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        },
        "values": {named: value for named, value in values.items() if math.isfinite(value)},
        "tables": {title: [[str(cell) for cell in row] for row in rows] for title, rows in tables.items()},
    }
    return _write(folder / f"{name}.json", packed)


def _write(file: Path, packed: Mapping[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(packed, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return part.replace(file)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return numbers in nested dicts by dotted names, and lists named seeds; not other lists, texts and truths."""
    result: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{name}.")
        elif name == "seeds" and isinstance(value, list):
            result |= flat({str(seed): one for seed, one in enumerate(value)}, f"{prefix}seeds.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            result[f"{prefix}{name}"] = value
    return result


def load() -> dict[str, Found]:
    """Return all records: of experiments by their file names, of benchmarks after ``benchmarks/``."""
    found = {}
    for file in sorted(RECORDS.glob("*.json")):
        packed = json.loads(file.read_text())
        found[file.stem] = Found(packed["values"], packed["tables"])
    for file in sorted(BENCHMARKS.glob("*.json")):
        found[f"benchmarks/{file.stem}"] = of_benchmark(json.loads(file.read_text()))
    return found


def of_benchmark(packed: Mapping[str, Any]) -> Found:
    """Return the numbers and tables of a benchmark's record."""
    tables = [Table.unpack(part) for part in packed["parts"] if not isinstance(part, str)]
    cells = [
        (table.title, f"{row[0]} > {column}", cell)
        for table in tables
        for row in table.rows
        for column, cell in zip(table.columns, row, strict=True)
        if isinstance(cell, int | float)
    ]
    times = Counter(place for _, place, _ in cells)
    values = {place if times[place] == 1 else f"{title} > {place}": value for title, place, value in cells}
    return Found(values, {table.title: [list(table.columns), *table.formatted()] for table in tables})


def fill(text: str, records: Mapping[str, Found], page: str = "text") -> str:
    """Return the text with what its markers ask for.

    Raises:
        Disagreement: a marker is unknown, unclosed or begins a line of text, or its record lacks what it asks for.
    """
    result, done = [], 0
    for opening, closing in _pairs(text, page):
        kind, _, asked = opening[1].partition(":")
        where = f"{page}:{text.count(chr(10), 0, opening.start()) + 1}"
        if kind not in MARKERS:
            raise Disagreement(f"{where}: unknown marker {kind!r}: write {' or '.join(MARKERS)}")
        if kind == "value" and text[: opening.start()].rpartition("\n")[2].strip() == "":
            raise Disagreement(f"{where}: a value must not begin a line: Markdown takes such a line for HTML")
        result += [text[done : opening.end()], MARKERS[kind](" ".join(asked.split()), records, where)]
        done = closing.start()
    return "".join([*result, text[done:]])


def _pairs(text: str, page: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Yield opening and closing comments."""
    comments = list(COMMENT.finditer(text))
    for opening, closing in zip(comments[::2], [*comments[1::2], None], strict=False):
        where = f"{page}:{text.count(chr(10), 0, opening.start()) + 1}"
        if opening[1] == "end":
            raise Disagreement(f"{where}: an end without a beginning")
        if closing is None or closing[1] != "end":
            raise Disagreement(f"{where}: {opening[0]} has no <!-- end -->")
        yield opening, closing


def _of(records: Mapping[str, Found], name: str, where: str) -> Found:
    if name not in records:
        raise Disagreement(f"{where}: there is no record {name!r}; there are {', '.join(records) or 'none'}")
    return records[name]


def _value(asked: str, records: Mapping[str, Found], where: str) -> str:
    """Return a number in its format."""
    parts = VALUE.fullmatch(asked)
    if parts is None:
        raise Disagreement(f"{where}: a value is 'RECORD NAME' or 'RECORD NAME :FORMAT', got {asked!r}")
    values = _of(records, parts["record"], where).values
    if parts["name"] not in values:
        raise Disagreement(f"{where}: {parts['record']} has no value {parts['name']!r}; it has {', '.join(values)}")
    try:
        return said(values[parts["name"]], parts["form"] or "")
    except ValueError as error:
        raise Disagreement(f"{where}: {parts['form']!r} is no format of a number ({error})") from error


def _table(asked: str, records: Mapping[str, Found], where: str) -> str:
    """Return a table of Markdown in lines of its own."""
    name, _, title = asked.partition(" ")
    tables = _of(records, name, where).tables
    if title not in tables:
        raise Disagreement(f"{where}: {name} has no table {title!r}; it has {', '.join(map(repr, tables))}")
    header, *rows = tables[title]
    columns = [all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    return f"\n\n{markdown(header, columns, rows)}\n\n"


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[\s\d.,±%×–+/−-]*", cell) is not None  # intervals and times too, and nothing


MARKERS: dict[str, Callable[[str, Mapping[str, Found], str], str]] = {"value": _value, "results": _table}


def pages() -> list[Path]:
    """Return the texts that are filled."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def take(run: Path, name: str | None = None, folder: Path = RECORDS) -> Path:
    """Keep what a finished run left in ``run/record.json`` as a record.

    Raises:
        FileNotFoundError: the run is not finished.
    """
    return _write(folder / f"{name or run.resolve().name}.json", json.loads((run / "record.json").read_text()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill README and docs, or say what does not agree."""
    parser = argparse.ArgumentParser("python -m experiments results", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, and fail where text and records differ")
    parser.add_argument("--take", type=Path, metavar="RUN", help="folder of a finished run to keep as a record")
    parser.add_argument("--name", help="of that record (default: of the folder)")
    options = parser.parse_args(arguments)
    try:
        if options.take is not None:
            print(f"{take(options.take, options.name).relative_to(ROOT)} written")
        records = load()
        filled = {page: fill(page.read_text(), records, str(page.relative_to(ROOT))) for page in pages()}
    except (Disagreement, FileNotFoundError) as error:
        raise SystemExit(f"error: {error}") from None
    changed = [page for page, text in filled.items() if text != page.read_text()]
    names = ", ".join(str(page.relative_to(ROOT)) for page in changed) or "nothing"
    if options.check and changed:
        raise SystemExit(f"error: {names} and the records differ: run python -m experiments results")
    for page in changed:
        page.write_text(filled[page])
    print(f"{len(records)} records; changed: {names}")
