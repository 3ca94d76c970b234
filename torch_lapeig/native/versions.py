"""What is installed: a report for questions, and a warning where the lack of compiled loops costs time."""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata

import torch

from torch_lapeig.native import loops
from torch_lapeig.support import checks

LIBRARIES = ("torch-lapeig", "torch", "numpy", "scipy", "scikit-learn", "faiss-cpu", "lightning", "torch-geometric")


def show_versions() -> None:
    """Print what a report of a problem needs: versions, whether there are compiled loops, threads and devices.

    >>> show_versions()  # doctest: +ELLIPSIS
    Python ...
    """
    print(f"Python {platform.python_version()}, {platform.platform()}")
    for name in (*LIBRARIES, "anndata", "matplotlib", "onnx"):
        try:
            print(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"{name} is not installed")
    print("compiled loops:", "yes" if loops.library() else "no")
    print(f"threads: torch {torch.get_num_threads()}, machine {os.cpu_count()}")
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    print("devices:", ", ".join(["cpu", *devices]))


@functools.cache
def warn_of_no_loops() -> None:
    """Warn once that an installation has no compiled loops, unless ``TORCH_LAPEIG_COMPILED`` chose that."""
    if loops.library() is None and os.environ.get("TORCH_LAPEIG_COMPILED") != "0":
        checks.warn(
            "torch_lapeig was installed without its compiled loops, and torch takes several times as long on graphs "
            "of this size: install it with a C compiler at hand (docs/troubles.md); TORCH_LAPEIG_COMPILED=0 in the "
            "environment silences this warning",
            UserWarning,
        )
