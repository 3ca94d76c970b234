"""The normal form of an eigenproblem: one place for mass, end, sign, shift, unit and order, and one that undoes them.

Solvers, check and rule see A' = f S A S + c for numbers f and c of each graph and a diagonal S: positive semidefinite,
of a norm near 1, with the wanted pairs at its lower end. `Normal.back` returns what they find as pairs of A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from torch_lapeig.eigen.check import Solution
from torch_lapeig.eigen.operator import Operator
from torch_lapeig.eigen.symmetric import SymmetricOperator
from torch_lapeig.graph.pattern import SparsePattern
from torch_lapeig.support import checks
from torch_lapeig.support.tuning import REORDER_NODES

T = TypeVar("T", bound=Operator)


class Differentiated(NamedTuple):
    """Pairs with gradients: V ``(B, N, k)`` and Λ ``(B, k, k)``."""

    vectors: Tensor
    projected: Tensor


class Products(Operator):
    """A' = f S A S + c, S = diag(``root``), of an A that gives products only and whose null space is searched for."""

    active = scale = torch.empty(0)  # set for each object

    def __init__(
        self, inside: Operator, root: Tensor | None, factor: Tensor, shift: Tensor, bound: Tensor, scale: Tensor
    ) -> None:
        self.shape, self.dtype, self.device, self.inside = inside.shape, inside.dtype, inside.device, inside
        self.root, self.factor, self.shift, self.bound, self.scale = root, factor, shift, bound, scale
        self.parameters = inside.parameters if root is None else (*inside.parameters, root)
        self.active = inside.active

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return bounds of the spectrum of S A S."""
        lower, upper = self.inside.ends()
        most = self.bound / self.inside.bound  # of the squares of S
        return lower * most, upper * most

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return the product; see `Operator.matmul_at`."""
        s = None if self.root is None else parameters[-1].reshape(*y.shape[:-1], 1)
        own, block = parameters if s is None else parameters[:-1], y if s is None else s * y
        found = self.inside.matmul_at(own, block) if own else self.inside.matmul(block)
        factor, shift = (x[:, None, None] if self.batch_size > 1 else x for x in (self.factor, self.shift))
        return factor * (found if s is None else s * found) + shift * y


def affine(operator: Operator, factor: Tensor, shift: Tensor, bound: Tensor, scale: Tensor) -> Any:
    """Return f A + c for numbers ``(B,)`` of each graph, with gradients, the bound of its spectrum and its scale."""
    if not isinstance(operator, SymmetricOperator):
        inside, root = (operator.inside, operator.root) if isinstance(operator, Products) else (operator, None)
        return Products(inside, root, factor, shift, bound, scale)
    is_same = not bool((factor < 0).any() | (shift != 0).any())
    at_nodes = factor if len(operator.shape) == 1 else factor[:, None]
    values, diagonal = checks.finite_gradient(operator.values), checks.finite_gradient(operator.diagonal)
    return operator._with(
        values=(values * operator.pattern.of_graph(factor)).reshape(values.shape),
        diagonal=diagonal * at_nodes + (shift[:, None] * operator.active).reshape(operator.shape),
        bound=bound,
        null=operator.null if is_same else None,
        of_affinities=operator.of_affinities and is_same,
        excess=None if operator.excess is None else operator.excess * factor[:, None],
        definite=True,
        size=scale,
    )


def in_unit(operator: T, *, largest: bool = False, is_pencil: bool = False) -> tuple[T, Tensor | None, Tensor | None]:
    """Return f A + c and f, c ``(B,)``; A itself and None for 1 and 0. A pencil has c = 0 and needs no definite A."""
    if not (largest or is_pencil) and operator.is_near_one:
        return operator, None, None
    with torch.no_grad():
        lower, upper = operator.ends()
        size = torch.maximum(lower.abs(), upper.abs())
        shift = 0 * size if is_pencil else upper if largest else -lower.clamp_max(0)
        reach = size if is_pencil else upper - lower if largest else upper + shift  # of the shifted spectrum
        reach = torch.where(reach > 0, reach, torch.where(size > 0, size, 1))
        # Residuals are a small part of the bound: far from 1 their squares leave the range of the dtype. The inverse of
        # the unit is exact, too.
        unit, least = checks.next_power(reach), torch.finfo(reach.dtype).tiny
        unit = torch.where(checks.are_near_one(unit), 1, unit.clamp(least, 1 / least))
        factor, shift = (-1 if largest else 1) / unit, shift / unit
        size = torch.maximum(size, reach) / unit
    return affine(operator, factor, shift, reach / unit, size), factor, shift


