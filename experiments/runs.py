"""Folder of a run: what was asked for, what is finished of it, what came out; so that a second call goes on with it.

An experiment is a function of typed keyword arguments, those of the command line. It begins with
``run = Run(out, locals())``, does its work in cells, and ends with ``run.finish(metrics)``: see `experiments.bars`.
"""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
import yaml
from joblib import Parallel, delayed, parallel_config
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

import torch_lapeig
from experiments.results import flat, record

PLACES = ("out", "data_dir", "jobs", "fresh")  # arguments that do not change what is computed

Case = tuple[str | int | float, ...]
Result = dict[str, Any]


class Refusal(Exception):
    """A wish that cannot be fulfilled, and what to do instead; the command line shows it without a traceback."""


class Run:
    """The folder ``out`` of one run.

    config.yaml: every argument as it was resolved, to be given to ``--config``. cells.jsonl: arguments and versions,
    then the results of the finished cells. cells/: what cells keep while they are not finished, such as checkpoints.
    metrics.json: the outcome with arguments, versions and seconds. record.json: its numbers and tables, for README and
    docs (`experiments.results`). Figures as PNG and PDF.

    The process may be killed at any moment: files that are read again are written aside and then take their place, and
    a cell is finished once its line in cells.jsonl is whole, line end included. A last line without one is dropped.

    Args:
        out: made where there is none.
        arguments: of the experiment, ``locals()`` in its first lines. With ``fresh`` true what is there is not used.

    Raises:
        Refusal: the folder holds cells of other arguments or other versions, or a line of cells.jsonl is damaged.
    """

    def __init__(self, out: Path, arguments: dict[str, Any]) -> None:
        self.out = out
        self.versions = _versions()
        self.config = {name: _plain(value) for name, value in arguments.items()}
        self._start, self._began = time.perf_counter(), time.process_time()
        self._seconds: dict[tuple[str, Case], float] = {}
        self._spent = 0.0  # of this process while cells were computed, by this call
        self._finished: dict[tuple[str, Case], Result] = {}
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refusal(f"--out must be a folder that there is or can be made: {error}") from error
        self._cells = out / "cells.jsonl"
        if arguments.get("fresh"):
            self._cells.unlink(missing_ok=True)
        asked = {name: value for name, value in self.config.items() if name not in PLACES} | self.versions
        self._resume(json.loads(json.dumps(asked)))
        with replacing(out / "config.yaml") as part:
            part.write_text(yaml.safe_dump({**self.config, "fresh": False}, sort_keys=False))

    def _resume(self, asked: dict[str, Any]) -> None:
        """Read the finished cells, or begin the file; a line that an interruption cut short is dropped."""
        text = self._cells.read_bytes() if self._cells.exists() else b""
        whole = text[: text.rfind(b"\n") + 1] or b"{}\n"
        head, *lines = (self._line(number, line) for number, line in enumerate(whole.split(b"\n")[:-1], start=1))
        begun = bool(lines) or any((self.out / "cells").glob("*/*/*.ckpt"))
        if head != asked:
            if begun and head:
                _refuse_others(self.out, head, asked)
            shutil.rmtree(self.out / "cells", ignore_errors=True)  # not known to be of these arguments
            lines = []
            whole = json.dumps(asked).encode() + b"\n"
        if whole != text:
            with replacing(self._cells) as part:
                part.write_bytes(whole)
        for line in lines:
            key = line["part"], tuple(line["case"])
            self._finished[key], self._seconds[key] = line["result"], line["seconds"]

    def _line(self, number: int, line: bytes) -> dict[str, Any]:
        """Return a line of cells.jsonl: arguments in the first line, else a finished cell and its checksum."""
        try:
            found = json.loads(line)
            if not isinstance(found, dict) or (number > 1 and found.pop("crc", None) != _checksum(found)):
                raise ValueError("it is not as it was written")
        except ValueError as error:
            way_out = "pass --fresh true to start anew"
            way_out = way_out if number == 1 else f"delete this line to compute its cell again, or {way_out}"
            raise Refusal(f"{self._cells} is damaged in line {number} ({error}): {way_out}") from error
        return found

    def cells(
        self,
        part: str,
        compute: Callable[..., Result],
        cases: Iterable[Case],
        jobs: int | None = 1,
        keeps: Iterable[str] = (),
    ) -> dict[Any, Result]:
        """Return ``compute(*case)`` for each case, with a progress bar; cells that an earlier call finished are read.

        Args:
            part: name of this kind of cells, unique in the experiment.
            compute: returns what JSON can hold (numbers, strings, lists, dicts with strings as keys), and fixes its own
                seeds from the case, so that the order of cells does not matter.
            cases: tuples of strings and numbers.
            jobs: processes of one thread each that compute them; None: one for each core; 1: none but this one, with
                its threads.
            keeps: names of files in `folder` that belong to a finished cell; one that lacks them is computed again.

        Returns:
            The result of each case; a case of one element also stands for itself: ``{3: …}`` for ``(3,)``.

        Raises:
            Refusal: no process.
        """
        check_least("jobs", 1 if jobs is None else jobs, 1)
        cases = list(cases)
        names = list(keeps)

        def finished(case: Case) -> bool:
            return (part, case) in self._finished and all((self._folder(part, case) / name).exists() for name in names)

        todo = [case for case in cases if not finished(case)]
        if len(todo) < len(cases):
            print(f"{part}: {len(cases) - len(todo)} of {len(cases)} cells read from {self._cells}")
        start = time.process_time()
        with tqdm(total=len(todo), desc=part, unit="cell", disable=not todo) as bar, self._cells.open("a") as file:
            for case, computed, seconds in _computed(compute, todo, jobs):
                # What is written and read again is what a resumed run sees: both go on with the same.
                result = json.loads(json.dumps(computed))
                cell = {"part": part, "case": case, "result": result, "seconds": seconds}
                file.write(json.dumps({**cell, "crc": _checksum(cell)}) + "\n")
                file.flush()
                for checkpoint in self._folder(part, case).glob("*.ckpt*"):  # and what is left of one half written
                    checkpoint.unlink()
                self._finished[part, case], self._seconds[part, case] = result, seconds
                bar.set_postfix_str(" ".join(map(str, case)))
                bar.update()
        self._spent += time.process_time() - start
        return {case[0] if len(case) == 1 else case: self._finished[part, case] for case in cases}

    def _folder(self, part: str, case: Case) -> Path:
        return self.out / "cells" / part / "-".join(map(str, case))

    def folder(self, part: str, *case: str | int | float) -> Path:
        """Return a folder for one cell, kept between calls unless ``fresh``; checkpoints (.ckpt) until the end."""
        path = self._folder(part, case)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def figure(self, name: str, figure: Figure, dpi: int = 110) -> None:
        """Write ``name``.png and ``name``.pdf."""
        figure.savefig(self.out / f"{name}.png", dpi=dpi, bbox_inches="tight")  # legends and titles that stand out, too
        figure.set_layout_engine("none")  # the layout stays as it is now, without the time of a second one
        figure.savefig(self.out / f"{name}.pdf", bbox_inches="tight")

    def finish(self, metrics: Result, *tables: Table) -> None:
        """Write metrics.json, with arguments, versions and seconds, and record.json; print tables.

        ``seconds`` are of the processor, so that other programs do not count: of all cells, added up, and of the rest.
        ``elapsed`` are those of this call by the clock. Of a cell that was interrupted its last part counts.
        """
        elapsed = time.perf_counter() - self._start
        seconds = time.process_time() - self._began - self._spent + sum(self._seconds.values())
        times = {"seconds": round(seconds, 1), "elapsed": round(elapsed, 1)}
        shown = {str(table.title): _rows(table) for table in tables}
        about = {"tables": shown, "config": self.config, "versions": self.versions, "threads": torch.get_num_threads()}
        outcome = {**metrics, **about, **times}
        with replacing(self.out / "metrics.json") as part:
            part.write_text(json.dumps(outcome, indent=2) + "\n")
        record("record", _command(sys.argv[1:]), flat({**metrics, **times}), shown, self.out)
        for table in tables:
            Console(width=None if sys.stdout.isatty() else 120).print(table)
        figures = " and figures" if any(self.out.glob("*.png")) else ""
        print(f"{self.out / 'metrics.json'}{figures} written in {elapsed:.0f} s")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to, which then replaces it: a kill leaves one whole file."""
    part = path.with_name(f"{path.name}.part")
    yield part
    part.replace(path)


def load_tensors(path: Path, way_out: str) -> Any:
    """Return the contents of a file of `torch.save`, on the CPU: tensors, numbers, strings and containers.

    Args:
        path: of the file.
        way_out: what to do if it is damaged.

    Raises:
        Refusal: the file is not whole, its checksums are wrong, or it holds something else.
    """
    try:
        with ZipFile(path) as archive:  # torch itself compares no checksums
            if (member := archive.testzip()) is not None:
                raise BadZipFile(f"wrong checksum of {member}")
        return torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes of its readers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refusal(f"{path} is damaged ({reason}): {way_out}") from error


def _checksum(cell: Result) -> int:
    return zlib.crc32(json.dumps(cell).encode())


def _computed(
    compute: Callable[..., Result], cases: Sequence[Case], jobs: int | None
) -> Iterator[tuple[Case, Result, float]]:
    """Yield each case with its result and seconds, as they come."""
    if jobs == 1 or len(cases) < 2:
        for case in cases:
            yield _timed(compute, case)
        return
    with parallel_config("loky", inner_max_num_threads=1):
        workers = Parallel(n_jobs=-1 if jobs is None else jobs, return_as="generator_unordered")
        yield from workers(delayed(_timed)(compute, case) for case in cases)


def _timed(compute: Callable[..., Result], case: Case) -> tuple[Case, Result, float]:
    start = time.process_time()
    result = compute(*case)
    return case, result, time.process_time() - start


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table to print; all columns after the first are flush right."""
    result = Table(title=title)
    for i, column in enumerate(columns):
        result.add_column(column, justify="right" if i else "left")
    for row in rows:
        result.add_row(*row)
    return result


