"""New directions of a block iteration where every sum over nodes is a message: all sums of a step in one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.solvers.blocks import combined, eigh, shared, without
from torch_lapeig.eigen.symmetric import in_one_message

PASSES = 4  # measurements at most
LOSS = 1e-12  # maximum loss of orthogonality by one measurement
CANCELLED = 1e8  # a column whose square falls by more is measured again before it counts as a direction


class Directions(NamedTuple):
    """Orthonormal basis W of new directions, A W, [X P]ᵀ A W, Wᵀ A W, and the squares of a rider's columns."""

    w: Tensor
    aw: Tensor
    cross: Tensor
    own: Tensor
    squares: Tensor


def fused_directions(
    operator: Any, w: Tensor, null: Tensor, xp: Tensor, axp: Tensor, projected: Tensor, rider: Tensor
) -> Directions:
    """Return a basis of ``w`` outside orthonormal null vectors and X, P; see `torch_lapeig.eigen.solvers.blocks.basis`.

    The part of W outside is known from the sums over W itself, (W − Q C)ᵀ (W − Q C) = Wᵀ W − Cᵀ C with C = Qᵀ W, as
    long as not too much cancels; likewise for A W. So one message is mostly enough: else W is measured again.

    Args:
        operator: with ``matmul`` and ``sum``. projected: [X P]ᵀ A [X P]. rider: ``(n, ·)``, measured on the way.
    """
    aw, squares = operator.matmul(w), rider.new_zeros(0)
    eps, tiny = torch.finfo(w.dtype).eps, torch.finfo(w.dtype).tiny
    for turn_number in range(PASSES):
        riders = ((rider * rider).sum(0),) if turn_number == 0 else ()
        parts = (null.mT @ w, xp.mT @ w, w.mT @ w, xp.mT @ aw, w.mT @ aw, *riders)
        on_null, on_xp, gram, cross, own, *found = in_one_message(operator.sum, *parts)
        squares = found[0] if found else squares
        before = gram.diagonal()
        (rest,) = shared(operator, gram - on_null.mT @ on_null - on_xp.mT @ on_xp)
        size, some = rest.diagonal(), before > tiny
        lost = float((before / size.clamp_min(tiny))[some].max()) if some.any() else 1.0
        is_last, is_safe = turn_number == PASSES - 1, bool((size[some] * CANCELLED > before[some]).all())
        if is_safe or is_last:
            alive = some & (size > 100 * eps * before)
            scale = torch.where(alive, size, torch.inf).rsqrt()
            values, turn = shared(operator, *eigh(scale[:, None] * rest * scale))
            keep = values > max(50 * eps * lost, eps ** (2 / 3) if turn_number else 0.0) * values[-1].clamp_min(tiny)
            change = scale[:, None] * turn[:, keep] * values[keep].rsqrt()
            is_known = not keep.any() or eps * lost * float(values[-1] / values[keep][0]) <= LOSS
        else:  # project out the known vectors, and repeat
            change, is_known = torch.diag(torch.where(some, before, torch.inf).rsqrt()), False
        w = combined(without(without(w, null, on_null), xp, on_xp), change)
        aw = combined(without(aw, axp, on_xp), change)
        if is_known:
            break
    inside = on_xp.mT @ cross
    own = own - inside - inside.mT + on_xp.mT @ projected @ on_xp
    return Directions(w, aw, (cross - projected @ on_xp) @ change, change.mT @ own @ change, squares)
