"""Functions φ(A) = V φ(Λ) Vᴴ of a Laplacian by its smallest eigenpairs: filters of signals, signatures of nodes.

They depend neither on signs or phases of the vectors nor on the basis of an eigenspace. The derivative (Daleckii and
Krein) has (φ(λ_i) − φ(λ_j)) / (λ_i − λ_j) between distinct eigenvalues, which the rule of eigenvectors yields, and
φ′(λ) between equal ones: there Λ is a matrix, diag(λ) + E, where E is zero but has derivatives, and
φ(Λ) = diag φ(λ) + ½ (φ′(λ_i) + φ′(λ_j)) ∘ E + ¼ (φ″(λ_i) + φ″(λ_j)) ∘ E² + … is exact to second order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torch_lapeig.eigen.gradient.matrix_functions import Expansion, expanded
from torch_lapeig.eigen.solve import Eigenpairs
from torch_lapeig.support import checks, precision
from torch_lapeig.support.kinds import refuse

Response = Callable[[Tensor], Tensor]


@precision.full_precision
def expansion(pairs: Eigenpairs, phi: Response, *consumers: type) -> Expansion:
    """Return φ(Λ) of eigenpairs for a consumer; see `spectral_function`."""
    check_pairs(pairs, *consumers)
    return expanded(pairs.projected, pairs.values.isfinite(), lambda at: response_to(phi, at))


def check_pairs(pairs: Any, *consumers: str | type) -> None:
    """Raise TypeError for anything but `Eigenpairs`, or the error of a kind that consumers refuse."""
    checks.check_instance(pairs, "pairs", Eigenpairs, "the result of eigenpairs(laplacian, k)")
    refuse(*consumers, pairs=pairs)


def response_to(phi: Response, at: Tensor) -> Tensor:
    """Return φ of eigenvalues ``(n, 1)``, ``(n, m)``, checked."""
    checks.check_function(phi, "phi", "a function of eigenvalues (n, 1), such as HeatResponse([1.0])")
    try:
        value = phi(at.clone())  # which it may change
    except RuntimeError as error:
        dtypes = {p.dtype for p in phi.parameters()} if isinstance(phi, nn.Module) else set()
        if dtypes <= {at.dtype}:
            raise
        raise TypeError(f"phi must be of the pairs' dtype, got {dtypes}; use phi.to({at.dtype})") from error
    checks.check_instance(value, "the result of phi", Tensor, "a tensor")
    if value.dtype != at.dtype:
        way = ".real" if value.is_complex() else f".to({at.dtype})"
        raise TypeError(f"phi must return the pairs' dtype, got {value.dtype}; use lambda v: phi(v){way}")
    if value.ndim != 2 or len(value) != len(at) or value.shape[1] == 0:
        raise ValueError(f"phi must return shape (n, m) for eigenvalues {tuple(at.shape)}, got {tuple(value.shape)}")
    checks.check_finite(value, "the result of phi", "take a phi that is finite at every eigenvalue, 0 too")
    return value


@precision.full_precision
def spectral_function(pairs: Eigenpairs, phi: Response) -> Tensor:
    """Return φ(Λ) as matrices, whose first and second derivatives are exact at equal eigenvalues.

    `SpectralFilter` and `spectral_signature` compute products with V φ(Λ) Vᴴ and its diagonal in less memory.

    Args:
        pairs: of `eigenpairs`; rows and columns of missing pairs (``fill=True``) are zero.
        phi: function of one eigenvalue, a module or any other: gets n of them as ``(n, 1)`` and returns m responses
            ``(n, m)``, in the dtype of the pairs. Gradients flow to its parameters.

    Returns: ``(m, k, k)`` or ``(B, m, k, k)``, of the dtype of the vectors: Hermitian for complex pairs.

    >>> from torch_lapeig import Graph, Laplacian, eigenpairs
    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> spectral_function(eigenpairs(Laplacian(path), 3), torch.exp)[0].diagonal()
    tensor([1.0000, 2.7183, 7.3891])
    """
    found = expansion(pairs, phi)
    k = found.values.shape[-2]
    one = torch.eye(k, dtype=pairs.vectors.dtype, device=found.values.device)
    return found.bank(one.expand(*found.values.shape[:-2], k, k)).movedim(-1, -3)


@precision.full_precision
def spectral_signature(pairs: Eigenpairs, phi: Response, *, normalize: bool = False) -> Tensor:
    """Return the diagonals of V φ_m(Λ) Vᴴ: features of nodes that depend neither on signs nor on bases.

    Heat kernel signatures with `HeatResponse` (Sun, Ovsjanikov & Guibas 2009); wave kernel signatures with
    `WaveResponse` and ``normalize=True`` (Aubry, Schlickewei & Cremers 2011).

    Args:
        pairs, phi: see `spectral_function`.
        normalize: divide by the traces Σ_l φ_m(λ_l) of each graph; zeros if a trace is zero.

    Returns: ``(N, m)`` or ``(B, N, m)``, real for complex pairs, too; rows of padding and of isolated nodes are zero.
    If the rows of the pairs lie on several ranks: this rank's rows.

    >>> from torch_lapeig import Graph, Laplacian, eigenpairs
    >>> path = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> pairs = eigenpairs(Laplacian(path, "unnormalized"), 3)
    >>> spectral_signature(pairs, HeatResponse([0.1, 1.0]))
    tensor([[0.9092, 0.5256],
            [0.8272, 0.3665],
            [0.9092, 0.5256]])
    """
    found = expansion(pairs, phi)
    signature = found.at_nodes(pairs.vectors)
    if not checks.check_flag(normalize, "normalize"):
        return signature
    trace = found.at_nodes(torch.eye(pairs.values.shape[-1]).to(pairs.vectors)).sum(-2, keepdim=True)
    return torch.where(trace == 0, 0, signature / torch.where(trace == 0, 1, trace))


class SpectralFilter(nn.Module):
    """Filter V φ(Λ) Vᴴ x of signals on the nodes of a graph, with a learnable φ.

    The filter removes the part outside the span of the k vectors. Gradients flow to x, φ and the weights of the graph.
    For generalised vectors with Yᵀ M Y = I, Y φ(Λ) Yᵀ is a kernel with respect to the mass M, and φ(M⁻¹ L) x is the
    filter of M x: with ``"random_walk"``, of ``laplacian.degrees[..., None] * x``.

    Args:
        phi: response to eigenvalues, see `spectral_function`: `HeatResponse`, `PolynomialResponse`, `WaveletResponse`,
            ``nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, m))``, or any function.
        bank: apply every response to every column. Otherwise response c belongs to column c, and a single response to
            all columns.

    >>> from torch_lapeig import KNN, Laplacian, eigenpairs
    >>> points = torch.rand(100, 3, generator=torch.Generator().manual_seed(0))
    >>> pairs = eigenpairs(Laplacian(KNN(8)(points)), 20)
    >>> SpectralFilter(HeatResponse([0.5, 2.0], learnable=True), bank=True)(
    ...     pairs, points
    ... ).shape
    torch.Size([100, 6])
    """

    def __init__(self, phi: Response, *, bank: bool = False) -> None:
        super().__init__()
        checks.check_function(phi, "phi", "a function of eigenvalues (n, 1), such as HeatResponse([1.0])")
        self.phi = phi
        self.bank = checks.check_flag(bank, "bank")

    @precision.full_precision
    def forward(self, pairs: Eigenpairs, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Return the filtered signals, ``(..., N, C)``, or ``(..., N, C·m)`` of a bank, column by column.

        Args:
            pairs: of `eigenpairs`, with vectors ``(N, k)`` or ``(B, N, k)``; or of a `MagneticLaplacian`.
            x: signals ``(N, C)`` or ``(B, N, C)``, real or complex in the precision of the pairs, or in half precision.
                The result is complex if the signals or the vectors are; otherwise it has the dtype of the signals.
            mask: bool ``(N,)`` or ``(B, N)``, False for padding, whose rows may hold anything and come out as zeros.
        """
        found, v = expansion(pairs, self.phi, type(self)), pairs.vectors
        count = found.values.shape[-1]
        checks.check_tensor(x, "x")
        if x.shape[:-1] != v.shape[:-1]:
            raise ValueError(f"x must have shape {(*v.shape[:-1], 'C')} to go with the pairs, got {tuple(x.shape)}")
        if not self.bank and count not in (1, x.shape[-1]):
            raise ValueError(f"phi must return 1 or {x.shape[-1]} responses, as x columns, got {count}; or bank=True")
        real = pairs.values.dtype
        if x.dtype not in (real, real.to_complex(), *checks.HALVES):
            way_out = real.to_complex() if x.is_complex() else real
            raise TypeError(f"x must have the dtype of the pairs, or be complex, got {x.dtype}; use x.to({way_out})")
        checks.check_same_device(x, "x", v, "the pairs")
        dtype = torch.promote_types(v.dtype, x.dtype if x.is_complex() else real)
        signal, v = x.to(dtype), v.to(dtype)
        if mask is not None:
            checks.check_mask(mask, x)
            signal = torch.where(mask[..., None], signal, 0)
        z = precision.matmul(v.mH, signal)
        filtered = precision.matmul(v, found.bank(z).flatten(-2) if self.bank else found.applied(z))
        return filtered if dtype.is_complex else filtered.to(x.dtype)


