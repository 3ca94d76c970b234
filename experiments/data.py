"""Data sets, split and as tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor


class Split(NamedTuple):
    """Points ``(N, D)`` and labels ``(N,)`` of a training and a held-out part."""

    train: Tensor
    train_labels: Tensor
    heldout: Tensor
    heldout_labels: Tensor


def digits(*, heldout: float = 0.2, seed: int = 0) -> Split:
    """The 1797 handwritten digits that come with scikit-learn, 8 × 8 pixels in [0, 1], split by class."""
    bunch = load_digits()
    pixels = torch.tensor(bunch.data / 16, dtype=torch.float32)
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    train, test = train_test_split(range(len(labels)), test_size=heldout, stratify=labels, random_state=seed)
    return Split(pixels[train], labels[train], pixels[test], labels[test])
