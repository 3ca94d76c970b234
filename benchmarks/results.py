"""RESULTS.md from the records and a template with what is written by hand; charts and tables of pages from the records.

    python -m benchmarks results [--no-charts]

A line ``{{ NAME }}`` of the template becomes the records of that benchmark, ``{{ versions }}`` what they were made by.
Between ``<!-- record NAME begins -->`` and ``<!-- record NAME ends -->`` a page of ``PAGES`` holds the same.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.tables import Table

HERE = Path(__file__).resolve().parent
RECORDS, TEMPLATE, RESULTS = HERE / "records", HERE / "RESULTS.template.md", HERE / "RESULTS.md"
DOCS = HERE.parent / "docs"
PAGES = (DOCS / "degeneracy.md", DOCS / "coming_from" / "index.md")
IMAGES = HERE.parent / "docs" / "images" / "benchmarks"
PLACE = re.compile(r"^\{\{ (\w+) \}\}$", re.MULTILINE)
PART = re.compile(r"(<!-- record (\w+) begins -->\n).*?(<!-- record \2 ends -->)", re.DOTALL)
NOTHING = "Not recorded on this version."
PROFILE = "profile"  # what a table says for a chart that is a performance profile

Packed = Mapping[str, Any]


def load(folder: Path = RECORDS) -> dict[str, Packed]:
    """Return records by the names of their files."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def tables_of(record: Packed) -> list[Table]:
    return [Table.unpack(part) for part in record["parts"] if not isinstance(part, str)]


def machine_of(record: Packed) -> str:
    return f"{record['processor']}, {record['cores']} cores"


def versions_of(record: Packed) -> str:
    return ", ".join(f"{name} {version}" for name, version in record["versions"].items())


def caption(record: Packed) -> str:
    """Return when and how a record was made."""
    threads = (
        "one thread, seconds of the processor" if record["threads"] == 1 else f"{record['threads']} threads, elapsed"
    )
    return wrapped(f"`{record['command']}`: {record['date']}, {threads}; {record['seconds']:.0f} s in all.")


def section(name: str, record: Packed) -> str:
    """Return a record as Markdown; what its picture shows in whole, a performance profile, is in the record only."""
    tables = (part if isinstance(part, str) else Table.unpack(part) for part in record["parts"])
    parts = [
        part if isinstance(part, str) else part.markdown()
        for part in tables
        if isinstance(part, str) or part.chart != PROFILE
    ]
    picture = [f"![{name}](../docs/images/benchmarks/{name}.png)"] if any(t.chart for t in tables_of(record)) else []
    return "\n\n".join([caption(record), *parts, *picture])


def sections(name: str, records: Mapping[str, Packed]) -> str:
    """Return all records of a benchmark, or that there is none."""
    found = [section(stem, record) for stem, record in records.items() if record["benchmark"] == name]
    return "\n\n".join(found) or NOTHING


def versions(records: Mapping[str, Packed]) -> str:
    """Return the versions and machines of the records, each once."""
    said: dict[str, list[str]] = {}
    for stem, record in records.items():
        said.setdefault(f"{machine_of(record)}; {versions_of(record)}", []).append(stem)
    lines = (f"- {', '.join(stems)}: {environment}." for environment, stems in said.items())
    return "\n".join(wrapped(line, "  ") for line in lines) or NOTHING


def wrapped(text: str, indent: str = "") -> str:
    """Return a paragraph in lines of at most 100 characters; ``indent`` of all lines but the first."""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def generate(template: str, records: Mapping[str, Packed]) -> str:
    """Return the document."""

    def filled(match: re.Match[str]) -> str:
        name = match.group(1)
        return versions(records) if name == "versions" else sections(name, records)

    return PLACE.sub(filled, template)


def fill(page: str, records: Mapping[str, Packed]) -> str:
    """Return a page with the records in their places."""

    def filled(match: re.Match[str]) -> str:
        found = [(stem, record) for stem, record in records.items() if record["benchmark"] == match.group(2)]
        said = [
            f"{section(stem, record)}\n\nMade on {machine_of(record)} with {versions_of(record)}."
            for stem, record in found
        ]
        return match.group(1) + ("\n\n".join(said) or NOTHING) + "\n" + match.group(3)

    return PART.sub(filled, page)


def bars(table: Table, axes: Any) -> None:
    """Draw one column of a table as horizontal bars with their values."""
    column = list(table.columns).index(table.chart or "")
    rows = [(str(row[0]), row[column]) for row in table.rows if isinstance(row[column], int | float)]
    names, values = [name for name, _ in rows], [float(value) for _, value in rows if isinstance(value, int | float)]
    ours = [name.startswith(("torch_lapeig", "AddLaplacianPE")) for name in names]
    found = axes.barh(names, values, color=["#1f6fb4" if own else "#b9c4cf" for own in ours])
    axes.bar_label(found, fmt="%.2f", padding=3, fontsize="small")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(table.title, fontsize="small")
    axes.set_xlabel(table.chart)


def draw(name: str, tables: Sequence[Table], folder: Path = IMAGES) -> None:
    """Draw the chart of a record."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.png"
    profiles = [table for table in tables if table.chart == PROFILE]
    if profiles:
        from benchmarks.atlas.report import picture

        picture(profiles[0], file)
        return
    heights = [0.8 + 0.3 * len(table.rows) for table in tables]
    figure, axes = plt.subplots(
        len(tables), 1, figsize=(8, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for table, place in zip(tables, axes[:, 0], strict=True):
        bars(table, place)
    figure.savefig(file, dpi=80)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write RESULTS.md and the charts."""
    parser = argparse.ArgumentParser("benchmarks results", description=__doc__)
    parser.add_argument("--no-charts", action="store_true")
    options = parser.parse_args(arguments)
    records = load()
    RESULTS.write_text(generate(TEMPLATE.read_text(), records))
    for page in PAGES:
        page.write_text(fill(page.read_text(), records))
    for name, record in records.items():
        charts = [table for table in tables_of(record) if table.chart]
        if charts and not options.no_charts:
            draw(name, charts)
    print(f"{RESULTS.name}: {len(records)} records")
