"""Make a notebook of each page of docs/paths: its words, its code, its output."""

import contextlib
import io
import json
import re
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "_build" / "notebooks"
PYTHON = {"name": "python3", "display_name": "Python 3", "language": "python"}


def printed(code: str, page: str, names: dict[str, object]) -> str:
    """Run a block after the blocks before it, in an empty folder. Return its output."""
    out = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
    ):
        exec(compile(code, page, "exec"), names)
    return out.getvalue()


def words(text: str) -> str:
    """Return Markdown without links to other pages, which a notebook alone lacks."""
    return re.sub(r"\[([^\]\[]*)\]\((?!\w+:)[^)]+\)", r"\1", text).strip()


def notebook(page: Path) -> dict[str, object]:
    """Return the cells of a page. Blocks that need another library are not run."""
    blocks = re.split(r"^```(\w+)\n(.*?)^```$", page.read_text(), flags=re.M | re.S)
    names: dict[str, object] = {"__name__": "__main__"}
    cells: list[dict[str, object]] = []
    for text, kind, code in zip(
        blocks[::3], [*blocks[1::3], ""], [*blocks[2::3], ""], strict=True
    ):
        if words(text):
            cells.append({"cell_type": "markdown", "source": words(text)})
        if kind in ("python", "py"):
            text = printed(code, page.name, names) if kind == "python" else ""
            shown = {"output_type": "stream", "name": "stdout", "text": text}
            cell = {"cell_type": "code", "source": code.strip()}
            outputs = [shown] if text else []
            cells.append(cell | {"execution_count": None, "outputs": outputs})
    for number, cell in enumerate(cells):
        cell |= {"id": f"cell-{number}", "metadata": {}}
    form = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": PYTHON}}
    return form | {"cells": cells}


def write() -> None:
    """Write the notebooks of all pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for page in sorted((DOCS / "paths").glob("*.md")):
        target = FOLDER / f"{page.stem}.ipynb"
        target.write_text(json.dumps(notebook(page), ensure_ascii=False, indent=1))


if __name__ == "__main__":
    write()
