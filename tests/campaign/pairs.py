"""Check eigenpairs against a dense reference.

Let V be the vectors that came back, Λ their values and R = A V − V Λ the residual in float64 of the float64 operator A.
There are k eigenvalues of A within ‖R‖_F / (1 − ‖VᵀV − I‖) of Λ (Kahan's theorem, Weyl's for orthonormal V), whatever
solver found them. If they are the *smallest* k, the i-th value has to agree with the i-th of the reference within that
and round-off; if a copy of a multiple eigenvalue was missed, it does not. The gap is exact up to the same bounds and a
tenth of itself: the value after the wanted ones is a Ritz value, not a converged pair, but more than that would let a
split cluster pass for a gap.

Generalised eigenvectors y are judged by v = D^½ y. At nodes of tiny degree rows of L y = λ D y take out of y what has
come in of a neighbouring eigenvector, at an angle of up to 3 √eps, which v had: its residual may be as much more.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tests.campaign.edges import Floats
from tests.campaign.outcomes import Finding
from tests.campaign.reference import Reference
from torch_lapeig import Eigenpairs

GAP_ACCURACY = 0.1


@dataclass(frozen=True, eq=False)
class Answer:
    """The pairs of one graph of an answer, in float64."""

    values: Floats
    vectors: Floats
    projected: Floats
    residuals: Floats
    gap: float
    converged: bool
    dtype: torch.dtype


def answers(pairs: Eigenpairs) -> list[Answer]:
    dtype, k = pairs.values.dtype, pairs.values.shape[-1]
    nodes = pairs.vectors.shape[-2]

    def items(part: Tensor, *shape: int) -> Floats:
        part = part.detach().reshape(-1, *shape)
        return part.to(torch.complex128 if part.is_complex() else torch.float64).numpy()

    arrays = items(pairs.values, k), items(pairs.vectors, nodes, k), items(pairs.projected, k, k)
    rest = items(pairs.residuals, k), items(pairs.gap), items(pairs.converged)
    return [
        Answer(values, vectors, projected, residuals, float(gap), bool(done), dtype)
        for values, vectors, projected, residuals, gap, done in zip(*arrays, *rest, strict=True)
    ]


def check(answer: Answer, reference: Reference, normalization: str) -> list[Finding]:
    """Return all findings of one graph's answer; ``answer.vectors`` may have rows of padding."""
    n = len(reference.matrix)
    k = min(len(answer.values), reference.size)
    if not all(np.isfinite(part).all() for part in (answer.vectors, answer.projected, answer.residuals)):
        return [Finding("not finite", f"k={k} of {n} nodes")]
    found = _padding(answer, reference, k)
    vectors, values = answer.vectors[:n, :k], answer.values[:k]
    found += _signs(vectors)
    if normalization == "random_walk":
        vectors = reference.root_degree[:, None] * vectors
    degrees = reference.root_degree[reference.active] ** 2
    least = torch.finfo(answer.dtype).eps ** 0.75 * degrees.max(initial=0.0)  # see `Laplacian.slight`
    is_slight = normalization == "random_walk" and bool((degrees < least).any())
    return found + _quality(answer, reference, values, vectors, is_slight)


def _padding(answer: Answer, reference: Reference, k: int) -> list[Finding]:
    """Return findings of rows of inactive nodes, or of lacking columns, that are not zero."""
    n = len(reference.matrix)
    outside = np.concatenate([answer.vectors[:n][~reference.active].ravel(), answer.vectors[n:].ravel()])
    found = [Finding("padding", "rows of inactive nodes are not zero")] if outside.any() else []
    if answer.vectors[:, k:].any() or not np.isposinf(answer.values[k:]).all():
        found.append(Finding("padding", "columns that the graph lacks are not filled"))
    return found


def _signs(vectors: Floats) -> list[Finding]:
    """Return columns whose entry of largest magnitude, the first of those within 0.1 %, is not real and positive."""
    magnitude = np.abs(vectors)
    # A hair's breadth inside of the 0.1 %, where rounding decides.
    first = (magnitude >= 0.99901 * magnitude.max(0)).argmax(0)
    clear = (magnitude >= 0.99899 * magnitude.max(0)).argmax(0) == first
    peak = np.take_along_axis(vectors, first[None], 0)[0]
    wrong = clear & (np.abs(peak - np.abs(peak)) > 1e-6 * np.abs(peak))
    return [Finding("sign", f"columns {np.flatnonzero(wrong).tolist()}")] if wrong.any() else []


def _quality(answer: Answer, reference: Reference, values: Floats, vectors: Floats, is_slight: bool) -> list[Finding]:
    k, eps = len(values), torch.finfo(answer.dtype).eps
    floor = reference.round_off(answer.dtype)
    turned = floor + (3 * eps**0.5 * reference.bound if is_slight else 0)
    residual = reference.matrix @ vectors - vectors * values
    norms = np.linalg.norm(residual, axis=0)
    skewness = float(np.linalg.norm(vectors.T.conj() @ vectors - np.eye(k)))
    reported = answer.residuals[:k]
    found = []
    if ((norms > 2 * reported + 4 * turned) | (reported > 2 * norms + 4 * turned)).any():
        worst = int(np.abs(norms - reported).argmax())
        found.append(Finding("dishonest residual", f"{reported[worst]:.2e} is {norms[worst]:.2e}"))
    off = np.abs(answer.projected[:k, :k] - np.diag(values)).max()
    if off > floor:
        found.append(Finding("projected", f"off diag(values) by {off:.2e}"))
    if not answer.converged:
        return found
    if skewness > k * eps**0.5:
        found.append(Finding("not orthonormal", f"‖VᵀV − I‖ = {skewness:.2e}"))
    tolerance = 1e-10 if answer.dtype == torch.float64 else 1e-4
    gap = reference.gap(k)
    allowed = max(tolerance * gap, turned) if np.isfinite(gap) else turned
    if norms.max() > 3 * allowed:
        found.append(Finding("unconverged in truth", f"residual {norms.max():.2e}, allowed {allowed:.2e}"))
    # Kahan's bound, and what the angles between the vectors do to it.
    error = float(np.linalg.norm(residual)) / max(1 - skewness, 0.5) + skewness * float(values[-1])
    error += floor if answer.dtype == torch.float32 else 2 * floor
    return found + _against(answer, reference, values, error)


def _against(answer: Answer, reference: Reference, values: Floats, error: float) -> list[Finding]:
    """Return values and gap against the reference, which ``error`` bounds."""
    k = len(values)
    off = np.abs(values - reference.values[:k])
    if (off > error).any():
        worst = int(off.argmax())
        true = reference.values[worst]
        return [Finding("wrong value", f"λ_{worst + 1} of {k} is {values[worst]:.6e}, not {true:.6e}")]
    gap = reference.gap(k)
    if np.isinf(gap) or np.isinf(answer.gap):
        if gap == answer.gap:
            return []
    elif abs(answer.gap - gap) <= GAP_ACCURACY * gap + 2 * error:
        return []
    return [Finding("wrong gap", f"{answer.gap:.3e}, not {gap:.3e}, after k={k} (λ_k = {values[-1]:.3e})")]