class HeatResponse(nn.Module):
    """Heat kernel exp(−t λ), one response for each time.

    ``times`` are a list of t, positive; ``learnable`` makes their logarithms parameters.

    >>> HeatResponse([1.0, 2.0])(torch.tensor([[1.0]]))
    tensor([[0.3679, 0.1353]])
    """

    def __init__(self, times: Sequence[float], *, learnable: bool = False) -> None:
        super().__init__()
        numbers = [checks.check_positive(t, "times") for t in _listed(times, "times")]
        dtype = torch.get_default_dtype() if checks.check_flag(learnable, "learnable") else torch.float64
        self.log_times = nn.Parameter(torch.tensor(numbers, dtype=torch.float64).log().to(dtype), learnable)

    def forward(self, values: Tensor) -> Tensor:
        """Return the responses ``(n, m)`` to eigenvalues ``(n, 1)``."""
        return torch.exp(-self.log_times.to(values).exp() * values)


class PolynomialResponse(nn.Module):
    """Polynomials Σ_j c_j T_j(2 λ / bound − 1) of Chebyshev with learnable coefficients, which begin as the constant 1.

    Args:
        order: highest power, at least 0. channels: number of polynomials m.
        bound: largest eigenvalue expected, 2 for the normalised Laplacians.

    >>> PolynomialResponse(3)(torch.tensor([[0.0], [1.0]])).tolist()
    [[1.0], [1.0]]
    """

    def __init__(self, order: int, channels: int = 1, *, bound: float = 2.0) -> None:
        super().__init__()
        shape = checks.check_count(order, "order", 0) + 1, checks.check_width(channels, "channels")
        self.bound = checks.check_positive(bound, "bound")
        self.coefficients = nn.Parameter(torch.eye(shape[0], 1).repeat(1, shape[1]))

    def forward(self, values: Tensor) -> Tensor:
        """Return the responses ``(n, m)`` to eigenvalues ``(n, 1)``."""
        at = 2 * values / self.bound - 1
        terms = [torch.ones_like(at), at]
        for _ in self.coefficients[2:]:
            terms.append(2 * at * terms[-1] - terms[-2])
        return precision.matmul(torch.cat(terms[: len(self.coefficients)], 1), self.coefficients.to(values))


