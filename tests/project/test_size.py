"""The project may shrink and not grow: each number in size.txt may fall and never rise.

`python tests/project/test_size.py` prints the numbers of today in the form of size.txt.
"""

import ast
import collections
import subprocess
import sys
from pathlib import Path

import pytest

from torch_lapeig.native import calls as native

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("size.txt")
SLACK = 20  # what a number may lie above the measured one before the fall has to be written down
ONE_PASS = """
import collections, pathlib, sys, threading, warnings, torch, torch_lapeig as tl
warnings.simplefilter("ignore"); torch.set_num_threads(1); torch.manual_seed(0)
base, entered, checks = str(pathlib.Path(tl.__file__).parent) + "/", collections.Counter(), collections.Counter()
def one_pass():
    model = tl.LaplacianEigenmaps(2, tl.KNN(10))
    checks.clear()  # of options
    y = model(x := torch.rand(500, 3).requires_grad_())
    (y.square() * torch.linspace(1, 2, 500)[:, None]).sum().backward()
def count(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(base):
        entered[frame.f_code.co_filename] += 1
        checks[frame.f_code.co_name] += frame.f_code.co_name.lstrip("_").startswith("check_")
one_pass()
threading.setprofile(count); sys.setprofile(count); one_pass(); sys.setprofile(None)
print(len(entered), entered.total(), checks.total() - checks["check_answer"])
"""


def lines(*files: Path) -> int:
    return sum(file.read_text().count("\n") for file in files)


def measured() -> dict[str, int]:
    """Return the sizes of all that git would keep; ruff's format, which `make lint` checks, decides what a line is."""
    package, found = ROOT / "torch_lapeig", collections.Counter()
    for file in package.rglob("*.py"):
        room = file.relative_to(package).parts[0].removesuffix(".py")
        room = room if (package / room).is_dir() else "top files"
        found[f"lines of {room}"] += lines(file)
        found[f"statements of {room}"] += sum(isinstance(n, ast.stmt) for n in ast.walk(ast.parse(file.read_text())))
    found["lines of C"] = lines(*package.rglob("*.[ch]"))
    built = {".py", ".c", ".h", ".so", ".pyc"}
    found["data files in the package"] = sum(f.is_file() and f.suffix not in built for f in package.rglob("*"))
    rooms = (ROOT / room for room in ("tests", "benchmarks"))
    found["lines of tests and benchmarks"] = lines(*(file for room in rooms for file in room.rglob("*.py")))
    found["lines of experiments"] = lines(*(ROOT / "experiments").rglob("*.py"))
    if sys.version_info[:2] == (3, 11) and native.library() is not None:
        done = subprocess.run([sys.executable, "-c", ONE_PASS], cwd=ROOT, capture_output=True, text=True, check=True)
        names = ("files entered by one pass", "calls made by one pass", "calls of checks in one pass")
        found |= dict(zip(names, map(int, done.stdout.split()), strict=True))
    return dict(sorted(found.items()))


def recorded(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return numbers, and allowances: `allowance of 2026-12-01, lines of eigen: 900, why`"""
    rows = [line.split(": ") for line in text.splitlines() if line and not line.startswith("#")]
    numbers = {name: int(rest.split(",")[0]) for name, rest in rows}
    allowed = {name.partition(", ")[2]: numbers.pop(name) for name in list(numbers) if name.startswith("allowance of ")}
    return numbers, allowed


def test_no_number_rises_and_each_fall_is_written_down():
    numbers, allowed = recorded(FILE.read_text())
    found = measured()
    risen = {key: (n, numbers.get(key, 0)) for key, n in found.items() if n > numbers.get(key, 0) + allowed.get(key, 0)}
    assert not risen, f"now, and at most: {risen}; make it shorter elsewhere in the room"
    fallen = {name: (n, numbers[name]) for name, n in found.items() if n < numbers[name] - SLACK}
    assert not fallen, f"now, and in {FILE.name}: {fallen}; write the new numbers into {FILE.name} in this commit"


def test_numbers_that_were_written_down_never_rose():
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout

    name = FILE.relative_to(ROOT).as_posix()
    now, past = recorded(FILE.read_text())[0], git("log", "--format=%H", "--", name).split()
    if not past:
        pytest.skip("a checkout without history")
    for commit in past:
        before = recorded(git("show", f"{commit}:{name}"))[0]
        assert {key: (n, before[key]) for key, n in now.items() if key in before and n > before[key]} == {}, commit


if __name__ == "__main__":
    for key, value in measured().items():
        print(f"{key}: {value}")
