"""RESULTS.md from the records and a template with what is written by hand; tables of pages from the records.

    python -m benchmarks results

A line ``{{ NAME }}`` of the template becomes the records of that benchmark, ``{{ versions }}`` what they were made by.
Between ``<!-- record NAME begins -->`` and ``<!-- record NAME ends -->`` a page of ``PAGES`` holds the same.
"""

import json
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.tables import Table

HERE = Path(__file__).resolve().parent
RECORDS, TEMPLATE, RESULTS = HERE / "records", HERE / "RESULTS.template.md", HERE / "RESULTS.md"
DOCS = HERE.parent / "docs"
PAGES = (DOCS / "degeneracy.md", DOCS / "coming_from" / "index.md")
PLACE = re.compile(r"^\{\{ (\w+) \}\}$", re.MULTILINE)
PART = re.compile(r"(<!-- record (\w+) begins -->\n).*?(<!-- record \2 ends -->)", re.DOTALL)
NOTHING = "Not recorded on this version."
# Comparisons that were made once. Their programs are in this commit, or the one that the record names.
PAST_COMMIT = "b9b7b64"
PAST = (
    *("spmm", "loss", "transform", "landmarks", "distributed", "peers", "initial", "diffusion", "segmentation"),
    *("degeneracy", "eigensolvers", "matrix_free", "meshes"),
)

Packed = Mapping[str, Any]


def load(folder: Path = RECORDS) -> dict[str, Packed]:
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def machine_of(record: Packed) -> str:
    return f"{record['processor']}, {record['cores']} cores"


def versions_of(record: Packed) -> str:
    return ", ".join(f"{name} {version}" for name, version in record["versions"].items())


def caption(record: Packed) -> str:
    """Return when and how a record was made."""
    threads = f"{record['threads']} threads, elapsed"
    threads = "one thread, seconds of the processor" if record["threads"] == 1 else threads
    commit = record.get("commit", PAST_COMMIT if record["benchmark"] in PAST else None)  # where the program still is
    program = f" of commit {commit}" if commit else ""
    return wrapped(f"`{record['command']}`{program}: {record['date']}, {threads}; {record['seconds']:.0f} s in all.")


def section(record: Packed) -> str:
    parts = (part if isinstance(part, str) else Table.unpack(part).markdown() for part in record["parts"])
    return "\n\n".join([caption(record), *parts])


def sections(name: str, records: Mapping[str, Packed]) -> str:
    """Return all records of a benchmark, or that there is none."""
    return "\n\n".join(section(record) for record in records.values() if record["benchmark"] == name) or NOTHING


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
    def filled(match: re.Match[str]) -> str:
        name = match.group(1)
        return versions(records) if name == "versions" else sections(name, records)

    return PLACE.sub(filled, template)


def fill(page: str, records: Mapping[str, Packed]) -> str:
    """Return a page with the records in their places."""

    def filled(match: re.Match[str]) -> str:
        found = [record for record in records.values() if record["benchmark"] == match.group(2)]
        said = [f"{section(record)}\n\nMade on {machine_of(record)} with {versions_of(record)}." for record in found]
        return match.group(1) + ("\n\n".join(said) or NOTHING) + "\n" + match.group(3)

    return PART.sub(filled, page)


def main() -> None:
    """Write RESULTS.md and the tables of the pages."""
    records = load()
    RESULTS.write_text(generate(TEMPLATE.read_text(), records))
    for page in PAGES:
        page.write_text(fill(page.read_text(), records))
    print(f"{RESULTS.name}: {len(records)} records")