@dataclass(frozen=True)
class WaveResponse:
    """Band-pass exp(−(e − ln λ)² / 2σ²), 0 at λ = 0, one response for each energy e (Aubry et al. 2011).

    The paper takes 100 energies from ln λ_1 + 2σ to ln λ_k − 2σ, and for σ seven times their distance.

    ``energies`` are a list of e, ``sigma`` is σ, positive.

    >>> WaveResponse([0.0], 1.0)(torch.tensor([[0.0], [1.0]])).tolist()
    [[0.0], [1.0]]
    """

    energies: Sequence[float]
    sigma: float

    def __post_init__(self) -> None:
        energies = tuple(checks.check_number(e, "energies") for e in _listed(self.energies, "energies"))
        checks.set_frozen(self, energies=energies, sigma=checks.check_positive(self.sigma, "sigma"))

    def __call__(self, values: Tensor) -> Tensor:
        """Return the responses ``(n, m)`` to eigenvalues ``(n, 1)``."""
        positive = values > torch.finfo(values.dtype).tiny  # below, all derivatives vanish
        distance = torch.tensor(self.energies, dtype=torch.float64).to(values) - torch.where(positive, values, 1).log()
        return torch.where(positive, torch.exp(-(distance / self.sigma).square() / 2), 0)


@dataclass(frozen=True)
class WaveletResponse:
    """Diffusion wavelets (Coifman & Maggioni 2006): dyadic differences of powers of the lazy walk p = 1 − λ / bound.

    The responses are 1 − p, p − p², p² − p⁴, …, up to p^(2^levels), and last the low-pass p^(2^levels): levels + 2 of
    them, whose sum is 1.

    Args:
        levels: from 0 to 30. bound: largest eigenvalue, 2 for the normalised Laplacians, where p are the eigenvalues
            of (I + D⁻¹ W) / 2.

    >>> WaveletResponse(1)(torch.tensor([[1.0]]))
    tensor([[0.5000, 0.2500, 0.2500]])
    """

    levels: int
    bound: float = 2.0

    def __post_init__(self) -> None:
        levels = checks.check_count(self.levels, "levels", 0, 30)
        checks.set_frozen(self, levels=levels, bound=checks.check_positive(self.bound, "bound"))

    def __call__(self, values: Tensor) -> Tensor:
        """Return the responses ``(n, levels + 2)`` to eigenvalues ``(n, 1)``."""
        if (largest := values.detach().amax()) > self.bound * (1 + 1e-5):
            raise ValueError(f"bound must be at least the largest eigenvalue, {largest:.6g}, got {self.bound}")
        powers = [torch.ones_like(values), 1 - values / self.bound]
        for _ in range(self.levels):
            powers.append(powers[-1].square())
        return torch.cat([*(a - b for a, b in pairwise(powers)), powers[-1]], 1)


def _listed(values: Sequence[float], name: str) -> list[float]:
    numbers = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(numbers, (list, tuple)) or not numbers:
        raise TypeError(f"{name} must be a list of at least one number, got {checks.describe(values)}")
    return list(numbers)
