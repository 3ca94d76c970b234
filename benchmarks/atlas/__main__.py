"""``python -m benchmarks.atlas`` is ``python -m benchmarks atlas``."""

import sys

from benchmarks.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["atlas", *sys.argv[1:]]))
