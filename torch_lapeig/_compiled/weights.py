"""What is asked of the weights of a graph before it is solved: `weights.c`."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from torch_lapeig import _compiled
from torch_lapeig._compiled import TYPES, reads

_WEIGHTS = _compiled.structure(
    "Weights",
    "p:crow,col,weight n:n p:degrees,part,queue "
    "d:tiny,largest,least,total n:active,parts,longest,is_sound,has_subnormal",
)


class Weighed(NamedTuple):
    """What the weights of one graph of n nodes say.

    Attributes:
        degrees: ``(n,)``, summed in float64. part: int64 ``(n,)``, the component of each active node, of a degree above
            the smallest normal number, counted from 0 by their first nodes; 0 for the others.
        active, parts: numbers of active nodes and of components. longest: edges of a node at most.
        largest: degree; least: of an active node, infinite where there is none.
        is_sound: weights are not negative and finite, and so is the sum of all.
        has_subnormal: whether a degree is positive and not above the smallest normal number.
    """

    degrees: Tensor
    part: Tensor
    active: int
    parts: int
    longest: int
    largest: float
    least: float
    is_sound: bool
    has_subnormal: bool


def weighed(crow: Tensor, col: Tensor, weight: Tensor) -> Weighed | None:
    """That of symmetric weights ``(E,)`` on CSR rows of one graph; None where C cannot read them."""
    if not (reads(crow, col, weight) and weight.shape == col.shape and weight.is_contiguous()):
        return None
    n, tiny = len(crow) - 1, torch.finfo(weight.dtype).tiny
    degrees, part, queue = weight.new_empty(n), crow.new_empty(n, dtype=torch.int64), crow.new_empty(n)
    given, out = (x.data_ptr() for x in (crow, col, weight)), (x.data_ptr() for x in (degrees, part, queue))
    task = _WEIGHTS(*given, n, *out, tiny)
    getattr(_compiled.library(), f"weigh_{TYPES[weight.dtype][0]}")(ctypes.byref(task))
    is_sound = bool(task.is_sound) and task.total < torch.finfo(weight.dtype).max
    counts = (task.active, task.parts, task.longest, task.largest, task.least)
    return Weighed(degrees, part, *counts, is_sound, bool(task.has_subnormal))
