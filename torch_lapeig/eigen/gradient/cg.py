"""Preconditioned block conjugate gradients that are judged by the true residual."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_lapeig.support.tuning import steps_between_checks

Map = Callable[[Tensor], Tensor]

CHECK_EVERY = 50  # iterations between two true residuals: the recurrence does not drift far in so many
STALE_CHECKS = 6  # true residuals without a decrease by a tenth in any column, after which the solve gives up


def conjugate_gradients(
    image: Map, precondition: Map, target: Tensor, dots: Callable[[Tensor, Tensor], Tensor], allowed: Map, limit: int
) -> tuple[Tensor, Tensor]:
    """Return Z with image(Z) = ``target``, where every column ``(N,)`` of ``(B, N, k)`` is a system of its own."""
    # The residual of the recurrence drifts away from the true residual, and where the system is nearly singular the
    # iterate itself is lost. Every `CHECK_EVERY` iterations, and before a column counts as solved, the true residual is
    # computed. The iterate of least true residual of each column is returned, solved or not, with the norms `(B, k)` of
    # the residuals; `allowed` gives the maximum norms of an iterate at which its columns are solved.

    def norms(x: Tensor) -> Tensor:
        return dots(x, x).sqrt()

    def step(z: Tensor, r: Tensor, direction: Tensor, energy: Tensor, moving: Tensor) -> tuple[Tensor, ...]:
        """Return iterate, residual, direction and r · precondition(r) after a step of the columns that move."""
        conditioned = precondition(r)
        fresh = dots(r, conditioned)
        before = torch.where(energy.isfinite() & (energy > 0), fresh / energy, 0)[:, None, :]
        direction = torch.addcmul(conditioned, before, direction)
        pushed = image(direction)
        curvature = dots(direction, pushed)
        length = torch.where(moving & (curvature > 0), fresh / curvature, 0)[:, None, :]
        return torch.addcmul(z, length, direction), torch.addcmul(r, length, pushed, value=-1), direction, fresh

    best, left = torch.zeros_like(target), norms(target)
    z = torch.where(left[:, None, :] > 0, precondition(target), 0)
    r, direction = target, torch.zeros_like(target)
    energy = torch.full_like(left, torch.inf)
    going, stale, period = left > allowed(best), 0, steps_between_checks(target.device)
    for iteration in range(limit + 1):
        # A column that seems solved waits for the others: further steps would follow its round-off.
        moving = going & (norms(r) > 0.5 * allowed(z))
        is_due = iteration % CHECK_EVERY == 0 or iteration == limit
        if is_due or (iteration % period == 0 and not moving.any()):
            r = target - image(z)
            size = norms(r)
            better, gained = size < left, size < 0.9 * left  # a NaN is neither
            best, left = torch.where(better[:, None, :], z, best), torch.where(better, size, left)
            going = left > allowed(best)
            lost = going & ~(size <= 1e3 * left)
            is_going, has_gained, is_lost = torch.stack([x.any() for x in (going, gained & going, lost)]).tolist()
            stale = 0 if has_gained or iteration == 0 else stale + 1
            if not is_going or stale > STALE_CHECKS or iteration == limit:
                break
            if is_lost:
                z, direction = (torch.where(lost[:, None, :], old, new) for old, new in ((best, z), (0, direction)))
                r = target - image(z)
            energy, moving = torch.where(going & ~lost, energy, torch.inf), going
        z, r, direction, energy = step(z, r, direction, energy, moving)
    return best, left
