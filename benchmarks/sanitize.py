"""Compiled loops under AddressSanitizer and UBSan: their tests, and draws of broken input.

    python -m benchmarks.sanitize                       # the tests of tests/native, and 10,000 draws
    python -m benchmarks.sanitize --draws 500           # fewer
    python -m benchmarks.sanitize --begin 1234 --draws 1 --no-tests   # one draw again

The loops are compiled into ``runs/sanitize``; the package's own library stays. A report of a sanitizer ends the process
and fails, as does an error that is not clear (`tests.campaign.broken`). Where the compiler has no libasan, one
line says so, and nothing fails. ``CC`` names the compiler, as for the installation.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "runs" / "sanitize" / "kernels.so"
# One copy of each function: the loader chooses among several before the sanitizer is ready.
FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-DPLAIN", "-fno-sanitize-recover=all")
SANITIZERS = ("-fsanitize=address,undefined", "-fsanitize=float-cast-overflow")


def runtime(compiler: list[str]) -> list[str]:
    """Return the libraries that Python must load first; none where the compiler lacks the sanitizer's."""
    if not shutil.which(compiler[0]):
        return []
    names = ("libasan.so", "libstdc++.so")  # the sanitizer looks for the functions that throw when it is loaded
    found = []
    for name in names:
        command = [*compiler, f"-print-file-name={name}"]
        found.append(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    return found if all(Path(path).is_absolute() and Path(path).exists() for path in found) else []


def environment(libraries: list[str]) -> dict[str, str]:
    return os.environ | {
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python frees little at its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
        "TORCH_LAPEIG_COMPILED": str(LIBRARY),
    }


def draws(begin: int, count: int, seed: int) -> int:
    """Run draws in this process, and say how they ended. Return how many ended in an unclear error."""
    from tests.campaign import broken

    ends: Counter[tuple[str, str]] = Counter()
    for index in range(begin, begin + count):
        LIBRARY.with_name("draw").write_text(str(index))
        drawn = broken.draw(index, seed)
        ends[drawn.kind, drawn.end] += 1
        if drawn.end == "unclear":
            print(f"draw {index}: {drawn.kind}: {drawn.said}", flush=True)
    if count and str(LIBRARY) not in Path("/proc/self/maps").read_text():
        sys.exit(f"no draw has loaded the loops of {LIBRARY}")
    for kind in sorted({kind for kind, _ in ends}):
        print(f"{kind}: {', '.join(f'{end} {n}' for (of, end), n in sorted(ends.items()) if of == kind)}")
    return sum(n for (_, end), n in ends.items() if end == "unclear")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "benchmarks.sanitize", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--begin", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-tests", action="store_true", help="draws only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return int(draws(options.begin, options.draws, options.seed) > 0)
    if not (libraries := runtime(shlex.split(os.environ.get("CC", "cc")))):
        print("skipped: there is no C compiler with libasan")
        return 0
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    compiling = [sys.executable, str(ROOT / "hatch_build.py"), str(LIBRARY), *FLAGS, *SANITIZERS]
    if subprocess.run(compiling, check=False).returncode:
        return 1
    given = [f"--{name}={getattr(options, name)}" for name in ("begin", "draws", "seed")]
    commands = {"draws": [sys.executable, "-m", "benchmarks.sanitize", "--child", *given]}
    if not options.no_tests:
        commands["tests"] = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/native"]
    inside = environment(libraries)
    failed = [name for name, command in commands.items() if subprocess.run(command, env=inside, cwd=ROOT).returncode]
    last = LIBRARY.with_name("draw").read_text() if options.draws else "none"
    print(f"{options.draws} draws, the last {last}; failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
