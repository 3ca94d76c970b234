"""Powers and logarithms of weights and degrees whose derivatives neither overflow nor divide by zero."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lapeig.graph.pattern import Pattern
from torch_lapeig.support import checks


def inverse_power(degrees: Tensor, power: float) -> Tensor:
    """Return degrees^−power, and 0 with a zero gradient where the degree is 0 or below the smallest normal number.

    Its derivatives go through the logarithm, because the derivative of a power, d^−(power + 1), overflows for tiny
    degrees where its product with the cotangent does not. Its value does not: exp(log) has an error of eps times the
    logarithm.
    """
    positive = degrees > torch.finfo(degrees.dtype).tiny
    degrees = torch.where(positive, degrees, 1)
    return with_log_derivative(positive * checks.primal(degrees).pow(-power), -power * degrees.log())


def with_log_derivative(values: Tensor, logarithm: Tensor) -> Tensor:
    """Return ``values`` ≥ 0 as they are, with the derivatives, of any order and mode, of exp(``logarithm``).

    The logarithm need be one up to constants only. Zeros are constant. A value as small as the dtype can hold gets a
    derivative of its own size, where a chain of quotients would overflow on the way.
    """
    values = checks.primal(values)
    change = torch.where(values > 0, logarithm - checks.primal(logarithm), 0)
    return values * change.exp()


def log_sums(pattern: Pattern, values: Tensor, logarithm: Tensor, zeros: Tensor | None = None) -> Tensor:
    """Return a tensor of the graph's shape with the derivatives of log Σ_j of edge values, given their logarithm.

    Values that are 0 take the derivatives of ``zeros``, see `only_zeros`.
    """
    inverse = pattern.at_row(inverse_power(checks.primal(pattern.sum_rows(values)), 1.0))
    share = with_log_derivative(values * inverse, logarithm)
    if zeros is not None:
        share = share + checks.finite_gradient(zeros) * inverse
    whole = pattern.sum_rows(share)
    return torch.where(whole > 0, torch.where(whole > 0, whole, 1).log(), 0)


def only_zeros(values: Tensor) -> Tensor:
    """Return zeros with the derivatives of ``values`` where these are 0 and have no logarithm."""
    return torch.where(values > 0, 0, checks.finite_gradient(values))


def finite_log(values: Tensor) -> Tensor:
    """Return log of positive values, 0 for others. Its gradient is made finite, with a warning where it is not."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, checks.finite_gradient(values), 1).log(), 0)
