"""Searches for coefficients that fit measurements, within seconds of the processor; what their experiments share."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.table import Table
from scipy.optimize import least_squares, minimize
from torch import Tensor

from experiments.memory import growth
from experiments.metrics import Numbers, mean_and_interval, plus_minus
from experiments.runs import table
from torch_lapeig import DegeneracyWarning

ITERATIONS = 40  # of L-BFGS
DIFFERENCE = 1e-4


class Ended(Exception):
    """A field's time is up, or a gradient is not finite."""


class Search:
    """A loss of coefficients with its gradient; remembers the best, and ends at the cap.

    Args:
        count: of coefficients, which begin at zero.
        cap: seconds of the processor.
        penalty: weight of their squares.
    """

    iterations = ITERATIONS

    def __init__(self, count: int, cap: float, penalty: float) -> None:
        self.deadline, self.penalty = time.process_time() + cap, penalty
        self.evaluations, self.least = 0, float("inf")
        self.best = torch.zeros(count, dtype=torch.float64)

    def fitted(self, coefficients: Tensor) -> Tensor:
        """Return residuals, whose squares are added up."""
        raise NotImplementedError

    def residuals(self, coefficients: Tensor) -> Tensor:
        """Return what is fitted, without the penalty; raise `Ended` at the cap."""
        self.check()
        self.evaluations += 1
        return self.fitted(coefficients)

    def loss(self, coefficients: Tensor) -> Tensor:
        """Return the loss, and keep the best."""
        value = self.residuals(coefficients).square().sum() + self.penalty * coefficients.square().sum()
        self.keep(value.item(), coefficients)
        return value

    def keep(self, value: float, coefficients: Tensor) -> None:
        """Remember coefficients if none had a smaller loss."""
        if value < self.least:
            self.least, self.best = value, coefficients.detach().clone()

    def check(self) -> None:
        """Raise `Ended` once the time is up."""
        if time.process_time() > self.deadline:
            raise Ended("cap")

    def with_gradient(self, at: Numbers) -> tuple[float, Numbers]:
        """Return the loss and its gradient by automatic differentiation."""
        coefficients = torch.tensor(at, requires_grad=True)
        value = self.loss(coefficients)
        (gradient,) = torch.autograd.grad(value, coefficients)
        if not gradient.isfinite().all():
            raise Ended("NaN")
        return value.item(), gradient.numpy()

    def value(self, at: Numbers) -> float:
        """Return the loss without a gradient."""
        with torch.no_grad():
            return self.loss(torch.from_numpy(at)).item()

    def slope(self, at: Numbers) -> Numbers:
        """Return the Jacobian of what `weighed` returns, by forward differences."""
        base = self.weighed(at)
        steps = DIFFERENCE * np.eye(len(at))
        return np.stack([self.weighed(at + step) - base for step in steps], 1) / DIFFERENCE

    def weighed(self, at: Numbers) -> Numbers:
        """Return residuals whose squares add up to the loss, for least squares."""
        coefficients = torch.from_numpy(at)
        with torch.no_grad():
            found = torch.cat([self.residuals(coefficients), self.penalty**0.5 * coefficients])
        self.keep(found.square().sum().item(), coefficients)
        return found.numpy()


def descend(search: Search, start: Numbers) -> None:
    """Minimise by L-BFGS, with the gradient of autograd."""
    options = {"maxiter": search.iterations, "maxfun": 10 * search.iterations}
    minimize(search.with_gradient, start, jac=True, method="L-BFGS-B", options=options)


def gauss_newton(search: Search, start: Numbers) -> None:
    """Minimise by a trust region of Gauss–Newton's model, its Jacobian by differences."""
    least_squares(search.weighed, start, search.slope, ftol=1e-4, xtol=1e-3, max_nfev=12)


def attempt(search: Search, method: Callable[[Any, Numbers], None], start: Numbers) -> dict[str, Any]:
    """Return how a search ended, processor seconds, MiB beside those before, and evaluations of the loss."""
    begin, found = time.process_time(), {"end": "converged"}

    def solve() -> None:
        try:
            method(search, start)
        except Ended as end:
            found["end"] = str(end)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegeneracyWarning)  # single eigenvalues at the start
        memory = growth(solve)
    seconds = time.process_time() - begin
    return {**found, "seconds": seconds, "memory": memory, "evaluations": search.evaluations}


def summary(cells: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return means of each way with values by seed, and the paired difference of its errors from the layer's.

    A field diverges that ends further from the truth than the start, whose error is 1.
    """
    found: dict[str, Any] = {}
    for way, results in cells.items():
        errors = [cell["error"] for cell in results]
        found[way] = {
            "error": mean_and_interval(errors),
            **{key: float(np.mean([cell[key] for cell in results])) for key in ("seconds", "memory", "evaluations")},
            "end": [cell["end"] for cell in results],
            "diverged": sum(error > 1 for error in errors),
            "fields": len(errors),
        }
        if way != "layer" and "layer" in cells:
            pairs = zip(cells["layer"], results, strict=False)
            behind = [other["error"] - ours["error"] for ours, other in pairs]
            found[way]["it_less_layer"] = mean_and_interval(behind, len(cells) - 1)
    return found


def told(found: dict[str, Any]) -> str:
    """Return an error with its difference from the layer's, and how searches ended if not by themselves."""
    ends = set(found["end"]) - {"converged"}
    if "NaN" in ends:
        return "NaN"
    error = plus_minus(found["error"], 3)
    if "it_less_layer" in found:
        error = f"{found['error']['mean']:.3f} ({plus_minus(found['it_less_layer'], 3, sign='+')})"
    diverged = f"; {found['diverged']} of {found['fields']} diverge" if found["diverged"] else ""
    return error + diverged + ("; did not end" if ends else "")


def tables_of(title: str, what: str, labels: dict[str, str], metrics: dict[str, dict[str, Any]]) -> list[Table]:
    """Return errors of each way, then seconds and MiB."""
    ways = [way for way in labels if any(way in found for found in metrics.values())]

    def rows(cell: Callable[[dict[str, Any]], str]) -> list[list[str]]:
        return [[labels[way], *(cell(by[way]) if way in by else "–" for by in metrics.values())] for way in ways]

    heads = ["way", *metrics]
    return [
        table(f"{title}, error of {what}", heads, rows(told)),
        table(
            f"{title}, seconds (MiB)",
            heads,
            rows(lambda found: f"{found['seconds']:.2g} ({max(found['memory'], 0):.0f})"),
        ),
    ]
