"""Protocols of solvers and preconditioners, their answers, and functions that several of them share.

A solver is a frozen dataclass of its options, called with an `Operator` and the number of pairs. It computes no
gradients; `torch_lapeig.eigen.gradient.rule` does. `Eigh` and `ChebyshevSubspace` solve a whole batch at a time, the
others one graph after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator, allowed_residual
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property
from torch_lapeig.support.progress import Progress as Progress

SETTLED = 0.05  # residual over the gap, at which the pair after the gap counts as converged

Array = np.ndarray[Any, Any]
# An approximate A⁻¹ on blocks ``(N, m)`` of one graph.
Inverse = Callable[[Tensor], Tensor]


class Preconditioner(Protocol):
    """Preconditioner for `Lobpcg` and the differentiation rule: `SmoothedAggregation`, `SparseFactors` or your own.

    >>> from torch_lapeig.eigen import Laplacian, Lobpcg, eigenpairs
    >>> from torch_lapeig.graph import KNN
    >>> def jacobi(operator):
    ...     diagonal = operator.diagonal[:, None] + 1e-6
    ...     return lambda r: r / diagonal
    >>> laplacian = Laplacian(KNN(10)(torch.rand(200, 2)))
    >>> bool(eigenpairs(laplacian, 3, Lobpcg(preconditioner=jacobi)).converged)
    True
    """

    def __call__(self, operator: Any) -> Inverse | None:
        """Return a symmetric positive definite approximation of A⁻¹ for one graph, or None if there is no good one."""


class RitzPairs(NamedTuple):
    """Approximate eigenpairs, ascending; pairs after the requested number are guards.

    Attributes:
        values: ``(B, m)``, ascending.
        vectors: ``(B, N, m)``, orthonormal.
        iterations: number of iterations.
        finished: bool ``(B,)``, whether the solver has reached its goal: small residuals, a settled next value, and a
            search for copies of multiple values.
        inverses: the preconditioner built for each graph, or None.

    >>> pairs = RitzPairs(torch.zeros(2, 4), torch.zeros(2, 9, 4), 3, torch.ones(2).bool())
    >>> pairs.part(slice(0, 1)).vectors.shape
    torch.Size([1, 9, 4])
    """

    values: Tensor
    vectors: Tensor
    iterations: int
    finished: Tensor
    inverses: tuple[Inverse | None, ...] = ()

    def part(self, graphs: slice) -> RitzPairs:
        """Return the pairs of some graphs of the batch."""
        values, vectors, iterations, finished, inverses = self
        return RitzPairs(values[graphs], vectors[graphs], iterations, finished[graphs], inverses[graphs])


class Solver(Protocol):
    """Solver that `eigenpairs` calls: any object that is called like this.

    >>> from torch_lapeig import eigenpairs
    >>> def dense_float64(operator, k, tolerance, progress=None):
    ...     values, vectors = torch.linalg.eigh(operator.to_dense().double())
    ...     return RitzPairs(values[None], vectors[None], 1, torch.tensor([True]))
    >>> bool(eigenpairs(torch.arange(60.0).diag(), 3, dense_float64).converged)
    True
    """

    def __call__(self, operator: Any, k: int, tolerance: float, progress: Progress | None = None) -> RitzPairs:
        """Return at least the ``k`` smallest pairs of each graph, with residuals no larger than `allowed_residual`.

        Args:
            operator: an `Operator`, of one graph or a batch.
            k: number of wanted pairs.
            tolerance: maximum residual, relative to the gap after the k-th value.
            progress: called in every iteration, if it is not None.
        """


def with_guards(k: int, guards: int | None = None) -> int:
    """Return the number of columns to iterate for ``k`` wanted pairs, by default max(4, k/4) more."""
    return k + (max(4, k // 4) if guards is None else guards)


@dataclass(frozen=True)
class Request:
    """Request to a solver for the pairs of one graph beside its null vectors, which are known."""

    operator: Operator
    null: Tensor  # (N, c)
    wanted: int  # k − c
    columns: int  # wanted pairs and guards
    tolerance: float
    progress: Progress | None

    @cached_property
    def round_off(self) -> float:
        """Return the round-off of the operator."""
        return float(self.operator.round_off)

    @cached_property
    def bound(self) -> float:
        """Return the bound of the operator."""
        return float(self.operator.bound)

    def shortfall(self, iteration: int, values: Tensor, residuals: Tensor) -> tuple[float, float]:
        """Return the ratio of `ratio_to_allowed`, and the maximum of wanted pairs; call ``progress``."""
        ratio, worst, allowed = ratio_to_allowed(values, residuals, self.wanted, self.tolerance, self.round_off)
        if self.progress is not None:
            self.progress(iteration, worst, allowed)
        return ratio, allowed

    def answer(
        self, values: Tensor, x: Tensor, iterations: int, finished: bool, inverse: Inverse | None = None
    ) -> RitzPairs:
        """Return the null pairs and the solver's pairs, with a batch axis."""
        values = torch.cat([values.new_zeros(self.null.shape[1]), values]).to(x.device)
        done = torch.tensor([finished], device=x.device)
        return RitzPairs(values[None], torch.cat([self.null, x], 1)[None], iterations, done, (inverse,))


