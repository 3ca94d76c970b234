"""Random numbers that belong to nodes, so that they do not depend on how the nodes are spread over ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


# Steps and multipliers of SplitMix64 (Steele, Lea & Flood 2014), as signed numbers; products wrap around.
STEP, COLUMN = _signed(0x9E3779B97F4A7C15), _signed(0xD1342543DE82EF95)
FIRST, SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def normal_numbers(numbers: Tensor, m: int, seed: int) -> Tensor:
    """Normal numbers ``(n, m)`` in float64 for nodes of these numbers, int64 ``(n,)``."""
    column = torch.arange(2 * m, device=numbers.device) + 1
    start = _mixed(torch.tensor(seed + 1, device=numbers.device) * STEP)
    bits = _mixed(_mixed(start + numbers[:, None] * STEP) + column * COLUMN)
    uniform = (_shifted(bits, 11).double() + 0.5) * 2.0**-53
    radius, angle = uniform[:, :m], uniform[:, m:]
    normal: Tensor = (-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()
    return normal


def _shifted(z: Tensor, by: int) -> Tensor:
    """z >> by of unsigned numbers."""
    shifted: Tensor = (z >> by) & (2 ** (64 - by) - 1)
    return shifted


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * FIRST
    z = (z ^ _shifted(z, 27)) * SECOND
    return z ^ _shifted(z, 31)
