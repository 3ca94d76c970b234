"""What `import torch_lapeig` costs once torch and SciPy's sparse matrices are there, and what it loads of SciPy.

    python -m benchmarks.import_time

Claims: the library's own modules take at most 50 ms, and of SciPy nothing is loaded but ``scipy.sparse``. One thread, a
new interpreter for each round, bytecode compiled before.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys

BEFORE = "import sys, torch, scipy.sparse; before = set(sys.modules); "
LOADED = "; print(*sorted(name for name in set(sys.modules) - before if name.partition('.')[0] == 'scipy'))"
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(torch_lapeig\S*)")


def own_seconds() -> dict[str, float]:
    """Seconds of each module of this library, without what it imports."""
    command = [sys.executable, "-X", "importtime", "-c", BEFORE + "import torch_lapeig"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr
    return {name: int(microseconds) / 1e6 for microseconds, name in LINE.findall(said)}


def loaded_of_scipy() -> list[str]:
    """Modules of SciPy that come with this library and did not come with ``scipy.sparse``."""
    command = [sys.executable, "-c", BEFORE + "import torch_lapeig" + LOADED]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.import_time", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = [own_seconds() for _ in range(parser.parse_args().rounds + 1)][1:]
    total = statistics.median(sum(seconds.values()) for seconds in rounds)
    modules = {name: statistics.median(seconds[name] for seconds in rounds) for name in rounds[0]}
    print(f"own modules: {1e3 * total:.0f} ms, median of {len(rounds)}; the slowest:")
    for name in sorted(modules, key=lambda name: -modules[name])[:5]:
        print(f"  {1e3 * modules[name]:4.1f} ms {name}")
    print(f"of SciPy beyond scipy.sparse: {', '.join(loaded_of_scipy()) or 'nothing'}")


if __name__ == "__main__":
    main()