def scaled(operator: Operator, root: Tensor) -> Operator:
    """Return S A S for S = diag(``root``), positive, of the operator's shape, with gradients."""
    if isinstance(operator, SymmetricOperator):
        return operator.scaled(root)
    most = checks.primal(root).square().reshape(operator.batch_size, -1).amax(1)
    one, bound = torch.ones_like(most), operator.bound * most
    return Products(operator, root, one, 0 * one, bound, bound)


@dataclass(frozen=True, eq=False)
class Normal:
    """A problem in normal form, and what undoes it."""

    operator: Operator  # A', with M' if M is no diagonal that scales A
    factor: Tensor | None  # f ``(B,)``; None for 1
    shift: Tensor | None  # c ``(B,)``; None for 0
    order: Tensor | None = None  # the nodes in the order of A', int64 ``(N,)``; None for their own
    stretch: Tensor | None = None  # u over u' ``(B,)``; None for 1

    @property
    def unit(self) -> float:
        """Return the largest size of an eigenvalue of A over that of A'."""
        return 1.0 if self.factor is None else float(1 / self.factor.abs().amin())

    def in_order(self, at_nodes: Tensor | None) -> Tensor | None:
        """Return numbers of the nodes ``(B, N)`` in the order of A', without derivatives."""
        if at_nodes is None:
            return None
        at_nodes = checks.primal(at_nodes).reshape(self.operator.batch_size, -1)
        return at_nodes if self.order is None else at_nodes[:, self.order]

    def back(self, solution: Solution, found: Differentiated) -> tuple[Solution, Differentiated]:
        """Return a solution, and its differentiated pairs, as those of the given problem, or of S A S."""
        vectors, projected = found
        if self.order is not None:
            vectors = torch.empty_like(vectors).index_copy(1, self.order, vectors)
        if self.stretch is not None:
            vectors = vectors * self.stretch[:, None, None]
        if self.factor is not None and self.shift is not None:
            moved = torch.diag_embed(self.shift[:, None].expand(projected.shape[:2]))
            projected = (projected - moved) / self.factor[:, None, None]
            solution = solution.times(1 / self.factor.abs())
        return solution, Differentiated(vectors, projected)


def normalise(
    operator: Operator,
    root: Tensor | None = None,
    mass: SymmetricOperator | None = None,
    *,
    largest: bool = False,
    is_inside: bool = False,
) -> Normal:
    """Return A u = λ M u, M a matrix ``mass`` or M^-½ = diag(``root``), in normal form, for the wanted values."""
    square = None
    if root is not None:  # in a unit in which no square overflows
        most = checks.next_power(checks.primal(root).reshape(operator.batch_size, -1).amax(1))
        operator = scaled(operator, root / (most if len(operator.shape) == 1 else most[:, None]))
        square = None if bool((most == 1).all()) else most.square()
    operator, factor, shift = in_unit(operator, largest=largest, is_pencil=mass is not None or is_inside)
    if square is not None:
        factor, shift = (1 / square, 0 * square) if factor is None else (factor / square, shift)
    if is_inside and isinstance(operator, SymmetricOperator):
        operator = operator._with(null=None)  # null vectors are pairs as others
    if mass is not None:
        mass, of_mass, _ = in_unit(mass)
        operator = operator._with(mass=mass)
        factor = factor if of_mass is None or factor is None else factor / of_mass
        return Normal(operator, factor, shift, stretch=None if of_mass is None else of_mass.sqrt())
    is_large = operator.device.type == "cpu" and len(operator.shape) == 1 and operator.num_nodes > REORDER_NODES
    if is_large and isinstance(operator, SymmetricOperator) and type(operator.pattern) is SparsePattern:
        operator, order = operator.reordered()
        return Normal(operator, factor, shift, order)
    return Normal(operator, factor, shift)
