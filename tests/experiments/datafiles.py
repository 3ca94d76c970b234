"""Data files that tests need; TORCH_LAPEIG_DATA names their folder."""

import os
from pathlib import Path

import pytest

MNIST = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
FOLDER = Path(os.environ.get("TORCH_LAPEIG_DATA", "data"))


def needs(*files):
    missing = [file for file in files if not (FOLDER / file).exists()]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not in TORCH_LAPEIG_DATA")
