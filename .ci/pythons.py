"""Try on each Python without torch that files compile, pinned versions install and hold every name used.

`python .ci/pythons.py python3.10 python3.12` makes a virtual environment of each interpreter that is there, installs
what pyproject.toml asks for less torch and what needs it, in the versions of constraints.txt, compiles every file
with warnings as errors, looks up every name that the project imports from a library or reads from a library's
module, and checks the types for that version. It runs no test of the project: every one of them needs torch.

`python .ci/pythons.py --resolve` asks for each promised Python, installed here or not, whether the pinned versions go
together and are all of what `make` would install. uv reads the index's metadata only; no package is downloaded.
"""

import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WITH_TORCH = {"torch", "lightning", "pytorch-lightning", "torch-geometric"}
TOOLS = {"ruff", "mypy", "pre-commit", "types-tqdm", "hatchling", "coverage", "uv"}
FOLDERS = ("torch_lapeig", "experiments", "benchmarks", "tests")
OURS = {*FOLDERS, *(path.stem for path in (ROOT / "tests").rglob("*.py"))}
# Packages may ask for the patch of a Python: the oldest of each is resolved, and Debian 12's, which is 3.11.2.
PROMISED = ("3.10.0", "3.11.0", "3.11.2", "3.12.0", "3.13.0", "3.14.0")
# Extras and constraints that go together, and the Pythons on which they must.
LOCKS = (("dev", "constraints.txt", PROMISED), ("test", "constraints-lowest.txt", ("3.11.0", "3.11.2")))
OF_TORCH = ("cuda-", "nvidia-", "triton==", "setuptools==")  # what builds of torch with CUDA bring along, not pinned


def files() -> list[Path]:
    """The project's Python files."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def libraries() -> list[str]:
    """The requirements of pyproject.toml that work without torch."""
    found = re.findall(r'"(([\w-]+)>=[\d.]+)"', (ROOT / "pyproject.toml").read_text())
    return [requirement for requirement, name in found if name not in WITH_TORCH | TOOLS]


def is_there(module: str) -> bool:
    """Return whether a library is installed here; torch, what needs it, and peers of benchmarks are not."""
    name = module.split(".")[0]
    return name not in OURS and importlib.util.find_spec(name) is not None


def missing_names(tree: ast.Module) -> Iterator[str]:
    """Names that a file imports from a library, or reads from a library's module, and that are not there."""
    modules: dict[str, ModuleType] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_there(alias.name):
                    module = importlib.import_module(alias.name)
                    local = alias.asname or alias.name.split(".")[0]
                    modules[local] = module if alias.asname else sys.modules[local]
        elif isinstance(node, ast.ImportFrom) and node.module and is_there(node.module):
            module = importlib.import_module(node.module)
            for alias in node.names:
                value = member(module, alias.name)
                if value is None:
                    yield f"{node.lineno}: {node.module} has no {alias.name}"
                elif isinstance(value, ModuleType):
                    modules[alias.asname or alias.name] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if member(module, node.attr) is None:
                yield f"{node.lineno}: {module.__name__} has no {node.attr}"


def member(module: ModuleType, name: str) -> Any:
    """An attribute or a submodule, or None."""
    if not hasattr(module, name):
        try:
            return importlib.import_module(f"{module.__name__}.{name}")
        except ImportError:
            return None
    value = getattr(module, name)
    return name if value is None else value


def check_files() -> None:
    """Runs inside the environment of one Python."""
    faults = []
    for path in files():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = ast.parse(path.read_text(encoding="utf-8"), path)
            compile(tree, path, "exec")
        faults += [f"{path.relative_to(ROOT)}:{fault}" for fault in missing_names(tree)]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"Python {sys.version.split()[0]}: {len(files())} files compile, {len(faults)} names missing")
    if faults:
        raise SystemExit(1)


def try_python(python: str) -> bool:
    """Try one interpreter, and return whether it is there; CalledProcessError if a check fails."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([shutil.which(python) or "false", "-c", code], capture_output=True, text=True)
    if answer.returncode:
        print(f"==> {python}: not installed, not tried")
        return False
    version = answer.stdout.strip()
    folder = ROOT / ".venv-pythons" / version
    inside = folder / "bin" / "python"
    print(f"==> {python}: pinned versions without torch, syntax, names, types", flush=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    install: list[str | Path] = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", "constraints.txt", "--only-binary", ":all:", *libraries()], cwd=ROOT, check=True)
    subprocess.run([inside, __file__], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-m", "mypy", "--python-version", version], cwd=ROOT, check=True)
    return True


def pins(text: str) -> set[str]:
    """Return what a text pins as ``name==version``, without markers, names as an index spells them."""
    lines = (line.partition(";")[0].strip() for line in text.splitlines())
    return {line.lower().replace("_", "-") for line in lines if "==" in line}


def resolved(extra: str, constraints: str, version: str) -> set[str]:
    """Return what an extra installs on a Python under constraints; CalledProcessError where these contradict."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--extra", extra, "--quiet"]
    command += ["--only-binary", ":all:", "--constraints", constraints, "--python-version", version, "--no-annotate"]
    return pins(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def resolve_constraints() -> None:
    """Resolve the constraints for every promised Python; exit with 1 where they contradict or lack a pin."""
    faults = []
    for extra, constraints, versions in LOCKS:
        for version in versions:
            print(f"==> {constraints}, extra {extra}, Python {version}", flush=True)
            try:
                missing = resolved(extra, constraints, version) - pins((ROOT / constraints).read_text())
            except subprocess.CalledProcessError as error:
                print(error.stderr)
                if "No solution found" in error.stderr:
                    faults.append(f"{version}: {constraints} cannot be installed")
                else:  # the index is out of reach, which says nothing about the pins
                    print(f"{version}: {constraints} was not resolved")
            else:
                faults += [f"{version}: {pin} is not pinned" for pin in sorted(missing) if not pin.startswith(OF_TORCH)]
    print(*faults, sep="\n", end="\n" if faults else "")
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:] == ["--resolve"]:
        resolve_constraints()
    elif sys.argv[1:]:
        tried = [python for python in sys.argv[1:] if try_python(python)]
        print(f"tried {len(tried)} of {len(sys.argv) - 1} Pythons, without torch: {' '.join(tried)}")
        raise SystemExit(not tried)
    else:
        check_files()
