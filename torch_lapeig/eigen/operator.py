"""The interface of symmetric matrices to solvers.

A solver uses only the methods of `Operator`. Every sum or maximum over nodes is a method of its ``nodes`` (``inner``,
``dots``, ``largest``, ``signs``) or ``active_count``, so that no solver needs to know whether the rows of a graph lie
on several ranks. Solvers and preconditioners that need single entries get them by `entries_of`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lapeig.graph.pattern import PatternBase
from torch_lapeig.native.calls import Rows
from torch_lapeig.support import checks
from torch_lapeig.support.cached import cached_property, deep_copy, own_state


class Operator:
    """Symmetric positive semidefinite matrix A(θ) for each of B graphs of N nodes.

    Your own matrix is a subclass: it defines ``shape``, ``dtype``, ``device``, ``bound`` and ``matmul``, and may
    override other methods. `eigenpairs` solves it by the solvers that need only products. For gradients it defines
    ``parameters`` and ``matmul_at`` in place of ``matmul``; `FunctionOperator` makes an operator of a function.

    Attributes:
        shape: ``(N,)`` for one graph, ``(B, N)`` for a batch.
        dtype, device: of its entries.
        bound: upper bound of the spectrum of each graph, ``(B,)``; without gradients.
        parameters: the tensors θ to which gradients flow, as a tuple; default: none. A(θ) is symmetric for any θ.

    >>> class Diagonal(Operator):
    ...     shape, dtype, device = (50,), torch.float64, torch.device("cpu")
    ...     bound = torch.tensor([50.0], dtype=dtype)
    ...
    ...     def matmul(self, y):
    ...         return torch.arange(1, 51, dtype=y.dtype)[:, None] * y
    >>> from torch_lapeig import eigenpairs
    >>> eigenpairs(Diagonal(), 3).values.round(decimals=6)
    tensor([1., 2., 3.], dtype=torch.float64)
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    bound: Tensor
    parameters: tuple[Tensor, ...] = ()
    nodes: PatternBase = PatternBase()  # reductions over all nodes, which may lie on several ranks
    compiled: Rows | None = None  # rows for compiled loops
    dense: dict[str, Tensor] | None = None  # matrix M and diagonal c of one dense A = diag(c) − M for compiled loops
    mean_value: Tensor | None = None  # estimate of each graph's mean eigenvalue, ``(B,)``
    size: Tensor | None = None  # `scale`; None for the bound
    given: torch.dtype | None = None  # to which the entries were rounded; None for their own
    mass: Any = None  # M of a problem A u = λ M u, a `SymmetricOperator`; None for 1
    of_affinities: bool = False  # whether this is a Laplacian of affinities, whose null vectors are all known

    __getstate__, __deepcopy__ = own_state, deep_copy

    def matmul(self, y: Tensor) -> Tensor:
        """Return A Y for ``y`` ``(B, N, m)``, or ``(N, m)`` where there is one graph; shape and dtype as ``y``.

        Your own method must not change ``y``: solvers still use it.
        """
        return self.matmul_at(tuple(map(checks.primal, self.parameters)), y)

    def weigh(self, x: Tensor) -> Tensor:
        """Return M X without derivatives."""
        return x if self.mass is None else self.mass.matmul(x)

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return A(θ) Y at ``parameters`` in place of this operator's θ, differentiable in θ and Y; see ``matmul``."""
        raise NotImplementedError(f"{type(self).__name__} has parameters: define matmul_at(parameters, y)")

    def images(self, parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return A(θ) X and M(θ) X of a block ``(B, N, m)``, for other `tensors`, with derivatives."""
        own = len(parameters) - (0 if self.mass is None else len(self.mass.parameters))
        image = self.matmul_at(parameters[:own], x) if own else self.matmul(x)
        return image, x if self.mass is None else self.mass.matmul_at(parameters[own:], x)

    def gradients(
        self, x: Tensor, y: Tensor, to_mass: Tensor | None, needed: Sequence[bool]
    ) -> Sequence[Tensor | None] | None:
        """Return the gradients of <Y, A(θ) X> + <``to_mass``, M(θ) X> in θ by a formula; None where autograd has to."""
        return None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors θ of A and M."""
        return self.parameters if self.mass is None else (*self.parameters, *self.mass.parameters)

    def check(self) -> None:
        """Raise an error where the matrix cannot be solved, such as one with NaN; `eigenpairs` calls it."""

    def double(self) -> Operator:
        """Return the operator in which a problem is solved and differentiated: in float64 where there is one."""
        return self

    def ends(self, *, close: bool = True) -> tuple[Tensor, Tensor]:
        """Return bounds ``(B,)`` of each spectrum, without gradients; up to twice its size if not ``close``."""
        return torch.zeros_like(self.bound), self.bound

    @property
    def is_near_one(self) -> bool:
        """Return whether no eigenvalue is negative and squares of the bound stay in the range of the dtype."""
        lower, upper = self.ends()
        return bool((checks.are_near_one(checks.next_power(upper)) & (upper > 0) & (lower >= 0)).all())

    @property
    def scale(self) -> Tensor:
        """Return the size ``(B,)`` of the numbers that rounding is relative to."""
        return self.bound if self.size is None else self.size

    def frozen(self) -> Any:
        """Return this operator without the tangents of forward mode."""
        return self if self.mass is None else self._with(mass=self.mass.frozen())

    def _with(self, **changes: Any) -> Any:
        """Return a copy with other attributes."""
        found = copy.copy(self)
        vars(found).update(changes)
        return found

    @cached_property
    def batch_size(self) -> int:
        """Return B; 1 without a batch axis."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @cached_property
    def num_nodes(self) -> int:
        """Return N, the rows of ``matmul``."""
        return self.shape[-1]

    @cached_property
    def all_nodes(self) -> int:
        """Return N, including rows on other ranks."""
        return self.nodes.number_of(self.num_nodes)

    @property
    def active(self) -> Tensor:
        """Return the nodes that take part in the eigenproblem, bool ``(B, N)``."""
        return torch.ones(self.batch_size, self.num_nodes, dtype=torch.bool, device=self.device)

    @cached_property
    def active_count(self) -> Tensor:
        """Return the number of active nodes of each graph, int64 ``(B,)``."""
        return self.nodes.sum(self.active.sum(1))

    @cached_property
    def fewest_active(self) -> int:
        """Return the smallest number of active nodes of a graph of the batch."""
        return self._numbers[0]

    @cached_property
    def _numbers(self) -> list[int]:
        """Return the fewest active nodes and the most null vectors of a graph."""
        return [int(self.active_count.min()), int(self.nullity.max())]

    @property
    def above(self) -> Tensor:
        """Return numbers ``(B,)`` just above the spectrum of each graph, which mark missing pairs."""
        return torch.where(self.bound > 0, 2 * self.bound, 1)

    @property
    def round_off(self) -> Tensor:
        """Return the residual ``(B,)`` of exact unit eigenvectors after rounding in products and Ritz vectors."""
        factor: float = max(40.0, 0.3 * self.all_nodes**0.5)
        return self.scale * (factor * torch.finfo(self.dtype).eps)

    @property
    def nullity(self) -> Tensor:
        """Return the number of known null vectors, int64 ``(B,)``."""
        return torch.zeros(self.batch_size, dtype=torch.int64, device=self.device)

    @cached_property
    def most_null(self) -> int:
        """Return the largest number of known null vectors of a graph of the batch."""
        return self._numbers[1]

    def null_vectors(self, m: int) -> Tensor:
        """Return the first ``m`` of an orthonormal basis of the known null vectors, ``(B, N, m)``; zeros beyond."""
        return self.bound.new_zeros(self.batch_size, self.num_nodes, m)

    def random(self, m: int, seed: int) -> Tensor:
        """Return random columns ``(B, N, m)``, equal in every graph; zero on nodes that are not active."""
        if (noise := self.nodes.noise(m, seed, self.dtype)) is None:
            generator = torch.Generator(self.device).manual_seed(seed)
            # Drawing in float64 takes four times as long, without a gain.
            noise = torch.randn((self.num_nodes, m), device=self.device, generator=generator, dtype=torch.float32)
        return self.active[..., None] * noise.to(self.dtype)

    def items(self) -> Iterator[Operator]:
        """Yield the operator of each graph of a batch."""
        if self.batch_size > 1:
            raise TypeError(
                f"operator must yield its graphs one by one to this solver, got a batch of {name_of(self)}; "
                "use ChebyshevSubspace(), or define items()"
            )
        yield self

    def parts(self, columns: int) -> list[slice]:
        """Return slices of a batch to solve in parallel on torch's threads, with blocks of so many columns."""
        return [slice(0, self.batch_size)]

    def chebyshev(self, x: Tensor, degree: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return T_degree(Ã) X for a block ``(B, N, m)``: the Chebyshev polynomial that grows below ``low``.

        Ã = (2A − high − low) / (high − low) takes [low, high] of each graph, ``(B,)``, to [−1, 1]. Each graph has its
        own degree, int64 ``(B,)`` on the host: the degree that one graph needs would overflow in another.
        """
        # T_{j+1} = 2 Ã T_j − T_{j−1} from T_0 = X and T_1 = Ã X.
        twice = self.twice((high + low) / 2, (high - low) / 2)
        least, most = int(degree.min()), int(degree.max())
        degree = degree.to(x.device, non_blocking=True) if least < most else degree
        previous, current = x.clone() if x.device.type == "cpu" else x, twice(x, None) / 2
        for step in range(1, most):
            new = twice(current, previous)
            if step >= least:
                new = torch.where((degree > step)[:, None, None], new, current)
            previous, current = current, new
        return current

    def twice(self, centre: Tensor, half: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Return 2 Ã Y − Z of Y and Z, None for 0, which it may overwrite on the CPU; Ã = (A − centre) / half."""
        centre, scale = centre[:, None, None], 2 / half[:, None, None]

        def product(y: Tensor, before: Tensor | None) -> Tensor:
            image = self.matmul(y if len(self.shape) > 1 else y[0]).reshape(y.shape)
            image = torch.addcmul(image, y, -centre).mul_(scale)
            return image if before is None else image.sub_(before)

        return product


def allowed_residual(tolerance: float, gap: Any, round_off: Any) -> Any:
    """Return the maximum residual: ``tolerance`` times the gap after the k-th value, 0 if it has none, or round-off."""
    # Tensors `(B,)`, arrays `(B,)` or numbers, of the kind of `gap`. By the theorem of Davis and Kahan the sine of the
    # angle between the computed and the true eigenspace is at most residual / gap. So an absolute tolerance would
    # guarantee nothing where eigenvalues are close together.
    return (torch.maximum if isinstance(gap, Tensor) else np.maximum)(tolerance * gap, round_off)


def name_of(operator: Operator) -> str:
    """Return the name of the class of an operator, as the user gave it."""
    return type(getattr(operator, "inside", operator)).__name__
