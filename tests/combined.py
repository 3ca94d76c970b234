"""Producers of graphs, operators, eigenpairs and fits with small dense references, for the table of combinations.

A new feature is one line in a list: what it produces here, what takes it in `test_combinations.py`. A cell of the table
is right against the reference, or refused by a row of `REFUSALS`; docs/combinations.md lists them.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_lapeig as tl
from problems import path, random_affinity, sheet, square
from tests.campaign.meshes import of_faces
from torch_lapeig.eigen import FactoredCosine, FunctionOperator, Operator, SymmetricOperator
from torch_lapeig.graph import DensePattern, Extension, NewEdges, Weighting
from torch_lapeig.support.kinds import REFUSES, Refusal, rows_of

K = 3  # number of pairs; no reference has an equal pair after it
WITH_MASS = "pairs with a mass or degrees"


@dataclass
class Made:
    """An object with its kinds, which refusals name, and the dense matrices that say what is right."""

    value: Any  # the graph, operator or pairs
    kinds: set[str]
    matrix: Tensor  # of B items (B, N, N): the affinities of a graph, or the Hermitian K of K u = λ M u
    mass: Tensor | None = None  # M of an operator and its pairs, (B, N); None for the identity
    nodes: Tensor | None = None  # bool (B, N), those that are there and, of operators, take part
    pairs: Callable[..., tl.Eigenpairs] = tl.eigenpairs  # of an operator, called with it, k and options

    def __post_init__(self) -> None:
        self.matrix = self.matrix.reshape(-1, *self.matrix.shape[-2:])
        if self.mass is not None:
            self.mass = self.mass.reshape(self.matrix.shape[:2])
        if self.nodes is None:
            self.nodes = torch.ones(self.matrix.shape[:2], dtype=torch.bool)
        self.nodes = self.nodes.reshape(self.matrix.shape[:2])

    @property
    def lead(self) -> tuple[int, ...]:
        """Shape of the batch of the value."""
        shape = self.value.vectors.shape[:-1] if isinstance(self.value, tl.Eigenpairs) else self.value.shape
        return tuple(shape[:-1])

    def spectra(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Nodes, eigenvalues and M-orthonormal vectors of each item from the end of the pairs on, by a dense solver."""
        found = []
        for b, matrix in enumerate(self.matrix):
            at = self.nodes[b].nonzero().flatten()
            root = torch.ones(len(at)).double() if self.mass is None else self.mass[b][at].sqrt()
            values, vectors = torch.linalg.eigh(matrix[at][:, at] / (root[:, None] * root))
            if "largest" in self.kinds:
                values, vectors = values.flip(0), vectors.flip(1)
            found.append((at, values, vectors / root[:, None]))
        return found

    def values(self, k: int = K) -> Tensor:
        """The first k eigenvalues ``(B, k)``, infinite where an item has fewer."""
        found = self.matrix.new_full((len(self.matrix), k), torch.inf).real.clone()
        for b, (_, values, _) in enumerate(self.spectra()):
            found[b, : len(values[:k])] = values[:k]
        return found

    def function(self, phi: Callable[[Tensor], Tensor], k: int = K) -> Tensor:
        """U φ(Λ) Uᴴ of the first k pairs, ``(B, N, N)``."""
        found = torch.zeros_like(self.matrix)
        for b, (at, values, u) in enumerate(self.spectra()):
            u, weight = u[:, :k], phi(values[:k, None])[:, 0]
            found[b, at[:, None], at] = (u * weight) @ u.mH
        return found


def shaped(value: Tensor, made: Made) -> Tensor:
    """A reference of B items with the batch axes of the value."""
    return value.reshape(*made.lead, *value.shape[1:])


# --- Graphs -----------------------------------------------------------------------------------------------------------


