"""Which kinds of objects a consumer refuses at its door, before any work, and why, as data.

A new kind is a row of `REFUSES` and one of `KINDS`. docs/combinations.md has these rows and those of tests/refused.txt,
where a consumer finds out as it computes.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

# A row has a kind, with "|" between alternatives, or several that meet, joined by "+"; the consumers, with * for any
# name; the reason; and the error that `refuse` raises, with {name} and {value} of the argument of the first kind.
REFUSES = """
batch → Whitening; spectral_init; NeighborhoodSampler; EdgeSampler; plot_graph; resistance_distances
  because A picture, a map that is kept, a layout and the numbers of rows of a data set belong to one graph.
  ValueError {name} must be one graph, got a batch of shape {value.shape}; take one with graph.subgraph
mask → spectral_init
  because Padding has no place in a layout.
  ValueError {name} must be without a mask, got padding; take its nodes with graph.subgraph
ImprovedWeights → spectral_loss; Whitening; normalized_cut; refine_cut; spectral_init; weighting, density; DiffusionMap;
    HarmonicFunction; LabelSpreading; resistance_distances
  because W = K diag(1/κ) is similar to a symmetric matrix, but not symmetric: a cut, tr Yᵀ L Y, scores and a correction
    for density differ from W to Wᵀ.
  ValueError {name} must be symmetric, got ImprovedWeights; use HeatKernel()
ImprovedWeights → weighting, ImprovedWeights
  because The weights would be divided by the numbers of neighbours twice.
  ValueError {name} must not be weighted by ImprovedWeights already; weight the graph of the search
ImprovedWeights → LaplacianEigenmaps, orthonormal
  because W = K diag(1/κ) is not symmetric: D^½ Y has no orthogonal columns.
  ValueError scale must be "degree" or "unit" with ImprovedWeights, whose W is not symmetric, got "orthonormal"
DensityCorrected → DiffusionMap
  because The kernel would be corrected twice.
  ValueError {name} must not be DensityCorrected, which alpha does; use weights.weights
corrected graph → DiffusionMap
  because The kernel would be corrected twice.
  ValueError {name} must be a Graph of the kernel K, got one that DensityCorrected({value.density_correction:g}) has
    corrected for density already; weight it by K, or use alpha=0
sharded operator → eigenpairs, mass; eigenpairs, mass matrix; eigenpairs, largest; eigenpairs, nearest;
    eigenpairs, fixed
  because Solvers on several ranks find the smallest pairs of one matrix.
  ValueError mass, largest, nearest and fixed must be left out on several ranks; use the graph of
    ranks.gather(x)
operator of products → eigenpairs, fixed
  because Rows and columns are taken out of entries.
  TypeError fixed must be None for a matrix known by products; give a function of the free nodes only
normalised Laplacian → eigenpairs, mass; eigenpairs, mass matrix
  because A normalised Laplacian has the degrees as its mass: L y = λ D y.
  ValueError mass must be None with normalization="{value.normalization}", which has the degrees as its mass; use
    Laplacian(graph, "unnormalized")
similarity → eigenpairs, mass matrix
  because W of `ImprovedWeights` is K diag(1/κ): its symmetric form already has a diagonal mass.
  ValueError mass must be a diagonal (N,) with ImprovedWeights, whose W is not symmetric, got a matrix
sharded pairs → SpectralFilter*; wavelets; StableEncoding*; canonicalize
  because Vᴴ x sums over the rows of all processes.
  ValueError {name} must be of a graph on one process, got rows on several ranks; use that of ranks.gather(x)
pairs with a mass or degrees → canonicalize
  because U Uᴴ is no projector where Uᴴ M U = I, so that lengths ‖P e_i‖ order no nodes.
  ValueError {name} must have orthonormal vectors, got a "{value.inner_product}" inner product, in which P e_i has other
    lengths; use normalization="symmetric" without a mass
complex pairs → SignInvariant
  because A complex vector is known up to a phase, and φ(v) + φ(−v) depends on it.
  TypeError {name} must be real, got {value.dtype}: eigenvectors of a MagneticLaplacian have a phase instead of a
    sign, which φ(v) + φ(−v) depends on; use StableEncoding or spectral_signature
Precomputed → Isomap
  because Distances that are given join all pairs: what is left of Isomap is classical scaling.
  ValueError {name} must be a rule such as KNN(k), got {value}; for given distances use
    MDS(metric=Precomputed("distance"))
metric of pairs → LLE; frozen; Sharded*
  because Lengths that are given, or of a metric without coordinates, are searched by rows of all distances.
  ValueError {name} must have metric="euclidean" or "cosine", got {value}
stored distances → transform; out_of_sample; state_dict; frozen
  because Which fitted points a new point would have for neighbours is not stored.
  ValueError {name} must be a rule such as KNN(10, metric=Precomputed("distance")) for new points, got {value}
