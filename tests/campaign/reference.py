"""References: dense float64 Laplacians, their LAPACK spectra, and bounds on what rounding may do to an answer.

LAPACK's eigenvalues are those of a matrix within a few eps · ‖A‖ of the given one, and so are the Laplacians that the
library forms: `round_off` is the size of both, with the library's own constants. It is relative to the bound of the
spectrum: of weights over 24 decades small eigenvalues have no correct digits in the reference either.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tests.campaign.edges import Edges, Floats

# Relative to round-off, where values of a spectrum count as one for the choice of k.
EQUAL = 1e-12


@dataclass(frozen=True, eq=False)
class Reference:
    """The symmetric operator of one graph in float64 and all its eigenvalues, inactive nodes left out."""

    matrix: Floats  # (N, N)
    values: Floats  # ascending, one of each active node
    active: NDArray[np.bool_]
    root_degree: Floats  # D^½
    bound: float
    longest: int  # row, in entries

    @property
    def size(self) -> int:
        return len(self.values)

    def round_off(self, dtype: torch.dtype) -> float:
        """Return residual that rounding in ``dtype`` alone leaves behind."""
        factor = max(40.0, 0.3 * len(self.matrix) ** 0.5, 4.0 * self.longest**0.5)
        return float(factor * torch.finfo(dtype).eps * self.bound)

    @functools.cached_property
    def components(self) -> int:
        """Return the number of components of active nodes, each of which has one null vector."""
        inside = self.matrix[np.ix_(self.active, self.active)]
        return int(connected_components(inside != 0, directed=False)[0]) if len(inside) else 0

    def gap(self, k: int) -> float:
        """Return λ_{k+1} − λ_k; infinite where there are no more."""
        return float(self.values[k] - self.values[k - 1]) if k < self.size else math.inf


def dense_laplacian(edges: Edges, log_scale: Tensor, normalization: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the symmetric operator, degrees and active nodes, differentiable in the weights."""
    weight = torch.from_numpy(edges.weight) * log_scale.exp()
    (i, j), of_edge = edges.both_directions()
    n = edges.nodes
    affinity = weight.new_zeros(n, n).index_put((i, j), weight[of_edge], accumulate=True)
    degrees = affinity.sum(1)
    active = degrees.detach() > torch.finfo(torch.float64).tiny
    others = affinity * (1 - torch.eye(n, dtype=affinity.dtype))  # loops count in degrees only: elsewhere they cancel
    matrix = torch.diag(others.sum(1)) - others
    if normalization == "unnormalized":
        return matrix, degrees, active
    inverse = torch.where(active, torch.where(active, degrees, 1).rsqrt(), 0)
    return inverse[:, None] * matrix * inverse, degrees, active


@functools.lru_cache(maxsize=8)
def reference(edges: Edges, normalization: str) -> Reference:
    """Return the spectrum of a graph's Laplacian; the last few are kept, because many solves have one reference."""
    zeros = torch.zeros(len(edges.weight), dtype=torch.float64)
    matrix, degrees, active = (part.numpy() for part in dense_laplacian(edges, zeros, normalization))
    root = np.sqrt(np.where(active, degrees, 0))
    inside = matrix[np.ix_(active, active)]
    values = quotients(inside) if len(inside) else np.zeros(0)
    bound = 2 * float(inside.diagonal().max(initial=0))
    longest = int((matrix != 0).sum(1).max(initial=1))
    return Reference(matrix, values, active, root, bound, longest)


def quotients(matrix: Floats) -> Floats:
    """Return all eigenvalues, ascending, as Rayleigh quotients, more accurate than LAPACK's own values."""
    _, vectors = scipy.linalg.eigh(matrix, check_finite=False, driver="evd")  # the default fails on some
    squares = np.einsum("ij,ij->j", vectors, vectors)
    return np.sort(np.einsum("ij,ij->j", vectors, matrix @ vectors) / squares)


def splitting(values: Floats, most: int) -> list[int]:
    """Return all k ≤ ``most`` that split a multiple eigenvalue."""
    gaps = np.diff(values)[:most]
    return [int(k) + 1 for k in np.flatnonzero(gaps <= EQUAL * max(float(values[-1]), 1e-300))]
