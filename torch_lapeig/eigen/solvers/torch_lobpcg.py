"""`torch.lobpcg` behind the interface of the solvers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from torch_lapeig.eigen.operator import Operator, entries_of
from torch_lapeig.eigen.solvers.solver import Progress, Request, RitzPairs, check_options, one_by_one
from torch_lapeig.support import checks


@dataclass(frozen=True)
class TorchLobpcg:
    """Solver by unchanged `torch.lobpcg`, graph by graph: no preconditioner, no constraints, no restart.

    It needs at least 3 times as many nodes as vectors. It may stop early or fail with singular small matrices
    (pytorch #101075, #109497), which raises `ConvergenceError`, and is weak at equal and tiny eigenvalues. Its answer
    is checked like every other, and its own backward is never used.

    Args:
        max_iterations: maximum number of iterations.
        seed: of the random start.

    Raises:
        TypeError, ValueError: an option of another type or out of range.

    >>> import torch
    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> x = torch.rand(
    ...     400, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ... )
    >>> laplacian = Laplacian(KNN(8)(x))
    >>> values = torch.linalg.eigvalsh(laplacian.to_dense())[:4]
    >>> torch.allclose(
    ...     eigenpairs(laplacian, 4, TorchLobpcg(), tolerance=1e-5).values,
    ...     values,
    ...     atol=1e-6,
    ... )
    True
    """

    max_iterations: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, max_iterations=0)

    def __call__(
        self,
        operator: Operator,
        k: int,
        tolerance: float,
        progress: Progress | None = None,
    ) -> RitzPairs:
        """Return ``k`` pairs and one guard."""
        return one_by_one(self._solve, operator, k, k + 1, tolerance, progress)

    def _solve(self, request: Request) -> RitzPairs:
        operator, m = request.operator, request.null.shape[1] + request.columns
        matrix = entries_of(operator, self).to_matrix()
        if 3 * m > len(request.null):
            raise ValueError(
                f"torch.lobpcg needs at least {3 * m} nodes for {m} vectors, got {len(request.null)}; use Eigh()"
            )
        x = torch.cat([request.null, operator.random(request.columns, self.seed)[0]], 1)
        iterations, goal, missing = 0, 1e-4, math.inf

        def count(worker: object) -> None:
            nonlocal iterations
            iterations += 1

        for _ in range(2):  # the gap of the first solve determines the maximum residual of the second
            options: Any = {"niter": self.max_iterations, "tol": goal, "largest": False, "tracker": count}
            try:
                values, x = torch.lobpcg(matrix, X=x, **options)
            except (RuntimeError, ValueError) as error:
                raise checks.ConvergenceError(f"torch.lobpcg failed ({error}); use another solver") from error
            r = operator.matmul(x) - x * values
            c = request.null.shape[1]
            missing, allowed = request.shortfall(iterations, values[c:], operator.dots(r, r).sqrt()[c:])
            goal = allowed / float(operator.bound) / 4
        return RitzPairs(values[None], x[None], iterations, torch.tensor([missing <= 1], device=x.device))
