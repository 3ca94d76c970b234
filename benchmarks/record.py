"""Print what a benchmark shows, and keep it as a machine-readable record."""

import datetime
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.tables import Table, processor, versions


class Record:
    """The tables and lines of one run of a benchmark, by a command; printed if there is a console."""

    def __init__(
        self, benchmark: str, command: str, threads: int, *, quick: bool = False, console: Console | None = None
    ) -> None:
        self.benchmark, self.command, self.threads = benchmark, command, threads
        self.quick, self.console = quick, console
        self.parts: list[Table | str] = []
        self.begun = datetime.datetime.now(datetime.timezone.utc)

    def show(self, *parts: Table | str) -> None:
        for part in parts:
            self.parts.append(part)
            self.say(part)

    def say(self, part: Table | str) -> None:
        if self.console is not None:
            self.console.print(part.rich() if isinstance(part, Table) else part, highlight=False)

    def pack(self) -> dict[str, Any]:
        seconds = (datetime.datetime.now(datetime.timezone.utc) - self.begun).total_seconds()
        return {
            "benchmark": self.benchmark,
            "command": self.command,
            "quick": self.quick,
            "date": self.begun.date().isoformat(),
            "seconds": round(seconds, 1),
            "threads": self.threads,
            "clock": "processor" if self.threads == 1 else "elapsed",  # busy neighbours hardly change the former
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
