"""Builds the source distribution and wheels, checks them, and tries what runs here alone in a fresh environment.

`python .ci/dist.py` leaves all in `dist/`: a wheel with compiled loops for each of the platforms in hatch_build.py, by
the cross-compiler ziglang, and one without loops for all other machines. The wheels are built from the source
distribution. `.ci/loops.c` tries the loops of each platform that this machine runs: its own, others by
qemu-aarch64-static (with libc6-arm64-cross) and wine where they are installed; it says which it left out. The wheel of
this machine and the one without loops are installed into a new environment with the versions of constraints.txt and
nothing else of the project. There the code of README.md runs in an empty folder. For each extra that a message of the
package advises, pip finds what to install.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hatch_build import FOLDER as NATIVE
from hatch_build import TARGETS

ROOT = Path(__file__).resolve().parents[1]
DIST, FOLDER = ROOT / "dist", ROOT / ".venv-dist"
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
PLATFORM = "manylinux_2_28_x86_64"  # of this machine
RUNNERS = {  # commands that run programs of a platform here
    PLATFORM: [],
    "manylinux_2_28_aarch64": ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"],
    "win_amd64": ["wine"],
}
NEEDED = {  # of what each has to hold
    ".whl": (
        "torch_lapeig/py.typed",
        "torch_lapeig/distributed/__init__.py",
        "native/kernels.c",
        "native/kernels.h",
        "licenses/LICENSE",
    ),
    ".gz": (
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "native/kernels.c",
        "native/kernels.h",
        "constraints.txt",
        "tests/conftest.py",
        "Makefile",
    ),
}


def environment(name: str) -> Path:
    """The interpreter of a new virtual environment."""
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", FOLDER / name], check=True)
    return FOLDER / name / "bin" / "python"


def built() -> tuple[Path, list[Path]]:
    """The source distribution and the wheels built from it, with loops and without."""
    shutil.rmtree(DIST, ignore_errors=True)
    tools = environment("tools")
    subprocess.run([tools, *PIP, "install", "build", "twine", "auditwheel", "ziglang"], check=True)
    subprocess.run([tools, "-m", "build", "--sdist", "--outdir", DIST, ROOT], check=True)
    (source,) = DIST.glob("*.tar.gz")
    for platform in (*TARGETS, "any"):
        print(f"==> wheel of {platform}", flush=True)
        ask = [tools, *PIP, "wheel", "--no-deps", "--wheel-dir", DIST, source]
        subprocess.run(ask, check=True, env={**os.environ, "TORCH_LAPEIG_WHEEL": platform})
        (wheel,) = DIST.glob(f"*-{platform}.whl")
        if "linux" in platform:  # the loops may need a newer C library than the platform has
            shown = subprocess.run(
                [tools, "-m", "auditwheel", "show", wheel], check=True, capture_output=True, text=True
            )
            if platform not in shown.stdout:
                raise SystemExit(f"error: {wheel.name} is not of its platform: {shown.stdout}")
    wheels = sorted(DIST.glob("*.whl"))
    subprocess.run([tools, "-m", "twine", "check", "--strict", source, *wheels], check=True)
    for platform, (target, ending) in TARGETS.items():
        try_loops(tools, platform, target, ending)
    return source, wheels


def try_loops(tools: Path, platform: str, target: str, ending: str) -> None:
    """Run `.ci/loops.c` on the loops of a wheel, where this machine can."""
    runner = RUNNERS.get(platform)
    if runner is None or (runner and not shutil.which(runner[0])):
        print(f"==> loops of {platform}: compiled, not run, as nothing here runs them", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        (wheel,) = DIST.glob(f"*-{platform}.whl")
        with zipfile.ZipFile(wheel) as archive:
            library = archive.extract(f"{NATIVE}/kernels{ending}", folder)
        program = Path(folder, "loops.exe")
        compiler = [tools, "-m", "ziglang", "cc", "-target", target, f"-I{ROOT / NATIVE}"]
        subprocess.run([*compiler, "-o", program, ROOT / ".ci" / "loops.c", "-lm"], check=True)
        print(f"==> loops of {platform}", flush=True)
        subprocess.run([*runner, program, library], check=True)


def check_contents(source: Path, wheel: Path) -> None:
    """Raise SystemExit where a file is missing or foreign, or the wheel holds loops that its name denies."""
    with tarfile.open(source) as archive:
        in_source = [name.partition("/")[2] for name in archive.getnames()]
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = archive.namelist()
    loops = [name for name in in_wheel if name.startswith(f"{NATIVE}/kernels.") and name[-2:] not in (".c", ".h")]
    ending = next((ending for platform, (_, ending) in TARGETS.items() if platform in wheel.name), None)
    if loops != [f"{NATIVE}/kernels{ending}"][: ending is not None]:
        raise SystemExit(f"error: {wheel.name} should hold compiled loops if it is for one platform, and only then")
    for file, names in ((source, in_source), (wheel, in_wheel)):
        if missing := [name for name in NEEDED[file.suffix] if not any(found.endswith(name) for found in names)]:
            raise SystemExit(f"error: {file.name} lacks {', '.join(missing)}")
    if foreign := [name for name in in_wheel if not re.match(r"torch_lapeig(-[\d.]+\.dist-info)?/", name)]:
        raise SystemExit(f"error: {wheel.name} holds {', '.join(foreign)}")


def blocks(page: Path) -> list[str]:
    """The Python code of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def advised() -> set[str]:
    """The extras that messages of the package name."""
    files = (ROOT / "torch_lapeig").rglob("*.py")
    pattern = re.compile(r"how_to_install\(['\"](\w+)|\bneeded\([^()]*\"(\w+)\"\)")
    return {"".join(found) for file in files for found in pattern.findall(file.read_text(encoding="utf-8"))}


