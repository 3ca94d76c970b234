"""Gradients at equal and nearly equal eigenvalues: every library that is there against finite differences in 60 digits.

Claim: of losses that have a gradient, ours is exact at equal eigenvalues, where others return NaN, zero or noise.

The matrix is I − D^-½ W D^-½ of a ring and of a hypercube; the variables are the weights of its edges, all 1 but for
one, which is 1 + δ. A loss sees the k smallest eigenvectors by functions that no turn within an eigenspace changes.
Compared are derivatives in three random directions with central differences of the same loss by mpmath.
"""

from __future__ import annotations

import argparse
import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import mpmath
import torch
from torch import Tensor

from benchmarks.record import Record
from experiments.tables import Table, said
from torch_lapeig import Graph, Laplacian, Solve, eigenpairs

DIRECTIONS, DIGITS, HEAT = 3, 60, 4.0
DELTAS = (1e-3, 1e-6, 1e-9, 1e-12, 0.0)
Gradient = Callable[["Problem", Tensor, str], Tensor]


@dataclass(frozen=True)
class Problem:
    """A graph by its edges, each once, and how many eigenvectors are taken."""

    name: str
    nodes: int
    edges: tuple[tuple[int, int], ...]
    k: int

    @property
    def target(self) -> Tensor:
        """Return C of the loss tr(C V f(Λ) Vᵀ), symmetric ``(N, N)``."""
        random = torch.randn(self.nodes, self.nodes, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        return (random + random.mT) / 2

    @property
    def directions(self) -> Tensor:
        """Return directions of the weights, ``(3, E)``."""
        shape = DIRECTIONS, len(self.edges)
        return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def weights(self, delta: float) -> Tensor:
        weight = torch.ones(len(self.edges), dtype=torch.float64)
        weight[0] += delta
        return weight


RING = tuple((i, (i + 1) % 12) for i in range(12))
CUBE = tuple((i, i | 1 << b) for i in range(16) for b in range(4) if not i & 1 << b)
WITHIN = Problem("ring of 12, k = 3", 12, RING, 3), Problem("hypercube of 16, k = 5", 16, CUBE, 5)
CUT = Problem("ring of 12, k = 2", 12, RING, 2)


# The loss in 60 digits ------------------------------------------------------------------------------------------------


def precise_matrix(problem: Problem, weights: list[Any]) -> Any:
    degrees = [mpmath.mpf(0)] * problem.nodes
    for (a, b), weight in zip(problem.edges, weights, strict=True):
        degrees[a] += weight
        degrees[b] += weight
    matrix = mpmath.eye(problem.nodes)
    for (a, b), weight in zip(problem.edges, weights, strict=True):
        matrix[a, b] = matrix[b, a] = -weight / mpmath.sqrt(degrees[a] * degrees[b])
    return matrix


def precise_loss(problem: Problem, weights: list[Any], kind: str) -> Any:
    """Return tr(C V f(Λ) Vᵀ)."""
    values, vectors = mpmath.eigsy(precise_matrix(problem, weights))
    target, terms = mpmath.matrix(problem.target.tolist()), []
    for i in sorted(range(problem.nodes), key=lambda i: values[i])[: problem.k]:
        v = vectors[:, i]
        terms.append((mpmath.exp(-HEAT * values[i]) if kind == "heat" else 1) * (v.T * target * v)[0])
    return mpmath.fsum(terms)


def reference(problem: Problem, delta: float, kind: str) -> Tensor:
    """Return derivatives in the directions, by central differences with a step of 1e-20, ``(3,)``."""
    with mpmath.workdps(DIGITS):
        step = mpmath.mpf(10) ** -20
        weights = [mpmath.mpf(w) for w in problem.weights(delta).tolist()]
        slopes = []
        for direction in problem.directions.tolist():
            ends = [
                precise_loss(problem, [w + sign * step * d for w, d in zip(weights, direction, strict=True)], kind)
                for sign in (1, -1)
            ]
            slopes.append(float((ends[0] - ends[1]) / (2 * step)))
    return torch.tensor(slopes, dtype=torch.float64)


# The libraries --------------------------------------------------------------------------------------------------------


def affinity(problem: Problem, weight: Tensor) -> Tensor:
    row, col = torch.tensor(problem.edges).T
    half = torch.zeros(problem.nodes, problem.nodes, dtype=weight.dtype).index_put((row, col), weight)
    return half + half.mT


def symmetric(problem: Problem, weight: Tensor) -> Tensor:
    """Return I − D^-½ W D^-½, dense."""
    w = affinity(problem, weight)
    scale = w.sum(1).rsqrt()
    return torch.eye(problem.nodes, dtype=weight.dtype) - scale[:, None] * w * scale


def torch_loss(problem: Problem, values: Tensor, vectors: Tensor, kind: str) -> Tensor:
    weighted = vectors * (-HEAT * values).exp() if kind == "heat" else vectors
    return (problem.target * (weighted @ vectors.mT)).sum()


def of_loss(loss: Gradient) -> Gradient:
    """Return the gradient of a loss that torch differentiates."""

    def gradient(problem: Problem, weight: Tensor, kind: str) -> Tensor:
        leaf = weight.clone().requires_grad_()
        return torch.autograd.grad(loss(problem, leaf, kind), leaf)[0]

    return gradient


def of_matrix(solve: Callable[[Tensor, int], tuple[Tensor, Tensor]]) -> Gradient:
    """Return the gradient by a function from a dense matrix and k to the k smallest values and vectors."""

    return of_loss(lambda problem, leaf, kind: torch_loss(problem, *solve(symmetric(problem, leaf), problem.k), kind))


def ours(**options: Any) -> Gradient:
    """Return the gradient by `eigenpairs` of the graph; functions of values go through ``projected``."""

    def loss(problem: Problem, leaf: Tensor, kind: str) -> Tensor:
        edges = torch.tensor(problem.edges).T
        graph = Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), torch.cat([leaf, leaf]), problem.nodes)
        pairs = eigenpairs(Laplacian(graph), problem.k, Solve(**options))
        inner = torch.matrix_exp(-HEAT * pairs.projected) if kind == "heat" else torch.eye(problem.k).double()
        return (problem.target * (pairs.vectors @ inner @ pairs.vectors.mT)).sum()

    return of_loss(loss)


