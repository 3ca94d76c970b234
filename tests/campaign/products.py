"""Operators known by products: indefinite functions of random graphs, and cosine similarities of random rows.

Both are judged against LAPACK on their dense matrices: values within the reported residual and round-off, and the
gradient of a heat kernel against the closed form of the derivative of a matrix function (`functions`), where the gap
leaves it digits. Many eigenvalues are equal. An answer that is not converged must have been warned of.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tests.campaign import families
from tests.campaign.functions import Function, Spectral
from tests.campaign.outcomes import Case, Finding, Outcome, may_be_off, watched
from tests.campaign.reference import reference
from torch_lapeig import ConvergenceWarning, Eigenpairs, eigenpairs
from torch_lapeig.eigen import FactoredCosine, FunctionOperator

Rng = np.random.Generator
CLEAR = 1e-5  # gap over the bound, from which on a gradient is judged
ACCURACY = 1e-4  # of a gradient


class Products:
    """Eigenpairs and gradients of a function with two parameters, or of rows."""

    name, share = "products", 0.1

    def __init__(self, most: int = 150) -> None:
        self.most = most

    def draw(self, rng: Rng) -> Iterator[Case]:
        """Yield a function of a random graph, and rows in both storages."""
        family, edges = families.draw(rng, families.size(rng, 2, self.most))
        if edges.nodes <= 2 * self.most:
            matrix = torch.from_numpy(reference(edges, "unnormalized").matrix)
            unit = matrix.abs().amax()
            other = torch.from_numpy(rng.standard_normal(matrix.shape))
            shift = float(rng.uniform(-1, 3)) * unit * torch.eye(len(matrix))
            parts = torch.stack([matrix - shift, matrix @ matrix / unit, unit * (other + other.mT) / len(matrix)])
            if rng.random() < 0.2:  # one eigenvalue far above the others
                far = torch.from_numpy(rng.standard_normal(len(matrix)))
                parts[0] += 10 ** rng.uniform(1, 16) * unit * torch.outer(far, far) / len(matrix)
            parts = parts * float(10 ** rng.uniform(-12, 12)) / unit
            yield self._case(rng, family, "function", len(matrix), parts=parts)
        x, kind = rows(rng, families.size(rng, 4, self.most))
        for storage in ("dense", "sparse"):
            yield self._case(rng, kind, storage, len(x), parts=x, loops=bool(rng.random() < 0.5))

    def _case(self, rng: Rng, family: str, kind: str, n: int, **rest: object) -> Case:
        k, time_of_heat = int(rng.integers(1, min(12, n) + 1)), float(rng.uniform(0.3, 3))
        return {"family": family, "kind": kind, "k": k, "time": time_of_heat, "seed": int(rng.integers(2**31)), **rest}

    def check(self, case: Case) -> Outcome:
        found, pairs, gradient = list[Finding](), None, None
        given = case["parts"].new_zeros(2) if case["kind"] == "function" else case["parts"].clone()
        given.requires_grad_()
        matrix = dense(case, given)
        spectrum = torch.linalg.eigvalsh(matrix.detach())
        bound = float(spectrum.abs().max()) or 1.0
        loss = Function("heat", case["time"] / bound, case["k"], "symmetric", case["seed"])
        with watched(found) as caught:
            pairs, gradient = _derived(case, given, loss)
        if pairs is not None and gradient is not None:
            is_warned = any(issubclass(w.category, ConvergenceWarning) for w in caught)
            found += _judged(pairs, spectrum, bound, case["k"], is_warned)
            # Where a warning has come, the gradient may be undefined.
            if not found and not may_be_off(caught):
                found += _of_gradient(case, given, matrix, spectrum / bound, loss, gradient)
        unconverged = pairs is not None and not bool(pairs.converged | ~pairs.resolved)
        return Outcome(f"default {case['kind']}", case["family"], found, unconverged)


def _of_gradient(
    case: Case, given: Tensor, matrix: Tensor, spectrum: Tensor, loss: Function, gradient: Tensor
) -> list[Finding]:
    """Return a finding where a gradient is wrong; ``spectrum`` is over the bound."""
    active = torch.ones(len(matrix), dtype=torch.bool)
    (exact,) = torch.autograd.grad(loss.loss(Spectral.apply(matrix, active, loss)), given)
    exact = exact * (case["parts"] != 0) if case["kind"] == "sparse" else exact
    gap = float(spectrum.diff()[loss.k - 1]) if loss.k < len(spectrum) else 1.0
    error, size = float((gradient - exact).norm()), float(exact.norm())
    if gap <= CLEAR or error <= ACCURACY * size + 1e-9 / gap:
        return []
    return [Finding("wrong gradient", f"off by {error:.1e} of {size:.1e}, gap {gap:.1e}")]


def rows(rng: Rng, n: int) -> tuple[Tensor, str]:
    """Return non-negative rows, on a ring that a rotation permutes, in groups, or at random, and which of these."""
    kind = str(rng.choice(["ring", "groups", "random"]))
    node = np.arange(n)
    if kind == "ring":
        x = np.zeros((n, n))
        for step, weight in enumerate(rng.uniform(0.1, 1, 3)):
            x[node, (node + step) % n] += weight
    elif kind == "groups":  # whose rows share a column, beside a column that some groups share
        groups = max(n // 6, 1)
        x = np.concatenate([np.eye(groups)[node % groups], rng.random((n, 5)) * (rng.random((n, 5)) < 0.3)], 1)
    else:
        x = rng.random((n, 8)) * (rng.random((n, 8)) < 0.4)
        x[node, node % 4] += 0.3
    return torch.from_numpy(x * 10 ** rng.uniform(-6, 6)), kind


def dense(case: Case, given: Tensor) -> Tensor:
    if case["kind"] == "function":
        matrix: Tensor = case["parts"][0] + torch.einsum("i,ijk->jk", given, case["parts"][1:])
        return matrix
    unit = torch.nn.functional.normalize(given, dim=1, eps=0.0)
    affinity = unit @ unit.mT
    affinity = affinity if case["loops"] else affinity - torch.diag(affinity.diagonal())
    root = affinity.sum(1).rsqrt()
    return torch.eye(len(given)).to(given) - root[:, None] * affinity * root


def _derived(case: Case, given: Tensor, loss: Function) -> tuple[Eigenpairs, Tensor]:
    if case["kind"] == "function":
        a, b, c = case["parts"]
        operator = FunctionOperator(lambda y, t: a @ y + t[0] * (b @ y) + t[1] * (c @ y), len(a), [given])
        pairs = eigenpairs(operator, case["k"])
    else:
        x = given.to_sparse_coo() if case["kind"] == "sparse" else given
        pairs = eigenpairs(FactoredCosine(x, loops=case["loops"]), case["k"])
    heat = torch.matrix_exp(-loss.parameter * pairs.projected)
    (gradient,) = torch.autograd.grad(loss.loss(pairs.vectors @ heat @ pairs.vectors.mT), given)
    return pairs, gradient


def _judged(pairs: Eigenpairs, spectrum: Tensor, bound: float, k: int, is_warned: bool) -> list[Finding]:
    if not pairs.converged:
        return [] if is_warned else [Finding("unconverged without a warning", str(pairs.solver))]
    values = pairs.values.detach()
    off = (values - spectrum[:k]).abs()
    allowed = 2 * float(pairs.residuals.norm()) + 1e-12 * bound
    worst = int(off.argmax())
    value = f"λ_{worst + 1} of {k} is {float(values[worst]):.6e}, not {float(spectrum[worst]):.6e}"
    return [Finding("wrong value", value)] if float(off.max()) > allowed else []
