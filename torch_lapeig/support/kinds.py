"""Which kinds of objects a consumer refuses, and why, as data.

A new kind is a row of `REFUSES`, and one of `KINDS` if it can be read off an object. `refuse` raises the rows at the
door of a consumer, before any work; a page of the documentation and the tests are made from them.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

# A row has a kind, with "|" between alternatives, or several that meet, joined by "+"; the consumers, with * for any
# name; the reason; and the error that `refuse` raises, with {name} and {value} of the argument of the first kind. Where
# the consumer finds out as it computes, "says" has words of its message, as a regular expression.
REFUSES = r"""
SignedGraph → AFFINITIES; MagneticLaplacian
  because A weight below zero is no affinity: degrees may vanish, and a walk has no such probabilities.
  says got a SignedGraph; use SignedLaplacian\(.*\.affinities\(\)|must be a DirectedGraph
SignedGraph → FACES; AddMagneticPE; sklearn.*
  because The matrices and lists of edges of other libraries are affinities there, too.
  says (edge_weight|affinity|affinities) must be non-negative, got a minimum of|got a SignedGraph; use
DirectedGraph → AFFINITIES; SignedLaplacian
  because D − W of arcs is not symmetric: it has neither orthogonal eigenvectors nor a quadratic form.
  says got a DirectedGraph; use MagneticLaplacian\(.*\.affinities\(\)|must be a SignedGraph
DirectedGraph → FACES
  because The matrices and lists of edges of other libraries are those of undirected graphs.
  says hold both directions of every edge; add|must be symmetric; take affinity|got a DirectedGraph; use
affinities → SignedLaplacian; MagneticLaplacian
  because Without signs and arcs the operator is `Laplacian(graph)`, whose null vectors are known in closed form.
  says must be a (SignedGraph|DirectedGraph); see .*got (Sharded)?Graph
edgeless → LaplacianEigenmaps; DiffusionMap; SpectralClustering; EigenmapsRegression; orthogonality; Whitening;
    spectral_loss; EdgeSampler; spectral_init; anndata.diffmap; anndata.spectral; sklearn.*
  because No node takes part, so that there is no eigenvector, no weighted mean and no edge to draw. In a batch such an
    item has zeros.
  says nodes of positive degree|without edges|vary over the graph|edges? of positive weight|cells with neighbours
batch → Whitening; spectral_init; NeighborhoodSampler; EdgeSampler; plot_graph; resistance_distances
  because A picture, a map that is kept, a layout and the numbers of rows of a data set belong to one graph.
  ValueError {name} must be one graph, got a batch of shape {value.shape}; take one with graph.subgraph
batch → plot_embedding
  because A picture has the rows of one graph.
  says draw one item
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
complex pairs → eigenpairs, mass; eigenpairs, mass matrix; eigenpairs, largest
  because A Hermitian matrix is solved in its real form, whose orthonormal pairs combine to complex ones.
  says got MagneticLaplacian; use its eigenpairs\(k\)
singular operator → solve_linear
  because With constant null vectors, a system has a solution if the right-hand side sums to 0 on each component.
  says null vectors that are constant|rhs must sum to 0|must be a positive definite SymmetricOperator
operator of products → Eigh; ShiftInvert; Lobpcg, multigrid; solve_linear
  because Decompositions, factors and multigrid are made of entries, which products do not give.
  says needs the entries .* which has products only; use Krylov\(\)|must be a positive definite Symm
operator without affinities → Lobpcg, multigrid
  because Aggregation keeps the known null vectors of a matrix of affinities; this one has entries of both signs.
  says must be a Laplacian for multigrid.*use Lobpcg\(preconditioner=SparseFactors\(\)\)
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
complex pairs → StableEncoding, real network
  because The entries of V φ(Λ) Vᴴ are complex: the network has to say what it makes of them.
  says complex entries .* MagneticLaplacian; let it begin with a\.abs\(\)
complex pairs → plot_embedding
  because A complex coordinate is a plane by itself.
  says real numbers, got complex128|draw one item
Precomputed → Isomap
  because Distances that are given join all pairs: what is left of Isomap is classical scaling.
  ValueError {name} must be a rule such as KNN(k), got {value}; for given distances use
    MDS(metric=Precomputed("distance"))
Precomputed + weighting → *
  because A weighting is a function of lengths, and given affinities do not have lengths.
  says weights must be None with Precomputed\("affinity"\).*weight the graph beforehand
metric of pairs → LLE; frozen; Sharded*
  because Lengths that are given, or of a metric without coordinates, are searched by rows of all distances.
  ValueError {name} must have metric="euclidean" or "cosine", got {value}
stored distances → transform; out_of_sample; state_dict; frozen
  because Which fitted points a new point would have for neighbours is not stored.
  ValueError {name} must be a rule such as KNN(10, metric=Precomputed("distance")) for new points, got {value}
Landmarks → SpectralClustering; HarmonicFunction; LabelSpreading; EigenmapsRegression
  because Rows of points are Z Y (1 − λ)^-½, which `LaplacianEigenmaps` and `DiffusionMap` form: find clusters and
    labels in their columns.
  says neighbors must be KNN\(k\), Radius.*got Landmarks
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
rule of a user → transform; out_of_sample; state_dict
  because A function of points says nothing about new points; `with_state` and `extend` do.
  says must have the methods with_state and extend.*got OwnRule
rule of a user | extending rule of a user → frozen
  because The code of your own rule is not an expression of a fixed number of dense operations.
  says frozen needs neighbors=KNN\(k\), Radius\(r\) or Landmarks\(m\)|with_state and extend
weighting of a user → frozen
  because `extend` works on lists of edges, which a dense map does not have; use `KernelWeights` of your function.
  says frozen needs one of this library's weightings, got OwnWeights
Isomap → frozen
  because Shortest paths to a new point take a search.
  says Isomap cannot be frozen
LLE → frozen
  because Each new point is reconstructed by a separate linear system.
  says LLE cannot be frozen
sharded graph → Whitening; normalized_cut; refine_cut; spectral_init; NeighborhoodSampler; EdgeSampler; plot_graph;
    HarmonicFunction; LabelSpreading; EigenmapsRegression; resistance_distances
  because A process has its own rows only: matrices, subgraphs and labels of all nodes are in none.
  TypeError {name} must lie in one process, got a graph on several ranks; use the graph of ranks.gather(x)
sharded graph → conversions; components, subgraph; component_eigenpairs
  because A process has its own rows only: matrices, subgraphs and labels of all nodes are in none.
  says several ranks; use the graph of ranks\.gather\(x\)
Precomputed | stored distances → Sharded*
  because A matrix of pairs is on one process; points are what processes share.
  says neighbors must be KNN.* of points on several ranks
Landmarks → Sharded*
  because The graph of landmarks is small, and is solved on one process: each adds its points by `fit_stream`.
  says KNN\(k\) or Radius\(r\) of points on several ranks, got Landmarks
NME → Sharded*
  because The number of neighbours comes from decompositions of matrices of all points.
  says KNN\(k\) or Radius\(r\) of points on several ranks, got NME
rule of a user | extending rule of a user → Sharded*
  because The search over processes is that of `KNN` and `Radius`.
  says KNN\(k\) or Radius\(r\) of points on several ranks, got Own
LaplacianEigenmaps, separate → Sharded*
  because A component may lie on several processes, whose solves would not be one.
  says components must be "joint" or "error" on several processes
HarmonicFunction | LabelSpreading | EigenmapsRegression | MDS | Isomap | LLE | KernelPCA → Sharded*
  because Only eigenmaps, clustering and losses on a graph have a form in which each process has its rows.
  says module must be one of LaplacianEigenmaps, SpectralClustering, .*got
"""
GROUPS = {
    "AFFINITIES": "Laplacian; eigenpairs; component_eigenpairs; laplacian_smoothness; orthogonality; whiten; "
    "Whitening; spectral_loss; normalized_cut; refine_cut; spectral_init; NeighborhoodSampler; EdgeSampler; "
    "weighting, *; LaplacianEigenmaps; DiffusionMap; SpectralClustering; HarmonicFunction; LabelSpreading; "
    "EigenmapsRegression; resistance_distances",
    "FACES": "AddLaplacianPE; AddSpectralFeatures; anndata.*; SmoothnessCallback",
}


class Refusal(NamedTuple):
    """A row of `REFUSES`; without an ``error`` the consumer finds out as it computes."""

    kinds: list[str]
    consumers: list[str]
    because: str
    says: str
    error: type[Exception] | None


def _is(name: str) -> Callable[[Any], bool]:
    return lambda value: any(one.__name__ == name for one in type(value).__mro__)


# What can be read off an object that a consumer takes; other kinds are known as it computes.
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


@functools.cache
def refusals() -> list[Refusal]:
    """Return the rows of `REFUSES`."""
    errors = {"TypeError": TypeError, "ValueError": ValueError, "says": None}
    found = []
    for row in re.split(r"\n(?! )", REFUSES.strip()):
        head, because, last = (" ".join(part.split()) for part in re.split(r"\n  (?! )", row))
        kinds, consumers = head.split(" → ")
        for name, members in GROUPS.items():
            consumers = consumers.replace(name, members)
        word, says = last.split(" ", 1)
        found.append(
            Refusal(kinds.split(" + "), consumers.split("; "), because.removeprefix("because "), says, errors[word])
        )
    return found


@functools.cache
def _refusals_of(*consumers: str | type) -> list[Refusal]:
    """Return the rows that consumers raise at their doors; a class goes by its name and those of its bases."""
    names = [one for one in consumers if isinstance(one, str)]
    names += [one.__name__ for kind in consumers if isinstance(kind, type) for one in kind.__mro__]
    return [row for row in refusals() if row.error and any(fnmatch.filter(names, one) for one in row.consumers)]


def refuse(*consumers: str | type, **given: Any) -> None:
    """Raise what the first row for the consumers says about the kinds of the objects that are given."""
    for row in _refusals_of(*consumers):
        found = [[name for name, value in given.items() if KINDS[kind](value)] for kind in row.kinds]
        if row.error and all(found):
            raise row.error(row.says.format(name=found[0][0], value=given[found[0][0]]))