def try_wheel(wheel: Path) -> None:
    """Install it alone and use it; CalledProcessError where that fails."""
    inside = environment("wheel")
    pinned = ("-c", ROOT / "constraints.txt", "--only-binary", ":all:")
    print(f"==> {wheel.name} alone in a fresh environment", flush=True)
    subprocess.run([inside, *PIP, "install", *pinned, wheel], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as empty:
        for number, code in enumerate(blocks(ROOT / "README.md"), 1):
            print(f"==> README.md, code {number}", flush=True)
            Path(empty, "code.py").write_text(code, encoding="utf-8")
            subprocess.run([inside, "code.py"], cwd=empty, env=clean, check=True)
        where = "import torch_lapeig; print(torch_lapeig.__version__, torch_lapeig.__file__)"
        said = subprocess.run([inside, "-c", where], cwd=empty, env=clean, check=True, capture_output=True, text=True)
    version, file = said.stdout.split(maxsplit=1)
    if f"-{version}-" not in wheel.name or not file.startswith(str(FOLDER)):
        raise SystemExit(f"error: {wheel.name} installs {version} as {file.strip()}")
    for extra in sorted(advised()):
        ask = f"from torch_lapeig.support.extras import how_to_install; print(how_to_install({extra!r}))"
        said = subprocess.run([inside, "-c", ask], env=clean, check=True, capture_output=True, text=True)
        print(f"==> {said.stdout.strip()}, as a message advises", flush=True)
        needed = shlex.split(said.stdout)[2:]
        subprocess.run([inside, *PIP, "install", "--dry-run", *pinned, *needed], check=True)


if __name__ == "__main__":
    source, wheels = built()
    for wheel in wheels:
        check_contents(source, wheel)
        if PLATFORM in wheel.name or wheel.name.endswith("-any.whl"):
            try_wheel(wheel)
    names = ", ".join(file.name for file in (source, *wheels))
    print(f"{names} are in {DIST.name}/: checked; those for this machine installed, README's code ran")
