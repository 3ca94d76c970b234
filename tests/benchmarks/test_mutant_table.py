"""The table of mutants names lines and tests that exist."""

from benchmarks.mutants import MUTANTS, PACKAGE, ROOT


def test_each_line_stands_once_in_its_file() -> None:
    texts = {mutant: (ROOT / PACKAGE / mutant.file).read_text(encoding="utf-8") for mutant in MUTANTS}
    assert [mutant for mutant, text in texts.items() if text.count(mutant.line) != 1] == []
    assert [mutant for mutant in MUTANTS if mutant.line == mutant.wrong] == []


def test_each_file_of_tests_exists() -> None:
    files = {word for mutant in MUTANTS for word in mutant.tests.split() if word.startswith("tests/")}
    assert [file for file in files if not (ROOT / file).is_file()] == []