def by_eigh(matrix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return values[:k], vectors[:, :k]


def by_torch_lobpcg(matrix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    values, vectors = torch.lobpcg(matrix, k, largest=False, tol=1e-14, niter=1000)
    return values, vectors


def by_xitorch() -> Gradient:
    import xitorch
    from xitorch.linalg import symeig

    return of_matrix(lambda matrix, k: symeig(xitorch.LinearOperator.m(matrix, is_hermitian=True), neig=k))


def by_torch_sla() -> Gradient:
    from torch_sla import SparseTensor

    return of_matrix(lambda matrix, k: SparseTensor.from_dense(matrix).eigsh(k, which="SA"))


def by_ncut(exact: bool) -> Gradient:
    """Return the gradient by ncut_pytorch, which takes points and returns large values of D^-½ W D^-½."""
    from ncut_pytorch import ncut_fn

    def loss(problem: Problem, leaf: Tensor, kind: str) -> Tensor:
        w = affinity(problem, leaf)
        torch.manual_seed(0)
        options = {"sigma": 1.0, "no_propagation": True, "affinity_diag_eps": 0.0, "device": "cpu"}
        options |= {"affinity_fn": lambda *_, **__: w, "exact_gradient": exact}
        vectors, values, *_ = ncut_fn(torch.zeros(problem.nodes, 1).double(), problem.k, **options)
        return torch_loss(problem, 1 - values, vectors, kind)

    return of_loss(loss)


def by_jax() -> Gradient:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp

    def gradient(problem: Problem, weight: Tensor, kind: str) -> Tensor:
        row, col = jnp.asarray(problem.edges).T
        target = jnp.asarray(problem.target.numpy())

        def loss(leaf: Any) -> Any:
            half = jnp.zeros((problem.nodes, problem.nodes)).at[row, col].set(leaf)
            w = half + half.T
            scale = w.sum(1) ** -0.5
            values, vectors = jnp.linalg.eigh(jnp.eye(problem.nodes) - scale[:, None] * w * scale)
            values, vectors = values[: problem.k], vectors[:, : problem.k]
            weighted = vectors * jnp.exp(-HEAT * values) if kind == "heat" else vectors
            return (target * (weighted @ vectors.T)).sum()

        return torch.tensor(jax.grad(loss)(jnp.asarray(weight.numpy())).tolist(), dtype=torch.float64)

    return gradient


MAKERS: dict[str, tuple[str, Callable[[], Gradient]]] = {
    "torch_lapeig": ("torch_lapeig", ours),
    "torch_lapeig, cluster_width=1e-6": ("torch_lapeig", lambda: ours(cluster_width=1e-6)),
    "torch.linalg.eigh": ("torch", lambda: of_matrix(by_eigh)),
    "torch.lobpcg": ("torch", lambda: of_matrix(by_torch_lobpcg)),
    "JAX eigh": ("jax", by_jax),
    "xitorch symeig": ("xitorch", by_xitorch),
    "torch-sla eigsh": ("torch_sla", by_torch_sla),
    "ncut_pytorch": ("ncut_pytorch", lambda: by_ncut(False)),
    "ncut_pytorch, exact_gradient": ("ncut_pytorch", lambda: by_ncut(True)),
}


def candidates(record: Record) -> Iterator[tuple[str, Gradient]]:
    """Return the candidates that can be imported; the record names the others."""
    missing = []
    for name, (package, make) in MAKERS.items():
        try:
            importlib.import_module(package)
            yield name, make()
        except ImportError:
            missing.append(name)
    if missing:
        record.show(f"Not installed, and so not run: {', '.join(missing)}.")


# The comparison -------------------------------------------------------------------------------------------------------


def outcome(gradient: Gradient, problem: Problem, delta: float, kind: str, truth: Tensor | None) -> tuple[str, float]:
    """Return the cell of the table, and the relative error, NaN without one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = gradient(problem, problem.weights(delta), kind)
        except Exception as refusal:  # a peer may refuse in its own way: that is what is recorded
            return type(refusal).__name__, math.nan
    if not found.isfinite().all():
        return "NaN or inf", math.nan
    if truth is None:
        warned = [w for w in caught if "gradient" in str(w.message) or "degenera" in str(w.message).lower()]
        return ("a warning" if warned else "silent") + f", norm {found.norm():.0e}", math.nan
    if not found.any():
        return "all zero", 1.0
    error = float((problem.directions @ found - truth).norm() / truth.norm())
    return said(error, ".0e"), error


def compared(
    title: str, problems: tuple[Problem, ...], kind: str, deltas: tuple[float, ...], gradients: dict[str, Gradient]
) -> tuple[Table, dict[str, list[float]]]:
    """Return a row a case, a column a library; and the errors."""
    table = Table(title, {"": "", **dict.fromkeys(gradients, "")})
    errors: dict[str, list[float]] = {name: [] for name in gradients}
    for problem in problems:
        for delta in deltas:
            truth = reference(problem, delta, kind)
            found = {name: outcome(g, problem, delta, kind, truth) for name, g in gradients.items()}
            case = f"δ = {delta:.0e}" if delta else "equal"
            table.add(f"{problem.name}, {case}", *(text for text, _ in found.values()))
            for name, (_, error) in found.items():
                errors[name].append(error)
    return table, errors


def summary(gradients: dict[str, Gradient], errors: list[dict[str, list[float]]]) -> Table:
    """Return for each library its version, the number of failures and errors, and the largest error."""
    names = ("", "version", "cases", "NaN, inf or an error", "off by more than 1 %", "largest error")
    table = Table("All cases in which a gradient exists", dict.fromkeys(names, ""))
    for name in gradients:
        package = {"torch_sla": "torch-sla", "ncut_pytorch": "ncut-pytorch"}.get(MAKERS[name][0], MAKERS[name][0])
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "–"
        row = [error for part in errors for error in part[name]]
        finite = [error for error in row if not math.isnan(error)]
        wrong = sum(error > 0.01 for error in finite)
        largest = said(max(finite), ".0e") if finite else "–"
        table.add(name, version, str(len(row)), str(len(row) - len(finite)), str(wrong), largest)
    return table


def run(record: Record, options: argparse.Namespace) -> None:
    gradients = dict(candidates(record))
    deltas = (1e-6, 0.0) if options.quick else DELTAS
    near = tuple(delta for delta in deltas if delta)
    titles = {
        "projector": "Relative error, projector tr(C V Vᵀ), equal eigenvalues within the k",
        "heat": "Relative error, heat kernel tr(C V exp(−4Λ) Vᵀ), equal eigenvalues within the k",
    }
    parts = [compared(title, WITHIN, kind, deltas, gradients) for kind, title in titles.items()]
    cut = "Relative error, projector, the cut between k and k + 1 goes through eigenvalues about δ apart"
    parts.append(compared(cut, (CUT,), "projector", near, gradients))
    record.show(summary(gradients, [errors for _, errors in parts]), *(table for table, _ in parts))
    none = Table("The cut goes through equal eigenvalues: no gradient exists. What is said?", {"": "", "answer": ""})
    for name, gradient in gradients.items():
        none.add(name, outcome(gradient, CUT, 0.0, "projector", None)[0])
    record.show(none)