def padded(*matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices in one batch ``(B, N, N)`` and the mask of their nodes."""
    n = max(map(len, matrices))
    whole, mask = torch.zeros(len(matrices), n, n, dtype=matrices[0].dtype), torch.zeros(len(matrices), n).bool()
    for b, matrix in enumerate(matrices):
        whole[b, : len(matrix), : len(matrix)], mask[b, : len(matrix)] = matrix, True
    return whole, mask


W, SMALL = random_affinity(12), random_affinity(8, seed=1)
PARTS = torch.block_diag(random_affinity(7, seed=2), random_affinity(5, seed=3))
LONELY = torch.block_diag(random_affinity(11, seed=4), torch.zeros(1, 1))
SIGNS = torch.where(torch.rand(12, 12, generator=torch.Generator().manual_seed(5)).triu(1) < 0.3, -1.0, 1.0).double()
SIGNED = W * SIGNS * SIGNS.mT
ARCS = torch.rand(12, 12, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
ARCS = (ARCS * (ARCS > 0.6)).fill_diagonal_(0) + path(12).triu()
X = sheet(24)


def of_landmarks() -> Made:
    model = tl.LaplacianEigenmaps(2, tl.Landmarks(12, 4)).fit(sheet(60))
    graph = tl.Graph.from_edge_index(model.train_edges, model.train_connectivity)
    return Made(graph, {"affinities"}, graph.to_dense())


def of_hyperedges() -> Made:
    members = torch.tensor([[0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 7, 0], [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3]])
    weight = torch.tensor([3.0, 2.0, 1.5, 0.7], dtype=torch.float64)
    incidence = torch.zeros(8, 4, dtype=torch.float64)
    incidence[members[0], members[1]] = 1
    affinity = (incidence * weight / incidence.sum(0)) @ incidence.mT
    return Made(tl.Graph.from_hyperedges(members, weight), {"affinities"}, affinity)


def batch(matrices: tuple[Tensor, ...], kind: type[tl.Graph] = tl.Graph, *, sparse: bool = False) -> Made:
    whole, mask = padded(*matrices)
    graph, kinds = kind.from_dense(whole, mask), {"affinities" if kind is tl.Graph else kind.__name__, "batch"}
    return Made(graph.to_sparse() if sparse else graph, kinds, whole, nodes=mask)


def improved() -> Made:
    graph = tl.ImprovedWeights(0.5)(X, tl.knn_graph(X, 6))
    return Made(graph, {"affinities", "ImprovedWeights"}, graph.to_dense())


def corrected() -> Made:
    kernel = tl.HeatKernel(0.5)(X, tl.knn_graph(X, 6)).to_dense()
    q = kernel.sum(1)
    graph = tl.DensityCorrected(0.5, tl.HeatKernel(0.5))(X, tl.knn_graph(X, 6))
    return Made(graph, {"affinities", "corrected graph"}, kernel / (q[:, None] * q).sqrt())


def edgeless() -> Made:
    graph = tl.Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64), 6)
    return Made(graph, {"affinities", "edgeless"}, torch.zeros(6, 6, dtype=torch.float64))


def masked() -> Made:
    whole, mask = padded(W, SMALL)
    return Made(tl.Graph.from_dense(whole[1], mask[1]), {"affinities", "mask"}, whole[1], nodes=mask[1])


GRAPHS: dict[str, Callable[[], Made]] = {
    "sparse": lambda: Made(tl.Graph.from_dense(W).to_sparse(), {"affinities"}, W),
    "dense": lambda: Made(tl.Graph.from_dense(W), {"affinities"}, W),
    "batch": lambda: batch((W, random_affinity(12, seed=7))),
    "masked batch": lambda: batch((W, SMALL)),
    "sparse batch": lambda: batch((W, SMALL, W), sparse=True),
    "one with a mask": masked,
    "two components": lambda: Made(tl.Graph.from_dense(PARTS).to_sparse(), {"affinities", "components"}, PARTS),
    "isolated node": lambda: Made(tl.Graph.from_dense(LONELY), {"affinities", "isolated"}, LONELY),
    "edgeless": edgeless,
    "batch with an edgeless one": lambda: batch((W, torch.zeros(4, 4).double())),
    "of hyperedges": of_hyperedges,
    "of landmarks": of_landmarks,
    "corrected for density": corrected,
    "of ImprovedWeights": improved,
    "SignedGraph": lambda: Made(tl.SignedGraph.from_dense(SIGNED).to_sparse(), {"SignedGraph"}, SIGNED),
    "SignedGraph, dense batch": lambda: batch((SIGNED, SIGNED[:7, :7]), tl.SignedGraph),
    "DirectedGraph": lambda: Made(tl.DirectedGraph.from_dense(ARCS).to_sparse(), {"DirectedGraph"}, ARCS),
    "DirectedGraph, dense batch": lambda: batch((ARCS, ARCS[:7, :7]), tl.DirectedGraph),
}


# --- Operators --------------------------------------------------------------------------------------------------------


def laplacian(affinity: Tensor) -> Tensor:
    return torch.diag_embed(affinity.sum(-1)) - affinity


def of_laplacian(affinity: Tensor, normalization: str, mask: Tensor | None = None, *, sparse: bool = True) -> Made:
    graph = tl.Graph.from_dense(affinity, mask)
    value = tl.Laplacian(graph.to_sparse() if sparse else graph, normalization)
    matrix, degrees = laplacian(affinity), affinity.sum(-1)
    kinds = {"Laplacian", "singular operator"} | ({"batch"} if affinity.ndim == 3 else set())
    if normalization == "unnormalized":
        return Made(value, kinds, matrix, nodes=degrees > 0)
    root = torch.where(degrees > 0, degrees, 1).sqrt()
    kinds.add("normalised Laplacian")
    if normalization == "random_walk":
        return Made(value, {*kinds, WITH_MASS}, matrix, root.square(), degrees > 0)
    return Made(value, kinds, matrix / (root[..., None] * root[..., None, :]), nodes=degrees > 0)


def with_mass(affinity: Tensor) -> Made:
    mass = 0.5 + torch.rand(affinity.shape[:-1], generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    made = of_laplacian(affinity, "unnormalized")
    pairs = functools.partial(tl.eigenpairs, mass=mass)
    return dataclasses.replace(made, kinds={*made.kinds, WITH_MASS}, mass=mass, pairs=pairs)


def of_improved() -> Made:
    """(D − W) y = λ y with W = R S R⁻¹ is R⁻¹ (D − S) R⁻¹ y = λ R⁻² y."""
    graph = tl.ImprovedWeights(0.5)(X, tl.knn_graph(X, 6))
    r, w = graph.similarity, graph.to_dense()
    matrix, kinds = laplacian(w) / r[:, None].square(), {"Laplacian", "singular operator", "similarity", WITH_MASS}
    return Made(tl.Laplacian(graph, "unnormalized"), kinds, (matrix + matrix.mT) / 2, r**-2)


def mesh() -> Made:
    """Cotangents and a third of the areas of the faces of a bent grid."""
    plane, faces = square(3)
    i, j = 3 * plane.mT
    vertices = torch.stack([i + 0.2 * j, j, (i * 0.7).sin() * j / 3], -1)
    matrix, mass = map(torch.from_numpy, of_faces(vertices.numpy(), faces.numpy()))
    stiffness, areas = tl.mesh_laplacian(vertices, faces)
    kinds = {"mesh", "singular operator", "operator without affinities", WITH_MASS}
    return Made(stiffness, kinds, matrix, mass, pairs=functools.partial(tl.eigenpairs, mass=areas))


def of_signs(normalization: str) -> Made:
    degrees = SIGNED.abs().sum(1)
    matrix = torch.diag(degrees) - SIGNED
    if normalization == "symmetric":
        matrix = matrix / (degrees[:, None] * degrees).sqrt()
    value = tl.SignedLaplacian(tl.SignedGraph.from_dense(SIGNED), normalization)
    return Made(value, {"SignedLaplacian", "operator without affinities"}, matrix)


def magnetic(arcs: Tensor, q: Any, normalization: str = "symmetric", mask: Tensor | None = None) -> Made:
    charges, graph = torch.as_tensor(q, dtype=torch.float64), tl.DirectedGraph.from_dense(arcs, mask)
    symmetric = (arcs + arcs.mT) / 2
    share = torch.where(symmetric > 0, (arcs - arcs.mT) / (2 * torch.where(symmetric > 0, symmetric, 1)), 0)
    symmetric, share = (part[..., None, :, :] if charges.ndim else part for part in (symmetric, share))
    angle = 2 * torch.pi * charges[..., None, None] * share
    degrees = symmetric.sum(-1).expand(angle.shape[:-1])
    matrix = torch.diag_embed(degrees) - torch.polar(symmetric.expand_as(angle), angle)
    root = torch.where(degrees > 0, degrees, 1).sqrt()
    if normalization == "symmetric":
        matrix = matrix / (root[..., None] * root[..., None, :])
    value = tl.MagneticLaplacian(graph, q, normalization)
    kinds = {"MagneticLaplacian", "complex pairs", "operator without affinities", "singular operator"}
    kinds |= {"batch"} if matrix.ndim > 2 else set()
    return Made(value, kinds, matrix, nodes=degrees > 0, pairs=tl.MagneticLaplacian.eigenpairs)


def by_function() -> Made:
    matrix = random_affinity(12, seed=9)  # of both signs
    value = FunctionOperator(lambda y, a: a @ y, 12, [matrix])
    return Made(value, {"FunctionOperator", "operator of products"}, matrix)


def of_cosines() -> Made:
    x = torch.rand(14, 5, generator=torch.Generator().manual_seed(10), dtype=torch.float64)
    unit = x / x.norm(dim=1, keepdim=True)
    w = (unit @ unit.mT).fill_diagonal_(0)
    root, kinds = w.sum(1).sqrt(), {"FactoredCosine", "operator of products"}
    return Made(FactoredCosine(x), kinds, torch.eye(14) - w / (root[:, None] * root))


class Own(Operator):
    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.shape, self.dtype, self.device = matrix, tuple(matrix.shape[:1]), matrix.dtype, matrix.device
        self.bound = matrix.abs().sum(1).amax()[None]

    def matmul(self, y: Tensor) -> Tensor:
        return self.matrix @ y


def of_a_user() -> Made:
    matrix = laplacian(W) + torch.diag(torch.linspace(0, 1, 12).double())
    return Made(Own(matrix), {"Own", "operator of products"}, matrix)


def of_entries() -> Made:
    matrix = laplacian(W) + torch.diag(torch.linspace(0.1, 1, 12).double())
    operator = SymmetricOperator(DensePattern((12,)), torch.diag(matrix.diagonal()) - matrix, matrix.diagonal().clone())
    return Made(operator, {"SymmetricOperator", "operator without affinities"}, matrix)


TWO, TWO_ARCS, NAMES = padded(W, SMALL), padded(ARCS, ARCS[:7, :7]), ("symmetric", "random_walk", "unnormalized")
OPERATORS: dict[str, Callable[[], Made]] = {
    **{f"Laplacian, {name}": lambda n=name: of_laplacian(W, n) for name in NAMES},
    **{f"Laplacian, {name}, batch": lambda n=name: of_laplacian(TWO[0], n, TWO[1]) for name in NAMES[:2]},
    "Laplacian, dense": lambda: of_laplacian(W, "symmetric", sparse=False),
    "Laplacian, isolated node": lambda: of_laplacian(LONELY, "random_walk"),
    "Laplacian, two components": lambda: of_laplacian(PARTS, "unnormalized"),
    "Laplacian with a mass": lambda: with_mass(W),
    "Laplacian of ImprovedWeights": of_improved,
    "mesh": mesh,
    "SignedLaplacian": lambda: of_signs("symmetric"),
    "SignedLaplacian, unnormalized": lambda: of_signs("unnormalized"),
    "MagneticLaplacian": lambda: magnetic(ARCS, 0.2),
    "MagneticLaplacian, unnormalized": lambda: magnetic(ARCS, 0.1, "unnormalized"),
    "MagneticLaplacian, several charges": lambda: magnetic(ARCS, [0.1, 0.25]),
    "MagneticLaplacian, batch": lambda: magnetic(TWO_ARCS[0], 0.2, mask=TWO_ARCS[1]),
    "FunctionOperator": by_function,
    "FactoredCosine": of_cosines,
    "user's Operator": of_a_user,
    "SymmetricOperator": of_entries,
}


# --- Eigenpairs -------------------------------------------------------------------------------------------------------


def pairs_of(operator: Callable[[], Made], k: int = K, **options: Any) -> Made:
    made = operator()
    kinds = {*made.kinds, "pairs", *(["largest"] if options.get("largest") else [])}
    return dataclasses.replace(made, value=made.pairs(made.value, k, **options), kinds=kinds)


def embedded(model: Any, made: Made) -> Made:
    """The pairs that a method returns with its columns, of a graph of its points."""
    return dataclasses.replace(made, value=model.embed(X).pairs[0], kinds={*made.kinds, "pairs"})


def walk_of(rule: Any, weights: Any) -> Made:
    return of_laplacian(weights(X, rule(X)).to_dense(), "random_walk")


EIGENPAIRS: dict[str, Callable[[], Made]] = {
    **{name: lambda make=make: pairs_of(make) for name, make in OPERATORS.items()},
    "with missing pairs": lambda: pairs_of(OPERATORS["Laplacian, symmetric, batch"], 10, fill=True),
    "complex with missing pairs": lambda: pairs_of(OPERATORS["MagneticLaplacian, batch"], 9, fill=True),
    "largest": lambda: pairs_of(OPERATORS["SymmetricOperator"], largest=True),
    "largest, batch": lambda: pairs_of(OPERATORS["Laplacian, random_walk, batch"], largest=True),
    "largest, with a mass": lambda: pairs_of(lambda: with_mass(W), largest=True),
    "of eigenmaps": lambda: embedded(tl.LaplacianEigenmaps(2, tl.KNN(6)), walk_of(tl.KNN(6), tl.HeatKernel())),
    "of a diffusion map": lambda: embedded(tl.DiffusionMap(2, tl.KNN(6)), walk_of(tl.KNN(6), tl.DensityCorrected())),
    "of clustering": lambda: embedded(tl.SpectralClustering(3, tl.KNN(6)), walk_of(tl.KNN(6), tl.HeatKernel())),
}


# --- Methods × rules × weightings -------------------------------------------------------------------------------------

N, NEW = 30, 6
LABELS = torch.full((N,), -1)
LABELS[:3], LABELS[10:13] = 0, 1


class OwnWeights(Weighting):
    """Weighting of a user's own: 1 / (1 + d²)."""

    def forward(self, x: Tensor, graph: tl.Graph) -> tl.Graph:
        return graph.with_weight(graph.weight / (1 + graph.pattern.squared_lengths(x)))

    def extend(self, edges: NewEdges, state: Tensor) -> Tensor:
        return edges.connectivity.log() - edges.squared_lengths.log1p()


class OwnRule:
    """Rule of a user's own, which joins points at distances below 0.8."""

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> tl.Graph:
        near = (torch.cdist(x, x) < 0.8).to(x.dtype) * (1 - torch.eye(x.shape[-2], dtype=x.dtype))
        return tl.Graph.from_dense(near if mask is None else near * mask[..., None] * mask[..., None, :], mask)


class OwnExtendingRule(OwnRule):
    """The same for new points."""

    def with_state(self, x: Tensor) -> tuple[tl.Graph, Tensor]:
        return self(x).to_sparse(), x.new_zeros(len(x))

    def extend(self, queries: Tensor, x: Tensor, state: Tensor) -> Extension:
        distance = torch.cdist(queries, x, compute_mode="donot_use_mm_for_euclid_dist")
        least, nearest = distance.min(1)
        query, point = ((distance > 0) & (distance < 0.8)).nonzero(as_tuple=True)
        return Extension(query, point, torch.ones(len(query), dtype=x.dtype), torch.where(least == 0, nearest, -1))


class Numbers(tl.HarmonicFunction):
    """Numbers in the place of labels."""

    def forward(self, x: Any, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask=mask, targets=self.of(labels))

    def fit(self, x: Any, labels: Tensor) -> Any:
        return super().fit(x, targets=self.of(labels))

    def out_of_sample(self, x: Any, labels: Tensor, x_new: Tensor, *, mask: Tensor | None = None) -> Any:
        return super().out_of_sample(x, None, x_new, mask=mask, targets=self.of(labels))

    @staticmethod
    def of(labels: Tensor) -> Tensor:
        number = torch.arange(labels.shape[-1], dtype=torch.float64)
        unknown = (number > 2) & (number < 9)
        return torch.stack([number.sin(), number], -1).masked_fill(unknown[:, None], torch.nan).expand(*labels.shape, 2)


METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "LaplacianEigenmaps": lambda r, w: tl.LaplacianEigenmaps(2, r, w),
    "LaplacianEigenmaps, unnormalized": lambda r, w: tl.LaplacianEigenmaps(2, r, w, normalization="unnormalized"),
    "LaplacianEigenmaps, unit": lambda r, w: tl.LaplacianEigenmaps(2, r, w, scale="unit"),
    "LaplacianEigenmaps, orthonormal": lambda r, w: tl.LaplacianEigenmaps(2, r, w, scale="orthonormal"),
    "LaplacianEigenmaps, separate": lambda r, w: tl.LaplacianEigenmaps(2, r, w, components="separate"),
    "DiffusionMap": lambda r, w: tl.DiffusionMap(2, r, w, alpha=0.7, time=1.5),
    "SpectralClustering": lambda r, w: tl.SpectralClustering(2, r, w, assign_labels="cluster_qr"),
    "SpectralClustering, Shi–Malik": lambda r, w: tl.SpectralClustering(
        2, r, w, variant="shi_malik", assign_labels="cluster_qr"
    ),
    "HarmonicFunction": lambda r, w: tl.HarmonicFunction(r, w),
    "HarmonicFunction, numbers": lambda r, w: Numbers(r, w),
    "LabelSpreading": lambda r, w: tl.LabelSpreading(r, w),
    "EigenmapsRegression": lambda r, w: tl.EigenmapsRegression(2, r, w),
}
RULES: dict[str, Any] = {
    "KNN": tl.KNN(6),
    "KNN, union, cosine": tl.KNN(6, "union", metric="cosine"),
    "KNN, mutual": tl.KNN(9, "mutual"),
    "NME": tl.KNN("nme"),
    "Radius": tl.Radius(0.7),
    "Precomputed": tl.Precomputed("affinity"),
    "stored distances": tl.Precomputed("distance"),
    "metric of pairs, given": tl.KNN(6, metric=tl.Precomputed("distance")),
    "metric of pairs, a function": tl.Radius(0.9, metric=lambda x, y: (x[:, None] - y).abs().amax(-1)),
    "metric of pairs, of SciPy": tl.KNN(7, "union", metric="cityblock"),
    "Landmarks": tl.Landmarks(10, 4),
    "rule of a user": OwnRule(),
    "extending rule of a user": OwnExtendingRule(),
}
WEIGHTINGS: dict[str, Callable[[], Weighting | None]] = {
    "default": lambda: None,
    "SimpleWeights": tl.SimpleWeights,
    "KernelWeights": lambda: tl.KernelWeights(lambda d2: 1 / (1 + d2)),
    "HeatKernel, component-median": lambda: tl.HeatKernel("component-median"),
    "HeatKernel, learnable": lambda: tl.HeatKernel(0.5, learnable=True).double(),
    "SelfTuning": lambda: tl.SelfTuning(3),
    "DensityCorrected": lambda: tl.DensityCorrected(0.7, tl.SelfTuning(3)),
    "ImprovedWeights": lambda: tl.ImprovedWeights(0.5),
    "weighting of a user": OwnWeights,
}
OF_POINTS: dict[str, Callable[[], Any]] = {
    "MDS": lambda: tl.MDS(2),
    "Isomap": lambda: tl.Isomap(2, tl.KNN(6)),
    "LLE": lambda: tl.LLE(2, tl.KNN(6)),
    "KernelPCA": lambda: tl.KernelPCA(2, gamma=0.3),
    "KernelPCA, poly": lambda: tl.KernelPCA(2, "poly", degree=2),
    "MDS, of distances": lambda: tl.MDS(2, metric=tl.Precomputed("distance")),
    "KernelPCA, of a kernel": lambda: tl.KernelPCA(2, tl.Precomputed("kernel")),
}


