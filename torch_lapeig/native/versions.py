"""Report what is installed, and warn if missing compiled loops cost time."""

import functools
import os
import platform
import sys
from importlib import metadata

import torch

from torch_lapeig.native import calls
from torch_lapeig.support import checks

LIBRARIES = ("torch-lapeig", "torch", "numpy", "scipy", "scikit-learn", "faiss-cpu", "lightning", "onnx")


def show_versions() -> None:
    """Print what a report of a problem needs: versions, whether there are compiled loops, threads and devices.

    >>> show_versions()  # doctest: +ELLIPSIS
    Python ...
    """
    installed = {found.metadata["Name"]: found.version for found in metadata.distributions()}
    installed["torch-lapeig"] = sys.modules["torch_lapeig"].__version__  # a clone's record may be older
    print(f"Python {platform.python_version()}, {platform.platform()}")
    print(*(f"{name} {installed.get(name, 'is not installed')}" for name in LIBRARIES), sep="\n")
    print("compiled loops:", "yes" if calls.library() else "no")
    print(f"threads: torch {torch.get_num_threads()}, machine {os.cpu_count()}")
    print("devices:", *("cpu", *(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))))


@functools.cache
def warn_of_no_loops() -> None:
    """Warn once that an installation has no compiled loops, unless ``TORCH_LAPEIG_COMPILED=0`` chose that."""
    if calls.library() is None and os.environ.get("TORCH_LAPEIG_COMPILED") != "0":
        checks.warn(
            "torch_lapeig is without compiled loops, and torch takes several times as long on graphs of this size: "
            "install a C compiler, then torch_lapeig by --no-binary torch_lapeig, or set TORCH_LAPEIG_COMPILED=0",
            UserWarning,
        )