def _rows(table: Table) -> list[list[str]]:
    """Return the header and the rows as plain text."""
    columns = [[column.header, *column.cells] for column in table.columns]
    return [[Text.from_markup(str(cell)).plain for cell in row] for row in zip(*columns, strict=True)]


def _command(arguments: Sequence[str]) -> str:
    """Return the command that repeats the run anywhere, without this machine's folders and processes."""
    shown, ours = ["python", "-m", "experiments"], True
    for argument in arguments:
        if argument.startswith("--"):
            ours = argument[2:].partition("=")[0].replace("-", "_") not in PLACES
        shown += [argument] if ours else []
    return shlex.join(shown)


def pick_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is CUDA where there is one, and the CPU otherwise."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Refusal(f'--device must be "auto" or a device of torch such as "cpu" or "cuda", got {name!r}') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Refusal(f"--device {name}: torch finds no CUDA device; use cpu")
    return device


def _versions() -> dict[str, str]:
    libraries = {name: version(name) for name in ("torch", "pytorch-lightning", "numpy", "scipy", "scikit-learn")}
    return {"torch_lapeig": torch_lapeig.__version__, **libraries, "python": platform.python_version()}


def _plain(value: Any) -> Any:
    """Return an argument in a form that JSON and YAML hold."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def check_names(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `Refusal` unless there are names, all of them known."""
    given, known = list(given), list(known)
    unknown = [name for name in given if name not in known]
    if unknown or not given:
        raise Refusal(f"--{option} must be of {', '.join(known)}, got {', '.join(unknown) or 'none'}")


def check_least(option: str, value: float, least: float) -> None:
    """Raise `Refusal` if a number is too small."""
    if value < least:
        raise Refusal(f"--{option} must be at least {least}, got {value}")


def _flat(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return members of dicts as arguments of their own, ``trainer.max_epochs``."""
    result: dict[str, Any] = {}
    for name, value in arguments.items():
        members = _flat(value) if isinstance(value, dict) and value else {"": value}
        result |= {f"{name}.{member}".rstrip("."): inner for member, inner in members.items()}
    return result


def _refuse_others(out: Path, had: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raise: finished cells are of other arguments or versions."""
    had, asked = _flat(had), _flat(asked)
    names = [name for name in {**had, **asked} if had.get(name) != asked.get(name)]
    changes = "; ".join(f"{name} was {had.get(name)!r}, is {asked.get(name)!r}" for name in names)
    raise Refusal(
        f"{out} holds a run of another configuration, which cannot be gone on with: {changes}. "
        f"Use another --out, the same arguments (--config {out / 'config.yaml'}), or --fresh true to start anew"
    )