# --- What is refused --------------------------------------------------------------------------------------------------


# Those of the doors, and those where a consumer finds out as it computes and "says" words, as a regular expression.
REFUSALS = rows_of(REFUSES) + rows_of(Path(__file__).with_name("refused.txt").read_text())


def refused(kinds: set[str], consumer: str) -> list[Refusal]:
    """The rows for a consumer, or for a method whose fit it is, of objects that are of some kinds."""
    names = {consumer, *kinds}
    rows = [row for row in REFUSALS if any(fnmatch.filter(names, pattern) for pattern in row.consumers)]
    return [row for row in rows if all(kinds & {*kind.split(" | ")} for kind in row.kinds)]


def says(row: Refusal) -> str:
    """The message of a row as a regular expression."""
    return re.sub(r"\\{.*?\\}", ".*", re.escape(row.says)) if row.error != "says" else row.says


def page() -> str:
    """The table of docs/combinations.md; ``python tests/combined.py`` writes it."""
    rows = [(" + ".join(row.kinds).replace(" | ", " or "), ", ".join(row.consumers), row.because) for row in REFUSALS]
    lines = [("kind", "refused by", "because"), ("---",) * 3, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("*", "\\*")


def written(text: str) -> str:
    """The page with its table made anew."""
    head, rest = text.split("| kind |")
    return head + page() + rest[rest.index("\n\n") + 1 :]


PAGE = Path(__file__).parents[1] / "docs/combinations.md"
if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
