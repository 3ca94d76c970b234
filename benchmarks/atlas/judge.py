"""When an answer is right: its residuals, and its eigenvalues against a reference, copies included."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, dia_array
from scipy.sparse.linalg import splu

# Relative error of eigenvalues that is allowed: where these are smaller than the residual, it alone says little.
VALUES = 1e-3
ROUND_OFF = 1e-13
DEPENDENT = 1e-2  # of unit vectors: an inner product from which on they are not k different ones


class Quality(NamedTuple):
    """Rayleigh quotients, ascending; the largest residual; the largest inner product of two of the vectors."""

    values: list[float]
    residual: float
    dependence: float


def quality_of(s: csr_array, vectors: NDArray[np.float64]) -> Quality:
    """Return the quality of unit vectors with their Rayleigh quotients λ; the residual is ‖v − S v − λ v‖."""
    length = np.linalg.norm(vectors, axis=0)
    if not np.isfinite(length).all() or not length.all():
        return Quality([], np.inf, np.inf)
    v = vectors / length
    image = v - s @ v
    values = (v * image).sum(0)
    gram = np.abs(v.T @ v - np.eye(v.shape[1]))
    residual = np.linalg.norm(image - v * values, axis=0)
    return Quality(np.sort(values).tolist(), float(residual.max()), float(gram.max()))


def allowed_errors(values: Sequence[float], target: float) -> NDArray[np.float64]:
    """Return how far eigenvalues may be off: what the residual allows by Kahan's theorem, and 1e-3 of themselves."""
    # A value that is zero may be off by 1e-3 of the first that is not: zeros of a reference have to be exact ones.
    found = np.asarray(values)
    positive = found[found > ROUND_OFF]
    least = positive[0] if len(positive) else np.inf
    by_residual, by_value = 2 * target * np.sqrt(len(found)), VALUES * np.maximum(found, least)
    allowed: NDArray[np.float64] = np.maximum(np.minimum(by_residual, by_value), ROUND_OFF)
    return allowed


def fault(found: Quality, reference: Sequence[float], target: float) -> str | None:
    """Return the fault of an answer whose residual is small enough; None if it is right."""
    if found.dependence > DEPENDENT:
        return "vectors depend on each other"
    if len(found.values) < len(reference):
        return "too few vectors"
    off = np.asarray(found.values) - np.asarray(reference)
    wrong = np.flatnonzero(off > allowed_errors(reference, target))
    if len(wrong) == 0:
        return None
    i = int(wrong[0])
    return f"eigenvalue {i + 1} is {found.values[i]:.6g}, {reference[i]:.6g} is right"


def is_beaten(reference: Sequence[float], found: Quality, target: float) -> bool:
    """Return whether an answer has smaller values than the reference, which then lacks some (Courant–Fischer)."""
    below = np.asarray(reference) - np.asarray(found.values)
    return found.dependence <= DEPENDENT and bool((below > allowed_errors(reference, target)).any())


def place_of_count(values: Sequence[float], residual: float) -> tuple[float, int] | None:
    """Return a number below the last group of eigenvalues, and how many lie below it; None if all are one group."""
    # A copy missed in the last group, through which the cut goes, is no fault.
    room = max(2 * residual, 10 * ROUND_OFF)
    groups = [i + 1 for i, (a, b) in enumerate(itertools.pairwise(values)) if b - a > max(2 * room, VALUES * b)]
    if not groups:
        return None
    j = groups[-1]
    return values[j] - max(room, 0.1 * VALUES * values[j]), j


def count_below(s: csr_array, sigma: float) -> int | None:
    """Return the number of eigenvalues of I − S below σ by Sylvester's law; None if factors exchanged rows."""
    n = s.shape[0]
    shifted = (dia_array((np.full(n, 1 - sigma), 0), shape=(n, n)) - s).tocsc()
    factors = splu(shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    if not np.array_equal(factors.perm_r, factors.perm_c):
        return None
    return int((factors.U.diagonal() < 0).sum())