Landmarks + ImprovedWeights → LaplacianEigenmaps; DiffusionMap
  because Shares of points divide each row of weights by its sum, and W would not be symmetric by κ.
  ValueError weights must be symmetric with Landmarks, got ImprovedWeights; use HeatKernel()
Landmarks → LaplacianEigenmaps, separate
  because A component of landmarks is no component of points.
  ValueError components must be "joint" or "error" with Landmarks, got "separate"; fit each on its own
Landmarks + DensityCorrected → LaplacianEigenmaps, unit
  because Degrees are c_i there, and the landmark graph Zᵀ C Z does not know mean squares of points that all count 1.
  ValueError scale must be "degree" or "orthonormal" with Landmarks and DensityCorrected, got "unit"
Landmarks + DensityCorrected → LaplacianEigenmaps, unnormalized
  because Degrees are c_i there, and not 1: (C − W) y = λ y is no problem of m landmarks.
  ValueError normalization must be "random_walk" with Landmarks and DensityCorrected, got "unnormalized"
rule that is not Landmarks → fit_stream
  because Other graphs need all points at once: blocks only add up where each point sees nothing but landmarks.
  TypeError fit_stream needs neighbors=Landmarks(m), got {value}
sharded graph → Whitening; normalized_cut; refine_cut; spectral_init; NeighborhoodSampler; EdgeSampler; plot_graph;
    HarmonicFunction; LabelSpreading; EigenmapsRegression; resistance_distances
  because A process has its own rows only: matrices, subgraphs and labels of all nodes are in none.
  TypeError {name} must lie in one process, got a graph on several ranks; use the graph of ranks.gather(x)
"""


class Refusal(NamedTuple):
    """A row of `REFUSES`."""

    kinds: list[str]
    consumers: list[str]
    because: str
    error: str
    says: str


def _is(name: str) -> Callable[[Any], bool]:
    return lambda value: any(one.__name__ == name for one in type(value).__mro__)


KINDS: dict[str, Callable[[Any], bool]] = {
    "sharded graph": lambda value: value.pattern.is_sharded,
    "batch": lambda value: len(value.shape) > 1,
    "mask": lambda value: value.mask is not None,
    "ImprovedWeights": lambda value: _is("ImprovedWeights")(value) or getattr(value, "similarity", None) is not None,
    "DensityCorrected": _is("DensityCorrected"),
    "corrected graph": lambda value: getattr(value, "density_correction", 0) > 0,
    "similarity": lambda value: value.graph.similarity is not None,
    "normalised Laplacian": lambda value: _is("Laplacian")(value) and value.normalization != "unnormalized",
    "sharded operator": lambda value: hasattr(value, "nodes") and value.nodes.is_sharded,
    "operator of products": lambda value: not _is("SymmetricOperator")(value),
    "sharded pairs": lambda value: value.is_sharded,
    "complex pairs": lambda value: value.dtype.is_complex,
    "pairs with a mass or degrees": lambda value: value.inner_product != "identity",
    "Landmarks": _is("Landmarks"),
    "metric of pairs": lambda value: getattr(value, "metric", "euclidean") not in ("euclidean", "cosine"),
    "Precomputed": _is("Precomputed"),
    "stored distances": lambda value: _is("Precomputed")(value) and value.kind == "distance",
    "rule that is not Landmarks": lambda value: not _is("Landmarks")(value),
}


def rows_of(text: str) -> list[Refusal]:
    """Return the rows of a text such as `REFUSES`."""
    found = []
    for row in re.split(r"\n(?! )", text.strip()):
        head, because, last = (" ".join(part.split()) for part in re.split(r"\n  (?! )", row))
        kinds, consumers = head.split(" → ")
        reason = because.removeprefix("because ")
        found.append(Refusal(kinds.split(" + "), consumers.split("; "), reason, *last.split(" ", 1)))
    return found


@functools.cache
def _refusals_of(*consumers: str | type) -> list[Refusal]:
    """Return the rows that consumers raise at their doors; a class goes by its name and those of its bases."""
    names = [one for one in consumers if isinstance(one, str)]
    names += [one.__name__ for kind in consumers if isinstance(kind, type) for one in kind.__mro__]
    return [row for row in rows_of(REFUSES) if any(fnmatch.filter(names, one) for one in row.consumers)]


def refuse(*consumers: str | type, **given: Any) -> None:
    """Raise what the first row for the consumers says about the kinds of the objects that are given."""
    for row in _refusals_of(*consumers):
        found = [[name for name, value in given.items() if KINDS[kind](value)] for kind in row.kinds]
        if all(found):
            error = {"TypeError": TypeError, "ValueError": ValueError}[row.error]
            raise error(row.says.format(name=found[0][0], value=given[found[0][0]]))
