"""Functions stay short enough to be read at once."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("torch_lapeig", "experiments", "benchmarks", "tests")
FILES = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
LINES_OF_FUNCTION = 60


def lengths_of_functions(source):
    """Lines of each function by its name, docstring included, decorators left out."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, functions)]
    return {f"{node.name}, line {node.lineno}": node.end_lineno - node.lineno + 1 for node in found}


def test_lengths_count_every_line_of_a_function():
    source = "@cache\ndef outer():\n    '''Doc.\n    '''\n    def inner(): pass\n    return 1\n"
    assert lengths_of_functions(source) == {"outer, line 2": 5, "inner, line 5": 1}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_functions_are_short(file):
    assert {
        name: lines for name, lines in lengths_of_functions(file.read_text()).items() if lines >= LINES_OF_FUNCTION
    } == {}
