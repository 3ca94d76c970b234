"""Tables of text: pandas reads them, once their layout is known: separators, names of columns, signs in numbers."""

from __future__ import annotations

import csv
import re
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

BLANKS, SINGLE = r"\s+", "\x1f"  # separators: any blanks; a sign that no text has
MISSING = {"", "NA", "N/A", "#N/A", "NULL", "null", "None", "nan", "NaN", "?", "-", "--", ".", "*"}
MISSING |= {"#DIV/0!", "#VALUE!"}  # of Excel
COMMA = re.compile(r"[+-]?[\d.]*,[\d,]*(\.\d+)?([eE][+-]?\d+)?")  # number with a comma
GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")  # number whose thousands may be separated by commas
POINT_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+,\d*")

Lines = list[tuple[int, str]]  # number of each line, from 1, and its text


class InputError(ValueError):
    """Error of data that cannot be embedded; the message names the data, what arrived, and what to do instead."""


class Numbers(NamedTuple):
    """Signs by which a file writes numbers; ``thousands`` may be empty."""

    decimal: str = "."
    thousands: str = ""

    def has(self, cell: str) -> bool:
        """Return whether a cell is a number."""
        plain = (cell.replace(self.thousands, "") if self.thousands else cell).replace(self.decimal, ".")
        try:
            float(plain)
        except ValueError:
            return False
        return "_" not in cell  # which numbers in Python may contain


