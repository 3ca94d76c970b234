"""Matrices that are known by a function only: Hessians, kernels by products, lazy tensors, with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lapeig.eigen.operator import Operator
from torch_lapeig.graph.pattern import checked_shape
from torch_lapeig.support import checks, precision
from torch_lapeig.support.cached import check_unchanged, make_usable, usable

UNSET: Any = None  # marks a field to compute from the others
LANCZOS_STEPS = 10  # products by which the ends of a spectrum are estimated; twenty give no closer bounds


@dataclass(frozen=True, eq=False)
class FunctionOperator(Operator):
    """Operator of a function that multiplies blocks by a symmetric matrix A(θ), with gradients to tensors θ.

    The matrix may be indefinite: without a ``bound``, 20 steps of Lanczos bound both ends of the spectrum (Zhou & Li,
    *Bounding the spectrum of large Hermitian matrices*, Linear Algebra and its Applications 2011), the solvers see
    A + c I, and `eigenpairs` returns eigenvalues of A. Gradients come from torch's derivatives of the function; second
    derivatives and forward mode need its second derivatives.

    Args:
        function: called with a block Y ``(N, m)``, ``(B, N, m)`` for a batch, and the parameters; returns A(θ) Y of the
            shape and dtype of Y. It must be linear in Y and symmetric for every θ. It may overwrite Y, which is a copy.
        shape: ``N``, ``(N,)`` or ``(B, N)``.
        parameters: the tensors θ to which gradients flow.
        bound: upper bound of the spectrum of each graph, a number or ``(B,)``, if A is positive semidefinite; default:
            both ends are estimated.
        dtype, device: of the matrix; default: those of the first parameter, else float64 on the processor.
        seed: of the random columns of tests and estimate.

    Raises: TypeError, ValueError: a result of another dtype or shape, complex, or with NaN; a function that is not
    symmetric, or depends on a tensor with gradients that is not its argument; an eigenvalue outside [0, bound].

    >>> from torch_lapeig import eigenpairs
    >>> stiffness = torch.arange(1.0, 51.0, dtype=torch.float64, requires_grad=True)
    >>> operator = FunctionOperator(lambda y, s: s[:, None] * y, 50, [stiffness])
    >>> pairs = eigenpairs(operator, 2)
    >>> pairs.values.detach().round(decimals=6)
    tensor([1., 2.], dtype=torch.float64)
    >>> pairs.values.sum().backward()
    >>> stiffness.grad[:4].round(decimals=6).abs()
    tensor([1., 1., 0., 0.], dtype=torch.float64)
    """

    function: Callable[..., Tensor]
    shape: Any
    parameters: Any = ()
    bound: Any = UNSET
    dtype: torch.dtype = UNSET
    device: torch.device = UNSET
    seed: InitVar[int] = 0
    lower: Tensor = field(init=False, repr=False, default=UNSET)

    @precision.full_precision
    def __post_init__(self, seed: int) -> None:
        checks.check_function(self.function, "function", "a function that multiplies a block of columns")
        shape, given = checked_shape((self.shape,) if isinstance(self.shape, int) else self.shape), self.parameters
        if isinstance(given, Tensor) or not isinstance(given, Iterable):
            raise TypeError(f"parameters must be several tensors, got {checks.describe(given)}; use (tensor,)")
        for i, tensor in enumerate(given := tuple(given)):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                got = tensor.dtype if isinstance(tensor, Tensor) else checks.describe(tensor)
                raise TypeError(f"parameters[{i}] must be a real floating-point tensor, got {got}")
        checks.set_frozen(self, shape=shape, parameters=tuple(map(usable, given)))
        if math.prod(self.shape) == 0:
            raise ValueError(f"shape must be of at least one graph with a node, got {self.shape}")
        first = self.parameters[0] if self.parameters else None
        name = "dtype" if self.dtype or first is None else "parameters[0]"
        dtype = self.dtype or (torch.float64 if first is None else first.dtype)
        device = torch.device(self.device or ("cpu" if first is None else first.device))
        checks.set_frozen(self, dtype=dtype, device=device)
        self.check()
        checks.check_dtype(dtype, name)
        unit = self._probe(checks.check_seed(seed))
        with torch.no_grad():
            self._set_bound(ends_of_spectrum(self, seed, unit))
        make_usable(self)

    def ends(self, *, close: bool = True) -> tuple[Tensor, Tensor]:
        """Return bounds of the spectrum; see `Operator.ends`."""
        return self.lower, self.bound

    def _probe(self, seed: int) -> Tensor:
        """Check the result for random columns (shape, dtype, NaN, symmetry, what it depends on); return its size."""
        x, y = self.random(8, seed).chunk(2, 2)
        given = x if len(self.shape) > 1 else x[0]
        with torch.enable_grad():
            found = self.function(given.clone(), *map(checks.primal, self.parameters))
        if not isinstance(found, Tensor) or found.dtype != self.dtype:
            arrived = found.dtype if isinstance(found, Tensor) else type(found).__name__
            raise TypeError(f"function must return real numbers of {self.dtype} for a block of them, got {arrived}")
        if found.shape != given.shape:
            raise ValueError(f"function must return the shape {tuple(given.shape)}, got {tuple(found.shape)}")
        if found.requires_grad or checks.is_dual(found):
            raise ValueError(
                "function closes over a tensor that requires gradients: pass it in parameters=, as an argument of "
                "function, or use its .detach()"
            )
        with torch.no_grad():
            image, other = found.detach().reshape(x.shape), self.matmul(y)
            for part in (image, other):
                checks.check_finite(part, "the result of function", "check the function and its parameters")
            unit = checks.power_of_two(image, (1, 2))  # squares must neither overflow nor vanish
            image, other = image / unit, other / unit
            size = torch.maximum(self.nodes.dots(image, image), self.nodes.dots(other, other)).sqrt()
            skew = (self.nodes.dots(x, other) - self.nodes.dots(image, y)).abs()
            if (skew > 10 * torch.finfo(self.dtype).eps ** 0.5 * size).any():
                share = float((skew / size).nan_to_num().max())
                raise ValueError(
                    f"function must be a symmetric linear map, got <x, A y> and <A x, y> that differ by {share:.1e} of "
                    "‖A y‖; check it, or use the mean of it and its transpose"
                )
        return unit

    def _set_bound(self, ends: Ends) -> None:
        if self.bound is UNSET:
            return checks.set_frozen(self, lower=ends.lower.clamp_max(0), bound=ends.upper)
        given = self.bound if isinstance(self.bound, Tensor) else checks.check_number(self.bound, "bound", 0)
        bound = torch.as_tensor(given, dtype=self.dtype, device=self.device).detach()
        if bound.shape not in ((), ends.largest.shape) or not (bound.isfinite() & (bound >= 0)).all():
            raise ValueError(f"bound must be a finite number ≥ 0 or {tuple(ends.largest.shape)}, got {self.bound}")
        checks.set_frozen(self, bound=bound.expand(ends.largest.shape), lower=torch.zeros_like(ends.lower))
        slack = self.bound * torch.finfo(self.dtype).eps ** 0.5
        if (ends.least < -slack).any() or (ends.largest > self.bound + slack).any():
            raise ValueError(
                f"function must have its eigenvalues in [0, bound], got values of {float(ends.least.min()):.3g} to "
                f"{float(ends.largest.max()):.3g} with a bound of {float(self.bound.max()):.3g}; leave bound out, and "
                "both ends are estimated"
            )

    def check(self) -> None:
        """Raise ValueError if parameters have changed in place since bound and shift were estimated."""
        check_unchanged(self, "parameters have", *self.parameters)

    def matmul_at(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        """Return A(θ) Y; see `Operator.matmul_at`."""
        batched = y.reshape(self.batch_size, self.num_nodes, -1)
        block = (batched if len(self.shape) > 1 else batched[0]).clone()  # which the function may change
        return self.function(block, *parameters).reshape(y.shape)


class Ends(NamedTuple):
    """Ends of spectra, ``(B,)``: safe bounds, and the least and largest Ritz values, which lie inside."""

    lower: Tensor
    least: Tensor
    largest: Tensor
    upper: Tensor


def ends_of_spectrum(operator: Operator, seed: int, unit: Tensor) -> Ends:
    """Return the ends by Lanczos steps: Ritz values and the norm of the last residual."""
    # Without whole orthogonalisation the Ritz values stay inside the spectrum (Paige 1980). `unit` `(B, 1, 1)` is the
    # size of a product, by which squares neither overflow nor vanish.
    q = operator.random(1, seed)
    info, steps, dots = torch.finfo(operator.dtype), min(LANCZOS_STEPS, operator.num_nodes), operator.nodes.dots
    q = q / dots(q, q).sqrt()[:, None]
    before, beta, numbers, size = torch.zeros_like(q), 0 * unit, [], 0 * unit
    for _ in range(steps):
        image = operator.matmul(q) / unit - beta * before
        alpha = dots(q, image)[:, None]
        image = image - alpha * q
        beta = dots(image, image).sqrt()[:, None]
        size = torch.maximum(size, alpha.abs())
        # A residual of round-off ends the space: its further vectors are zero, which add Ritz values of 0.
        beta = torch.where(beta <= info.eps * operator.num_nodes * size + info.tiny, 0, beta)
        before, q = q, image / torch.where(beta > 0, beta, torch.inf)
        numbers += [alpha[..., 0], beta[..., 0]]
    diagonal, beside = torch.cat(numbers, 1).unflatten(1, (-1, 2)).unbind(2)
    # Only the lower triangle is read.
    values = torch.linalg.eigvalsh(torch.diag_embed(diagonal) + torch.diag_embed(beside[:, :-1], -1))
    rest = beside[:, -1] + 8 * info.eps * values.abs().amax(1)
    ends = Ends(values[:, 0] - rest, values[:, 0], values[:, -1], values[:, -1] + rest)
    return Ends(*(end * unit[:, 0, 0] for end in ends))
