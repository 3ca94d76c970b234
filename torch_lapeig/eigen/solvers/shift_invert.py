"""Block Lanczos on the inverse, by sparse factors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.solvers.factors import Factors, Shifted, factors_of, shifted
from torch_lapeig.eigen.solvers.krylov import SURE, WIDTH, Form, pairs_by_krylov
from torch_lapeig.eigen.solvers.solver import Progress, Request, RitzPairs, check_options, one_by_one
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import budget_of

MOST_ROUNDING = 1e-5  # more than rounding to float32 may make of an eigenvalue 0, over the bound


@dataclass(frozen=True)
class ShiftInvert:
    """Block Lanczos on (A + σ)⁻¹ by sparse factors: for graphs whose factors stay sparse, even if the spectrum is hard.

    Paths, trees, grids, meshes, roads and data on curves and surfaces are such graphs; on data of many dimensions the
    factors fill in. Nodes are ordered by minimum degree. The wanted eigenvalues of A become the largest of the inverse
    and well separated, so that some eight blocks of four solves are enough (Grimes, Lewis & Simon 1994). A block finds
    at most as many copies of a multiple eigenvalue as it has columns. Where there may be more, Sylvester's law of
    inertia counts the eigenvalues below the gap, and missing ones are searched for outside the found pairs. Steps of
    `Lobpcg` improve the pairs until the residuals of A itself are small enough. The gradient's linear solve reuses the
    factors. The solver computes in float64, on the CPU.

    Args:
        basis: maximum number of kept vectors, at least 3; default max(48, 3k).
        max_products: maximum number of solves with the factors.
        shift: σ over the bound of the spectrum, positive: large enough that a singular A has factors. It is increased
            where rounding of the entries, to float32 at most, has made an eigenvalue negative.
        memory: maximum bytes of the factors; None for the budget of the machine, infinite for no limit. Larger factors
            raise a ConvergenceError, with compiled loops before anything is factorised.
        seed: of the random blocks.

    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> laplacian = Laplacian(KNN(8)(torch.rand(400, 2).double()))
    >>> bool(eigenpairs(laplacian, 4, ShiftInvert()).converged)
    True
    """

    basis: int | None = None
    max_products: int = 2000
    shift: float = 1e-14
    memory: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self, basis=3, max_products=0)
        checks.set_frozen(self, shift=checks.check_positive(self.shift, "shift"))
        if self.memory is not None and not (isinstance(self.memory, float) and self.memory == math.inf):
            checks.set_frozen(self, memory=checks.check_number(self.memory, "memory", 0))

    def __call__(self, operator: Operator, k: int, tolerance: float, progress: Progress | None = None) -> RitzPairs:
        """Return ``k`` pairs and guards; raise ConvergenceError for too large factors, or a negative eigenvalue."""
        return one_by_one(self._solve, operator, k, tolerance, progress)

    def _solve(self, request: Request) -> RitzPairs:
        operator, bound, shift = request.operator, request.bound, self.shift
        memory = budget_of(torch.device("cpu")).factors if self.memory is None else self.memory
        while (inverse := self._factors(shifted(operator, shift, self), memory)).negative:
            if shift > MOST_ROUNDING:
                smallest = Request(operator, request.null[:, :0], 1, 1, SURE, None)
                least = pairs_by_krylov(smallest, Form(operator, operator.matmul), self.max_products, self.seed).values
                raise checks.ConvergenceError(
                    f"the matrix must be positive semidefinite, got an eigenvalue of about {float(least):.1e}; add a "
                    "number to its diagonal and subtract it from the eigenvalues"
                )
            shift *= 10  # the rounding of the entries, perhaps to float32, has made an eigenvalue negative
        form = Form(operator, inverse, inverse=inverse, sigma=-shift * bound, memory=memory, width=WIDTH)
        size = 0 if self.basis is None else max(self.basis, request.columns + 2 * WIDTH)
        return pairs_by_krylov(request, form, self.max_products, self.seed, size)

    def _factors(self, matrix: Shifted, memory: float) -> Factors:
        """Return factors that fit into the memory; raise as a call does."""
        is_known = matrix.is_readable and memory < math.inf  # the fill of SuperLU is known only from its factors
        factors = None if is_known and matrix.structure(memory=memory) is None else factors_of(matrix, self)
        if factors is None or factors.bytes > memory:
            raise checks.ConvergenceError(
                f"factors of the matrix of {len(matrix.diagonal)} nodes would take more than memory="
                f"{memory / 2**30:.3g} GiB of {self}; use Krylov() or the default solver"
            )
        return factors