def read_text(given: str, content: bytes, wishes: Namespace, notes: list[str], expected: int | None) -> DataFrame:
    """Return the table of a text file; its index numbers the rows as the file does.

    ``expected``: number of labels in the file, of which a first line more is a name; None for points.
    """
    text = _decoded(given, content, wishes, notes)
    text = text.replace("\u2212", "-")  # the sign of typesetters
    lines = [(i, line) for i, line in enumerate(re.split("\r\n|\r|\n", text), 1) if line.strip()]
    while lines and not lines[-1][1].strip(" \t;,|"):  # rows of empty cells, as Excel leaves at the end
        lines.pop()
    plain = [line for line in lines if not line[1].startswith(("#", "%"))]
    above = [line for line in lines if plain and line[0] < plain[0][0]][-1:]
    # A comment above the first row, with as many cells as it has, holds the names.
    above = [(i, line.lstrip("#% ")) for i, line in above]
    sign = next((sign for sign in "\t;|," if plain and sign in plain[0][1]), BLANKS)
    are_names = any(len(_cells(line, sign)) == len(_cells(plain[0][1], sign)) > 1 for _, line in above)
    lines = [*above, *plain] if are_names else plain
    separator = lines.pop(0)[1][4:5] if lines and lines[0][1].startswith("sep=") else ""  # Excel's own line
    if not lines:
        raise InputError(f"{given} is empty")
    # The layout is read from so many characters, and ten lines at least.
    sample = [line for _, line in lines[: max(100_000 // len(lines[0][1]), 10)]]
    separator = separator or _separator_of(sample)
    rows = [_cells(line, separator) for line in sample]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    numbers = _numbers_of(given, [cell for row in rows for cell in row], wishes, notes)
    has_header = _has_header(given, rows, len(lines), numbers, wishes, expected)
    names = rows[0] if has_header else []
    said = "and line 1 names the columns" if names else f"and columns, without names, are numbered from 1 to {width}"
    between = (
        "it has one column"
        if separator == SINGLE
        else f"cells are separated by {'blanks' if separator == BLANKS else repr(separator)}"
    )
    notes.append(f"{given}: {between}, {said}")
    frame = _parsed(given, lines[has_header:], separator, width, numbers)
    frame.columns = _unique(_names_of(given, names, frame) if names else [str(i + 1) for i in range(width)])
    return frame


def _decoded(given: str, content: bytes, wishes: Namespace, notes: list[str]) -> str:
    """Return the text of a file, by the encoding that its first bytes show, UTF-8, or that of Windows."""
    is_utf_16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    encoding = wishes.encoding or ("utf-16" if is_utf_16 else "utf-8-sig")
    if b"\0" in content[:1000] and not encoding.startswith("utf-16"):
        raise InputError(f"{given} is no text in {encoding}: if it is in UTF-16, say --encoding utf-16-le or utf-16-be")
    try:
        return content.decode(encoding)
    except LookupError as error:
        raise InputError(f"--encoding: {error}") from error
    except UnicodeDecodeError as error:
        if encoding != "utf-8-sig":
            raise InputError(f"{given} is not in {encoding} ({error.reason}): name another by --encoding") from error
    notes.append(f"{given} is not in UTF-8 and is read as Windows' Latin-1 (cp1252); --encoding names another")
    return content.decode("cp1252", errors="replace")


def _cells(line: str, separator: str) -> list[str]:
    """Return the cells of a line, without their quotes and outer blanks."""
    if separator == BLANKS:
        line, separator = " ".join(line.split()), " "
    if separator not in line:  # csv's fields have a maximum length
        return [line.strip().strip('"')]
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]


def _separator_of(lines: Sequence[str]) -> str:
    """Return the sign that separates the cells of most lines; blanks only where one of the columns is of numbers.

    Blanks and tabs mixed are blanks, where all cells are numbers then.
    """
    agreeing, widths = {}, {}
    for sign in "\t;|,":
        widths[sign], count = Counter(len(_cells(line, sign)) for line in lines).most_common(1)[0]
        agreeing[sign] = count if widths[sign] > 1 else 0
    best = max(agreeing, key=agreeing.__getitem__) if any(agreeing.values()) else SINGLE
    rows = [_cells(line, BLANKS) for line in lines[1:] or lines]
    is_even = min(map(len, rows)) == max(map(len, rows)) > 1
    if is_even and (len(rows[0]) > widths.get(best, 1) or agreeing.get(best, 0) < len(lines)):
        of_numbers = [all(map(Numbers().has, column)) for column in zip(*rows, strict=True)]
        if all(of_numbers) or (best == SINGLE and any(of_numbers)):
            return BLANKS
    return best


def _numbers_of(given: str, cells: Sequence[str], wishes: Namespace, notes: list[str]) -> Numbers:
    """Return the signs in numbers; raise `InputError` where a comma may be a decimal comma or separate thousands."""
    if wishes.decimal is not None:
        return Numbers(",", ".") if wishes.decimal == "comma" else Numbers(".", ",")
    commas = [cell for cell in cells if COMMA.fullmatch(cell)]
    if not commas:
        return Numbers()
    if not all(map(GROUPS.fullmatch, commas)):
        notes.append(f"{given}: commas in numbers are decimal commas")
        return Numbers(",", "." if any(map(POINT_GROUPS.fullmatch, cells)) else "")
    if any("." in cell for cell in cells if Numbers(thousands=",").has(cell)) or max(map(len, commas)) > len(
        "-999,999"
    ):
        notes.append(f"{given}: commas in numbers separate thousands")
        return Numbers(".", ",")
    raise InputError(
        f"{given}: the comma of {commas[0]} may be a decimal comma or separate thousands: say which by "
        "--decimal comma or --decimal point"
    )


def _has_header(
    given: str, rows: list[list[str]], count: int, numbers: Numbers, wishes: Namespace, expected: int | None
) -> bool:
    """Return whether the first of ``count`` lines names the columns."""
    if wishes.header is not None:
        return bool(wishes.header == "yes")
    if expected is not None and count - expected in (0, 1):
        return count > expected
    first, others = rows[0], rows[1:]
    words = [cell not in MISSING and not numbers.has(cell) for cell in first]
    columns = [[row[i] for row in others if i < len(row) and row[i] not in MISSING] for i in range(len(first))]
    if any(words):
        mostly = [bool(column) and 2 * sum(map(numbers.has, column)) > len(column) for column in columns]
        over_numbers = any(word and below for word, below in zip(words, mostly, strict=True))
        return over_numbers or _have_equal_steps(first) or not any(map(numbers.has, first))
    return _are_names_of_numbers(given, first, others, [cell for column in columns for cell in column])


def _are_names_of_numbers(given: str, first: list[str], others: list[list[str]], below: list[str]) -> bool:
    """Return whether a first line of numbers names the columns; raise `InputError` where it may be a point."""
    named = first if first[0] else first[1:]
    are_whole = all(cell.isdecimal() for cell in named) and len(set(named)) == len(named) > 0
    are_only_whole = bool(below) and not any(cell.lstrip("+-").isdecimal() for cell in below)
    if are_whole and (are_only_whole or len(named) < len(first)):  # or there is an index without a name
        return True
    if 1 < len(named) < 4 and named == [str(i) for i in range(len(named))]:
        raise InputError(
            f"{given}: line 1 counts the columns (0, 1, …) and may be their names or a point: say which by "
            "--header yes or --header no"
        )
    return len(named) > 3 and _have_equal_steps(named) and not any(map(_have_equal_steps, others[:10]))


def _have_equal_steps(cells: Sequence[str]) -> bool:
    """Return whether three or more numbers in a line have equal steps upwards, as years and wavelengths have."""
    steps = np.diff([float(cell) for cell in cells if Numbers().has(cell)])
    return len(steps) > 1 and bool(steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-6))


def _parsed(given: str, lines: Lines, separator: str, width: int, numbers: Numbers) -> DataFrame:
    """Return the cells as pandas reads them; the index holds the numbers of lines, or of rows if some have several."""
    import pandas

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(
                StringIO("\n".join(line for _, line in lines)),
                sep=separator,
                header=None,
                names=range(width),
                index_col=False,
                decimal=numbers.decimal,
                thousands=numbers.thousands or None,
                skipinitialspace=True,
                na_values=list(MISSING),
                low_memory=False,
            )
    except pandas.errors.EmptyDataError:
        return pandas.DataFrame(columns=range(width))
    except (pandas.errors.ParserError, pandas.errors.ParserWarning) as error:
        cells = [(i, len(_cells(line, separator))) for i, line in lines]
        i, long = next((row for row in cells if row[1] > width), (0, 0))
        said = f"line {i} has {long} cells, where others have {width}" if i else " ".join(str(error).split())
        raise InputError(f"{given} cannot be read: {said}") from error
    if len(frame) == len(lines):
        frame.index = pandas.Index([i for i, _ in lines], name="line")
    else:
        frame.index = pandas.RangeIndex(1, len(frame) + 1, name="row")
    return frame


def _names_of(given: str, names: list[str], frame: DataFrame) -> list[str]:
    """Return a name for each column: R writes none for names of rows, others none after a last separator."""
    width = frame.shape[1]
    while len(names) > width and not names[-1]:
        names = names[:-1]
    if len(names) == width - 1 and frame.iloc[:, -1].isna().all():
        names = [*names, ""]
    if len(names) == width - 1 > 1:
        names = ["", *names]
    if len(names) != width:
        raise InputError(f"{given}: the first line has {len(names)} cells, where others have {width}: take out titles")
    return names


def _unique(names: list[str]) -> list[str]:
    """Return names that differ, as pandas makes them: a number after equal ones, and for an empty one its place."""
    seen: Counter[str] = Counter()
    found = []
    for name in (name or f"Unnamed: {i}" for i, name in enumerate(names)):
        found.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found