def ratio_to_allowed(
    values: Tensor, residuals: Tensor, wanted: int, tolerance: float, round_off: float
) -> tuple[float, float, float]:
    """Return the largest of the `ratios` of one graph, the largest residual of wanted pairs, and their maximum."""
    found, worst, allowed = ratios(numbers(values[None]), numbers(residuals[None]), wanted, tolerance, round_off)
    return float(found.max()), float(worst[0]), float(allowed[0])


@np.errstate(all="ignore")
def ratios(
    values: Array, residuals: Array, wanted: int, tolerance: float, round_off: Array | float
) -> tuple[Array, Array, Array]:
    """Return ratios ``(B, 2)`` to the maximum of residuals: of wanted pairs, the next one; the largest, its maximum."""
    last = values[:, wanted - 1 : wanted].sum(1) if wanted else 0.0
    gap = (values[:, wanted : wanted + 1] - np.reshape(last, (-1, 1))).sum(1)  # 0 without a next value
    allowed = allowed_residual(tolerance, gap, round_off)
    worst = residuals[:, :wanted].max(1, initial=0)
    # Ritz values are upper bounds: if the gap between them is round-off, so is the gap of the eigenvalues.
    following = residuals[:, wanted : wanted + 1].sum(1) / np.maximum(SETTLED * gap, allowed)
    return np.stack([worst / allowed, np.where(gap <= round_off, 0, following)], 1), worst, allowed


def numbers(x: Tensor) -> Array:
    """Return numbers on the host in float64, in NumPy, where small operations take a third of torch's time."""
    x = x.detach().double()
    try:
        return x.numpy()
    except RuntimeError:  # inside a transform of torch.func a tensor has no memory of its own
        return np.array(x.tolist())


def one_by_one(
    solve: Callable[[Request], RitzPairs],
    operator: Operator,
    k: int,
    tolerance: float,
    progress: Progress | None,
    guards: int | None = None,
) -> RitzPairs:
    """Solve the graphs of a batch one by one: ``k`` pairs of each and guards, or those of all active nodes."""
    answers = []
    for item in operator.items():
        width = min(with_guards(k, guards), item.fewest_active)
        c = min(int(item.nullity), width)
        null = item.null_vectors(c)[0]
        request = Request(item, null, k - c, width - c, tolerance, progress)
        # With more components than wanted pairs the next value is 0 too, and nothing is left to solve.
        is_known = c == width or c > k
        answers.append(request.answer(null.new_empty(0), null[:, :0], 0, True) if is_known else solve(request))
    return joined(operator, answers, k)


def joined(operator: Operator, answers: list[RitzPairs], k: int) -> RitzPairs:
    """Return the pairs of parts of a batch as one: as many as all parts have, and at least k + 1 if one part has them.

    Pairs that a part lacks have values above the spectrum and zero vectors.
    """
    if len(answers) == 1:
        return answers[0]
    counts = [pairs.values.shape[1] for pairs in answers]
    width = max(min(counts), min(k + 1, max(counts)))
    values, vectors = [], []
    above = operator.above.split([len(pairs.values) for pairs in answers])
    for pairs, beyond in zip(answers, above, strict=True):
        missing = max(width - pairs.values.shape[1], 0)
        values.append(torch.cat([pairs.values[:, :width], beyond[:, None].expand(-1, missing).to(pairs.values)], 1))
        vectors.append(torch.nn.functional.pad(pairs.vectors[..., :width], (0, missing)))
    _, _, iterations, finished, inverses = zip(*answers, strict=True)
    return RitzPairs(torch.cat(values), torch.cat(vectors), max(iterations), torch.cat(finished), sum(inverses, ()))


def check_options(solver: Any, **least: int) -> None:
    """Check the seed and counts of a solver; each count has a minimum, and may be None if its default is None."""
    for name, minimum in least.items():
        value = getattr(solver, name)
        if value is not None or type(solver).__dataclass_fields__[name].default is not None:
            checks.set_frozen(solver, **{name: checks.check_count(value, name, minimum)})
    checks.set_frozen(solver, seed=checks.check_seed(solver.seed))
