"""What is refused: each call with its error, which names the argument, what arrived and the way out.

No test follows advice that needs a GPU or another device, another torch or compiler, more memory than there is, scanpy
(tests/test_anndata.py has a stand-in), a rank that comes late, or numbers that nobody has found yet: a Hermitian matrix
of which a solver misses a copy, flips of edges without an end, a linear solve of a gradient that does not converge.
"""

import copy
import functools
import re
from dataclasses import replace

import networkx
import numpy as np
import pandas
import pytest
import scipy.linalg
import torch
from matplotlib.figure import Figure
from scipy.sparse import csr_array
from scipy.sparse.linalg import aslinearoperator
from sklearn.exceptions import NotFittedError
from sklearn.manifold import spectral_embedding
from torch_geometric.data import Data

import torch_lapeig as tl
from problems import cycle, dense_values, every, ignoring, path, points, polygon, surface
from torch_lapeig import KNN, Graph, Laplacian, LaplacianEigenmaps, Precomputed, eigen, eigenpairs, knn_graph, methods
from torch_lapeig import sklearn as estimators
from torch_lapeig.plots import plot_graph

X = points(10, 2)
NAN, INF = X.clone(), X.clone()
NAN[3, 1], INF[0, 0] = torch.nan, torch.inf
GRAPH = knn_graph(X, 3)
LAPLACIAN = Laplacian(GRAPH)
MASK = torch.ones(10, dtype=torch.bool)
AFFINITIES, APART = Precomputed("affinity"), Precomputed("distance")
GIVEN, DISTANCES = LaplacianEigenmaps(1, AFFINITIES), tl.MDS(2, metric=Precomputed("distance"))
MASKED = np.ma.masked_array(X.numpy(), X.numpy() == X.numpy().max())
LABELS, CLASSES, FAR = torch.arange(10) % 2, np.arange(10) % 3, torch.arange(10) + 10**15
SAME = torch.ones(10, 2)
BOTH = torch.tensor([[0, 1], [1, 0]])
ROW, COL = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
DENSE = 1 - np.eye(8)
SHEET, NEW = surface(60), surface(9, seed=1)
FEW = torch.full((60,), -1)
FEW[:6] = torch.arange(6) % 3
PAIRS, SIGNAL = eigenpairs(Laplacian(Graph.from_dense(path(4))), 3), points(4, 2)
SHARDED, HEAT = replace(PAIRS, is_sharded=True), methods.HeatResponse([1.0])
MASS, TWO = torch.rand(6, generator=torch.Generator().manual_seed(1)).double() + 1, torch.tensor([2])
CORNERS, FACES = points(4, 3), torch.tensor([[0, 1, 2], [1, 0, 3], [2, 1, 3], [0, 2, 3]])
RING = tl.DirectedGraph.from_dense(torch.eye(5).double().roll(1, 1)).to_sparse()
ASKEW, CROOKED = torch.tensor([[1.0, 2.0], [0.5, 1.0]]), torch.tensor([[1.0, 1j], [1j, 1.0]])
EYE, CUBE = torch.eye(6).double(), torch.cartesian_prod(*[torch.arange(2.0)] * 3).double()
MEMBERS = torch.tensor([[0, 1], [0, 0]])
HIDDEN = torch.ones((), dtype=torch.float64, requires_grad=True)
SPOILT = {"forward": lambda self, x, graph: tl.HeatKernel(1.0)(x.fill_(torch.nan), graph)}


def massed(mass, normalization="unnormalized"):
    return eigenpairs(Laplacian(Graph.from_dense(path(6)), normalization), 2, mass=mass)


def spreading(x=SHEET, labels=FEW, **options):
    return tl.LabelSpreading(KNN(6), **options)(x, labels)


# Below the name of its error each call, "→", and words of the message, a regular expression.
REFUSED = r"""
ValueError
# Filters and encodings by eigenpairs
SpectralFilter(HEAT)(SHARDED, torch.ones(4, 1)) → pairs must be of a graph on one process
StableEncoding(HEAT, lambda a: a)(SHARDED) → rows on several ranks
spectral_signature(PAIRS, lambda v: v[:, 0]) → shape \(n, m\) .*\(3, 1\), got
spectral_signature(PAIRS, lambda v: v * torch.nan) → result of phi must be finite
spectral_signature(PAIRS, lambda v: 1 / v) → result of phi must be finite.*0 too
SpectralFilter(torch.nn.Linear(1, 3).double())(PAIRS, SIGNAL) → phi must return 1 or 2 responses
SpectralFilter(HEAT)(PAIRS, SIGNAL[:3]) → x must have shape \(4, 'C'\)
SpectralFilter(HEAT)(PAIRS, SIGNAL, mask=torch.ones(3) > 0) → mask must have shape
HeatResponse([-1.0]) → times must be positive
PolynomialResponse(-1) → order must be at least 0
WaveResponse([1.0], 0) → sigma must be positive
WaveletResponse(31) → levels must be at most 30
WaveletResponse(1, bound=0.5)(torch.ones(1, 1)) → bound must be at least .*, 1, got 0.5
StableEncoding(HEAT, lambda a: a.sum(-1))(PAIRS) → rho must return shape
StableEncoding(HEAT, torch.nn.Identity(), columns=0) → columns must be at least 1
SignInvariant(lambda v: v.sum())(PAIRS.vectors) → phi must return shape
SignInvariant(torch.nn.Identity())(PAIRS.values) → vectors must have shape \(..., N
SignInvariant(torch.nn.Identity())(PAIRS.vectors, PAIRS.values[:2]) → values must have shape \(3,\)
canonicalize(PAIRS, tolerance=0) → tolerance must be positive
AddSpectralFeatures(HEAT, 0) → k must be at least 1
# Operators
FactoredCosine(-torch.ones(3, 2)) → no negative entries .* got -1: .*similarity="shifted"
FactoredCosine(torch.tensor([[1.0, torch.nan], [1, 1]])) → x must be finite
FactoredCosine(torch.ones(3)) → x must have shape \(N, D\)
FactoredCosine(torch.ones(0, 3).to_sparse_csr()) → at least one row
FactoredCosine(torch.ones(3, 2), similarity="angle") → similarity
FactoredCosine(torch.sparse_csr_tensor([0, 2], [0, 0], torch.ones(2), (1, 2), check_invariants=False))
    → ascending columns in each row, each once
eigenpairs(FactoredCosine(torch.eye(5)), 1) → k must be at most the number of nodes of positive degree
eigenpairs(FactoredCosine(torch.zeros(5, 3)), 1) → nodes of positive degree
eigenpairs(FactoredCosine(torch.ones(5, 0)), 1) → nodes of positive degree
eigenpairs(FactoredCosine(torch.zeros(5, 3).to_sparse_csr()), 1) → nodes of positive degree
eigenpairs(FactoredCosine(torch.ones(1, 2)), 1) → nodes of positive degree
FunctionOperator(torch.clone, 0) → at least one graph with a node
FunctionOperator(lambda y: y + 1, 20) → must be a symmetric linear map
FunctionOperator(lambda y: y * torch.nan, 20) → the result of function must be finite
FunctionOperator(lambda y: y[:3], 20) → must return the shape \(20, 4\)
FunctionOperator(torch.neg, 20, bound=1.0) → eigenvalues in \[0, bound\]
FunctionOperator(torch.clone, 20, bound=torch.ones(2)) → bound must be a finite number
# Matrices and linear systems
eigenpairs(ASKEW, 1) → symmetric.* 1\.5
eigenpairs(ASKEW.to_sparse_coo(), 1) → symmetric.* 1\.5
eigenpairs(CROOKED, 1) → Hermitian.* 2
eigenpairs(torch.ones(2, 3), 1) → shape
eigenpairs(torch.tensor([[torch.nan]]), 1) → finite
eigh(torch.ones(2, 3)) → shape
eigh(torch.full((2, 2), torch.nan)) → finite
eigh(ASKEW) → symmetric.* 1\.5
eigh(CROOKED) → Hermitian.* 2
eigh(-torch.eye(2)).matrix_function(torch.log) → finite
solve_linear(SymmetricOperator(DensePattern((6,)), 0 * EYE, MASS), MASS) → rhs must have shape \(6, 'm'\), got \(6,\)
# Masses, meshes, directed graphs, landmarks
massed(MASS.index_fill(0, TWO, 1e-310)) → mass must be positive.*, got 1e-310 at node \[2\]
massed(MASS.index_fill(0, TWO, torch.nan)) → mass must be finite
massed(MASS[:5]) → mass must have shape \(6,\)
massed(MASS, "symmetric") → use Laplacian\(graph, "unnormalized"\)
massed(EYE + EYE.roll(1, 0)) → mass must be symmetric
massed(EYE - 1) → mass must be positive definite
eigenpairs(EYE, 2, mass=-EYE) → mass must be positive definite, got -1.0e\+00 on its diagonal$
massed(torch.ones(6, 6).double() + 1e-18 * EYE) → mass must be positive definite
massed(EYE[:5, :5]) → mass must have shape \(6,\) or \(6, 6\)
massed(EYE * torch.nan) → mass
mesh_laplacian(CUBE, torch.tensor([[0, 1, 2, 2]])) → four different
mesh_laplacian(CUBE, torch.tensor([[0, 1, 2, 4], [4, 2, 1, 0]])) → different, got 1 .*; drop copies
mesh_laplacian(CUBE, torch.tensor([[0, 1, 2, 3]])) → volume
mesh_laplacian(CUBE, torch.tensor([[0, 1, 2, 4]]), intrinsic=True) → intrinsic
mesh_laplacian(CUBE, torch.tensor([[0, 1, 2]]), intrinsic=True, mass="consistent") → intrinsic
mesh_laplacian(CUBE, torch.tensor([[0, 1, 2]]), mass="full") → mass
mesh_laplacian(CORNERS, FACES[:, :2]) → faces must have shape \(F, 3\)
mesh_laplacian(CORNERS, 0 * FACES - 1) → faces must hold at least one triangle
mesh_laplacian(CORNERS, FACES - 2) → faces must lie in \[-1, 4\)
mesh_laplacian(CORNERS, FACES.index_fill(1, 0 * TWO, -1)) → got a row with some -1
mesh_laplacian(CORNERS, FACES[:, [0, 0, 1]]) → faces must have three different vertices
mesh_laplacian(CORNERS, torch.cat([FACES, FACES[:1].roll(1, 1)])) → faces must be different
mesh_laplacian(CORNERS[:, :1], FACES) → vertices must have shape
mesh_laplacian(torch.stack([CORNERS, CORNERS / 0]), FACES) → vertices must be finite
mesh_laplacian(torch.stack([CORNERS, CORNERS]), FACES.expand(3, -1, -1)) → faces must have shape
mesh_laplacian(CORNERS, FACES, mask=MASK[:4] & (torch.arange(4) < 3)) → inside the mask
mesh_laplacian(CORNERS, FACES, mask=MASK[:3]) → mask must have shape
MagneticLaplacian(RING).eigenpairs(2, degeneracy="exact") → each eigenvalue twice
MagneticLaplacian(RING).eigenpairs(2, cluster_width=1e-3) → each eigenvalue twice
MagneticLaplacian(RING).eigenpairs(6) → nodes of positive degree, got k=6 with 5 of them
MagneticLaplacian(RING, torch.nan) → q must
MagneticLaplacian(RING, []) → q must
MagneticLaplacian(RING, torch.ones(2, 2)) → q must
MagneticLaplacian(RING, normalization="random_walk") → normalization must be one of 'symmetric', 'unnormalized'
SignedLaplacian(SignedGraph.from_dense(path(3)), "random_walk") → normalization must be one of 'symmetric'
SignedLaplacian(SignedGraph.from_dense(torch.zeros(0, 0))) → at least one graph with a node
eigenpairs(SignedLaplacian(SignedGraph.from_dense(torch.zeros(3, 3))), 1) → at most the number of nodes of positive
SignedGraph.from_dense(-path(4).triu()) → affinity must be symmetric
SignedGraph.from_edge_index(BOTH[:, :1], -torch.ones(1)) → must hold both directions
SignedGraph.from_edge_index(BOTH, torch.full((2,), torch.nan)) → edge_weight must be finite
DirectedGraph.from_edge_index(BOTH, torch.tensor([1.0, -1.0])) → edge_weight must be non-negative
DirectedGraph.from_edge_index(BOTH, torch.tensor([1.0, torch.inf])) → edge_weight must be finite
replace(RING, similarity=torch.ones(5)) → similarity must be None in a DirectedGraph
Graph.from_hyperedges(MEMBERS[[0, 0]], torch.ones(1)) → hyperedges of hyperedge_index must lie in \[0, 1\)
Graph.from_hyperedges(-MEMBERS) → nodes of hyperedge_index must lie in
Graph.from_hyperedges(MEMBERS, -torch.ones(1)) → hyperedge_weight must be non-negative
Graph.from_hyperedges(MEMBERS, torch.full((1,), torch.nan)) → hyperedge_weight must be finite
Graph.from_hyperedges(MEMBERS, torch.ones(1, 1)) → hyperedge_weight must have shape \(E,\)
Graph.from_hyperedges(MEMBERS[0]) → hyperedge_index must have shape \(2, E\)
Landmarks(3) → r must be at most m, got r=5 with m=3
Landmarks(10, 1) → r must be at least 2, got 1
Landmarks(10, choose="best") → choose must be .*got 'best'
LaplacianEigenmaps(5, Landmarks(5))(points(100, 2)) → n_components must be smaller than the number of nodes of positive
# Graphs and weights, eigenpairs, methods, losses, estimators
knn_graph(NAN, 3) → x must be finite, got 1 NaN or Inf of 20 .*\(3, 1\)
radius_graph(INF, 1.0) → x must be finite
knn_graph(X[None, None], 3) → got .1, 1, 10, 2.
nearest_neighbors(X, 10) → k must be smaller than the number of points, got k=10
nearest_neighbors(X, 3, mask=torch.arange(10) < 3) → k=3 with 3 points
KNN(5, recall=0) → recall must
nearest_neighbors(X, 3, recall=1.5) → recall must
knn_graph(X, 0) → k must be at least 1, got 0
knn_graph(X[:1], 1) → at least 2 points
knn_graph(X[:, :0], 1) → dimension
knn_graph(X[None][:0], 1) → got \(0, 10, 2\)
KNN(3, "both") → 'union', 'mutual', 'mean', got 'both'
radius_graph(X, 0.0) → radius must be positive
Radius(float("nan")) → radius must be positive
radius_graph(X, 1e-170) → radius must be at least 1.5e-154 .* got 1.0e-170
radius_graph(X, 1e-9) → use a larger radius
knn_graph(X, 3, mask=MASK[:4]) → mask must have shape \(10,\)
HeatKernel(0.0) → t must be positive
HeatKernel("mean") → 'median', 'component-median', 'steepest', got 'mean'
HeatKernel()(X[:5], GRAPH) → shape \(10, 'D'\).*got \(5, 2\)
Graph.from_dense(path(4).triu()) → symmetric.*average two measurements .* add the other triangle
Graph.from_dense(-path(4)) → non-negative, got a minimum of -1
Graph.from_dense(path(4) * torch.nan) → affinity must be finite
Graph.from_dense(path(4)[:3]) → \(N, N\) or \(B, N, N\), got \(3, 4\)
Graph.from_dense(path(4), torch.arange(4) < 3) → zero in the rows that mask
Graph.from_edge_index(torch.tensor([[0, 5], [5, 0]]), num_nodes=3) → must lie in \[0, 3\), got 0 to 5
Graph.from_edge_index(torch.tensor([[0, -1], [-1, 0]])) → got -1 to 0
Graph.from_edge_index(torch.zeros(3, 2).long()) → \(2, E\), got \(3, 2\)
Graph.from_edge_index(BOTH, -torch.ones(2)) → non-negative
Graph.from_edge_index(BOTH, torch.full((2,), torch.nan)) → be finite
Graph.from_edge_index(BOTH, torch.ones(3)) → shape \(2,\).*got \(3,\)
Graph.from_edge_index(BOTH, batch=torch.tensor([1, 0])) → ascending
Graph.from_edge_index(BOTH, batch=torch.tensor([0, 1])) → between graphs
Graph.from_scipy(csr_array([[0, -1.0], [-1.0, 0]])) → non-negative
Graph.from_dense(path(3)).edge_index → to_sparse
Graph.from_dense(path(3)[None]).to_scipy() → one graph
KNN(3, metric="l1") → 'euclidean', 'cosine'
KNN(3, metric=AFFINITIES) → metric must be Precomputed\("distance"\), got Precomputed\(kind='affinity'\)
KNN(3, metric="hamming", recall=0.9) → metric must be "euclidean" or "cosine" for an approximate search, got hamming
Landmarks(5, metric="hamming") → metric must be one of 'euclidean', 'cosine', got 'hamming'
knn_graph(X, 3, metric=APART) → distances must have shape \(10, 10\), got \(10, 2\)
knn_graph(X @ X.mT, 3, metric=APART) → distances must be (non-negative|zero from each point to itself)
knn_graph((-torch.cdist(X, X)).exp(), 3, metric=APART) → zero from each point to itself, got 1; for affinities use
knn_graph(torch.cdist(X, X).triu(), 3, metric=APART) → distances must be symmetric, got .* x \+ x.mT of one triangle
knn_graph(-torch.cdist(X, X), 3, metric=APART) → distances must be non-negative, got a minimum of -
knn_graph(torch.cdist(X, X) * 1e200, 3, metric=APART) → squares of distances must be finite, .*; rescale them
knn_graph(X, 3, metric=lambda x, y: x @ y.mT) → distances must be
knn_graph(X, 3, metric=lambda x, y: x) → distances must have shape .*, got \(10, 2\)
knn_graph(torch.cat([X, 0 * X]), 3, metric="correlation") → squares of distances must be finite
LaplacianEigenmaps(1, KNN(3, metric="hamming"))(X.clone().requires_grad_()) → has no derivatives: use x.detach\(\)
LLE(1, KNN(3, metric=APART)) → neighbors must have metric="euclidean" or "cosine", got KNN
LaplacianEigenmaps(1, KNN(3, metric=APART)).fit(torch.cdist(X, X)).frozen() → must have metric="euclidean" or "cosine"
LaplacianEigenmaps(1, KNN(3, metric=APART)).fit(torch.cdist(X, X)).transform(X) → of dimension 10, got .* 2
LaplacianEigenmaps(1, KNN(3, metric=APART))(X) → x must have shape \(N, N\) or \(B, N, N\)
HeatKernel()(X, knn_graph(torch.cdist(X, X), 3, metric=APART)) → distances must have shape \(10, 10\), got \(10, 2\)
nearest_neighbors(X, 3, backend="ann") → 'exact', 'faiss'
knn_graph(0 * X, 3, metric="cosine") → positive length, got 10 zero vectors
nearest_neighbors(X, 3, X[:, :1]) → queries must go with x of shape \(10, 2\)
nearest_neighbors(X, 11, X) → at most the number of points, got k=11
nearest_neighbors(X, 3, budget=0) → budget must be at least 1
knn_graph(1e20 * X.float(), 3) → x must be at most .*rescale
nearest_neighbors(X, 3, 1e200 * X) → queries must be at most
radius_neighbors(X, torch.ones(4)) → of shape \(10,\), got \(4,\)
radius_neighbors(X, -torch.ones(10)) → radius must be non-negative
Graph.from_edge_index(BOTH[:, :0], batch=torch.zeros(0, dtype=torch.int64)) → at least one node
Graph.from_dense(path(4).expand(2, 4, 4)).subgraph(torch.tensor([0, 5])) → of one graph, got nodes of several
GIVEN(GRAPH, mask=MASK) → has its own
DensityCorrected(1.5) → alpha must be a number in \[0, 1\], got 1.5
SelfTuning(0) → m must be at least 1
KernelWeights(torch.neg)(X, GRAPH) → finite, non-negative weights
HeatKernel(1.0)(NAN, GRAPH) → x must be finite
LaplacianEigenmaps(2, KNN(4), type("Spoiling", (SimpleWeights,), SPOILT)())(points(300, 2)) → x must be finite
replace(GRAPH, weight=-GRAPH.weight) → weight must be non-negative
replace(GRAPH, weight=GRAPH.weight * torch.inf) → weight must be finite
LaplacianEigenmaps(2, Precomputed("affinity"), HeatKernel()) → weights must be None
LaplacianEigenmaps(1, Precomputed("affinity"), components="separate").fit(torch.eye(3)) → no component of two or more
Laplacian(GRAPH, "left") → normalization must be one of
LAPLACIAN.matmul(X[:5]) → y must have shape \(10, 'm'\)
eigenpairs(LAPLACIAN, 11) → got k=11 with 10
eigenpairs(LAPLACIAN, 0) → k must be at least 1
eigenpairs(Laplacian(replace(GRAPH, weight=GRAPH.weight * 1e308)), 2) → laplacian must be finite
eigenpairs(LAPLACIAN, 2, tolerance=0.0) → tolerance must be positive
eigenpairs(EYE, 2, nearest=1.0, largest=True) → nearest must be None
eigenpairs(EYE.expand(3, 6, 6), 2, mass=EYE.expand(2, 6, 6))
    → mass must have shape \(3, 6\) or \(3, 6, 6\) beside .* got \(2, 6, 6\)
eigenpairs(EYE + 0j, 2, mass=EYE[:3, :3] + 0j) → mass must have shape
eigenpairs(EYE, 2, Lobpcg(), mass=EYE) → solver must be None
eigenpairs(EYE[None], 2, nearest=1.0) → nearest must be None.* one by one
eigenpairs(EYE, 2, ShiftInvert(), nearest=1.0) → solver must be None or Eigh
eigenpairs(EYE, 2, nearest=float("nan")) → nearest must be a finite number
eigenpairs(LAPLACIAN, 2, degeneracy="no") → 'mask', 'lorentz', 'exact'
eigenpairs(LAPLACIAN, 2, cluster_width=-1.0) → cluster_width must be positive
eigenpairs(Laplacian(Graph.from_dense(torch.zeros(0, 0))), 1, fill=True)
    → laplacian must be of at least one graph with a node, got shape \(0,\)
Lobpcg(guards=0) → guards must be at least 1
ShiftInvert(basis=2) → basis must be at least 3
SmoothedAggregation(coarsest=0) → coarsest must be at least 1
SmoothedAggregation(max_complexity=0.0) → max_complexity must be positive
component_eigenpairs(GRAPH, 0) → k must be at least 1
eigenpairs(LAPLACIAN, 2, on_failure="no") → 'warn', 'raise'
eigenpairs(LAPLACIAN, 11, Lobpcg(), fill=True) → solver must be Eigh\(\) or None to fill graphs of fewer than k=11
LaplacianEigenmaps(2, diffusion=-1.0) → diffusion must be .* at least 0
LaplacianEigenmaps(2, normalization="unnormalized", diffusion=1) → diffusion must be 0
Graph.from_edge_index(BOTH, batch=torch.tensor([0, 0, 1]), num_graphs=1) → num_graphs must be at least 2
knn_graph(NAN[None, 2:5], 5) → x must be finite
LaplacianEigenmaps(10, KNN(3))(X) → n_components=10 with 10
LaplacianEigenmaps(0) → n_components must be at least 1
LaplacianEigenmaps(2, scale="big") → 'degree', 'unit'
LaplacianEigenmaps(2, components="all") → 'joint', 'separate', 'error'
LaplacianEigenmaps(2).fit(X[None]) → \(N, D\), got a batch of .*\(1, 10, 2\)
MDS(10)(X) → smaller than the number of points.*n_components=10 with 10
LLE(1, KNN(3))(NAN) → x must be finite
MDS(3).fit(X) → positive eigenvalues.*n_components=3 with 2
MDS(2)(1e20 * X.float()) → the kernel of x must be finite.*rescale the points
KernelPCA(2, "poly").fit(X.float()).transform(1e20 * X.float()) → the kernel of x_new must be finite
DISTANCES(X) → \(N, N\) or \(B, N, N\), got \(10, 2\)
DISTANCES(-path(4)) → got a minimum of -1
MDS(2, metric="cosine") → Precomputed.* got 'cosine'
Isomap(1, KNN(3)).fit(torch.cat([X, X[:6] + 100, X[:5] - 100])) → 3 connected components, of 10, 6, 5 points
Isomap(2, KNN(4), landmarks=1) → landmarks must be at least 2
Isomap(2, KNN(4), landmarks=11)(X) → got 11 with 10 points
Isomap(landmarks=torch.tensor([1, 1])) → landmarks must be distinct, got 1
Isomap(1, KNN(4), landmarks=torch.tensor([1, 4, 10]))(X) → lie in \[0, 10\), got 1 to 10
Isomap(2, KNN(4), landmarks=2)(X) → n_components=2 with 2
LLE(2, KNN(3), reg=0.0) → reg must be positive
KernelPCA(2, "sigmoid") → 'rbf', 'linear', 'poly', got 'sigmoid'
KernelPCA(1, lambda x, y: x)(X) → shape \(10, 10\), got \(10, 2\)
KernelPCA(1, lambda x, y: torch.nan * x @ y.T)(X) → kernel must be finite
KernelPCA(2, gamma=-1.0) → gamma must be positive
eigenpairs(SymmetricOperator(DensePattern((10,)), NAN @ NAN.T, X[:, 0]), 2) → operator must be finite
SparseFactors(0.0) → shift must be positive
laplacian_smoothness(X[:, 0], GRAPH) → \(10, 'k'\)
LaplacianSmoothness(reduction="max") → 'weighted_mean', 'sum', 'none'
SpectralClustering(0) → n_clusters must be at least 1, got 0
SpectralClustering(2, variant="sm") → 'njw', 'shi_malik', got 'sm'
SpectralClustering(11, KNN(3)).fit(X) → n_clusters must be at most .* got n_clusters=11 with 10
SpectralClustering(3, Precomputed("affinity"))(torch.block_diag(path(2), torch.zeros(2, 2)))
    → positive degree, got n_clusters=3 with 2
SpectralClustering(2, AFFINITIES).fit(Graph.from_dense(path(4)[None])) → shape \(1, 4\).* fit the sets one by
normalized_cut(LABELS[:4], GRAPH) → shape \(10,\) .*got \(4,\)
normalized_cut(LABELS - 2, GRAPH) → −1 for no cluster, got a minimum of -2
normalized_cut(LABELS.float(), GRAPH) → \(10, 'K'\) if they are soft
normalized_cut(NAN, GRAPH) → labels must be finite
estimators.SpectralEmbedding(affinity="cosine").fit(X.numpy()) → one of 'nearest_neighbors', 'rbf', .* got 'cosine'
estimators.SpectralEmbedding(n_neighbors=11).fit(X.numpy()) → at most .* got n_neighbors=11 with n_samples=10
estimators.SpectralClustering(2, gamma=-1.0).fit(X.numpy()) → gamma must be a finite number of at least 0, got -1.0
estimators.SpectralClustering(11).fit(X.numpy()) → n_clusters must be at most .* got n_clusters=11 with 10
estimators.KernelPCA(3).fit(X.numpy()) → positive eigenvalues.*n_components=3 with 2; use fewer components
estimators.Isomap(n_neighbors=3, radius=1.0).fit(X.numpy()) → None with a radius, got n_neighbors=3 with radius=1
estimators.LocallyLinearEmbedding(n_neighbors=10).fit(X.numpy()) → smaller .* n_neighbors=10 with n_samples=10
estimators.LocallyLinearEmbedding(reg=-1.0).fit(X.numpy()) → reg must be positive
estimators.KernelPCA(kernel="polynomial").fit(X.numpy()) → kernel must be one of 'linear', .*, got 'polynomial'
estimators.ClassicalMDS(metric="cosines").fit(X.numpy()) → metric.* Got 'cosines' instead
estimators.SpectralClustering(2, affinity="precomputed").fit(csr_array(path(4).numpy()[:3])) → be square .* \(3, 4\)
estimators.SpectralClustering(2, affinity="linear").fit(X.numpy()) → got a minimum of -.* in affinity\(X\); use a
estimators.SpectralEmbedding(affinity=lambda x: x).fit(X.numpy()) → affinity\(X\) must have shape \(10, 10\), got \(10,
estimators.SpectralEmbedding(affinity="precomputed_nearest_neighbors").fit(-path(4).numpy())
    → X must hold distances, which are not negative, got a minimum of -1
estimators.SpectralEmbedding(affinity="precomputed_nearest_neighbors", n_neighbors=3).fit(csr_array(path(4).numpy()))
    → X must hold a distance to n_neighbors=3 samples in every row, got 1 in row 0
estimators.SpectralClustering(2, weights=HeatKernel()).fit(X.numpy()) → weights must be None with affinity='rbf'
estimators.SpectralEmbedding(eigen_tol=1e-3, solve=Solve(tolerance=1e-6)).fit(X.numpy()) → eigen_tol must be .auto. with
estimators.SpectralEmbedding(eigen_solver="eigh").fit(X.numpy()) → one of 'arpack', 'lobpcg', 'amg', got 'eigh'
SpectralClustering("best") → n_clusters must be .*eigengap.* got 'best'
SpectralClustering("eigengap", max_clusters=1) → max_clusters must be at least 2, got 1
KNN("nme", max_clusters=0) → max_clusters must be at least 1, got 0
KNN("nme", "both") → symmetrize must be one of
KNN("nme")(X[:1]) → x must hold at least 2 points
SpectralClustering("eigengap", min_clusters=0) → min_clusters must be at least 1, got 0
SpectralClustering("eigengap", max_clusters=3, min_clusters=4) → min_clusters must be at most max_clusters=3, got 4
SpectralClustering("eigengap", n_components=3) → n_components must be None with n_clusters="eigengap", got 3
SpectralClustering("eigengap", AFFINITIES).fit(0 * EYE) → n_clusters must be at most .* got n_clusters=2 with 0
SpectralClustering("eigengap", KNN(3)).path(X.expand(2, -1, -1)) → one set of points
SpectralClustering(2, assign_labels="qr") → 'discretize', got 'qr'
SpectralClustering(2, assign_labels="cluster_qr", n_components=3) → None or n_clusters=2 with .*cluster_qr.* got 3
spectral_loss(X[:, :0], GRAPH) → \(10, 'k'\)
LaplacianSmoothness(KNN(3))(X, GRAPH, MASK) → has its own
orthogonality(X[:, 0]) → \(N, k\) or \(B, N, k\), got \(10,\)
orthogonality(X, mask=MASK[:4]) → mask must have shape \(10,\)
orthogonality(X, mask=~MASK) → without valid rows
whiten(X, GRAPH, MASK) → has its own
Whitening(0) → n_components must be at least 1
Whitening(3)(X) → y must have 3 columns, got shape \(10, 2\)
Whitening(2).fit(X[None], Graph.from_dense(path(10)[None])) → one graph
Whitening(2).fit(X[:, [0, 0]], GRAPH) → 2 linearly independent.*about 1
Whitening(2).fit(NAN, GRAPH) → y must be finite
# Parts of graphs
SparsePattern(ROW.flip(0), COL.flip(0), (3,)) → row and col .* ascending .* got \(2, 1\) before \(1, 2\)
SparsePattern(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0]), (2,)) → each edge once.* got \(0, 1\) before
SparsePattern(ROW[:3], COL[:3], (3,)) → both directions of every edge, got \(1, 2\) without \(2, 1\)
SparsePattern(ROW, COL[1:], (3,)) → one length, got 4 and 3
SparsePattern(ROW, COL, (2, 2)) → nodes of one graph of the batch, got an edge \(1, 2\)
SparsePattern(torch.arange(2), torch.arange(2), (2,), loops=False) → loops must be None or True where
SparsePattern(ROW[None], COL, (3,)) → row must have shape \(E,\), got \(1, 4\)
SparsePattern(ROW, COL, (2**32, 2**32)) → shape must be at most 2147483647, got 4294967296
DensePattern((1, 2, 3)) → shape must be \(N,\) or \(B, N\), got \(1, 2, 3\)
Graph(SparsePattern(ROW, COL, (3,)), torch.arange(4.0)) → weight must be symmetric.*by up to 1
Graph(GRAPH.pattern, GRAPH.to_dense()) → weight must have shape \(\d+,\) to go with the edges, got \(10, 10\)
replace(GRAPH, mask=MASK[1:]) → mask must have shape \(10,\)
replace(GRAPH, mask=~MASK) → weight must be zero in the rows that mask
replace(GRAPH, similarity=X[:, 0].abs().float()) → similarity must have shape \(10,\) and dtype torch.float64
replace(GRAPH, similarity=0 * X[:, 0]) → similarity must be positive
replace(GRAPH, recall=2) → recall must be a number in \[0, 1\], got 2
GRAPH.pattern.matmul(GRAPH.weight[1:], X) → values must have shape \(\d+,\) to go with the edges
GRAPH.pattern.direct_matmul(GRAPH.weight, X[1:]) → blocks must have shape \(10, m\), got \(9, 2\)
# Nodes at 0, alignment, rules of a user
eigenpairs(LAPLACIAN, 2, fixed=MASK[:9]) → fixed must have shape \(10,\)
eigenpairs(LAPLACIAN, 2, fixed=torch.tensor([10])) → fixed must lie in \[0, 10\)
eigenpairs(LAPLACIAN, 2, fixed=torch.tensor([[0]])) → fixed must be numbers \(M,\)
eigenpairs(LAPLACIAN, 2, fixed=torch.arange(9)) → k must be at most
align(SHEET, SHEET[:2], torch.arange(2)) → rows must determine the rotation of 3 columns
align(SHEET, SHEET[:, :2]) → reference must have shape \(60, 3\)
align(SHEET, SHEET, how="affine") → how must be one of
LaplacianEigenmaps(2, lambda x, mask=None: knn_graph(x[:9], 3))(X) → graph of shape \(10,\), one node .* got \(9,\)
Isomap(2, lambda x, mask=None: knn_graph(x[:9], 3))(X) → graph of shape \(10,\), one node for each point, got \(9,\)
LaplacianEigenmaps(2, lambda x, mask=None: knn_graph(x, 3))(X, mask=LABELS > 0) → neighbors must be zero in the rows
LaplacianEigenmaps(2, lambda x, mask=None: knn_graph(x, 3, mask=~mask))(X, mask=LABELS > 0) → must have the mask of the
GRAPH.pattern.products(torch.ones(10, 3), torch.ones(10, 2)) → blocks must have shape \(10, m\), got \(10, 2\)
# Numbers that count nothing
KNN(10**400) → k must be at most 2147483647, got an integer of 1329 bits
MDS(2**40)(X[None]) → n_components must be at most 1048576, got 1099511627776
SpectralClustering(2, n_init=10**12) → n_init must be at most 2147483647, got 10{12}
ShiftInvert(max_products=10**30) → max_products must be at most 2147483647, got 10{30}
ShiftInvert(seed=2**32) → seed must be at most 4294967295, got 4294967296
HarmonicFunction(KNN(3), n_classes=2**40) → n_classes must be at most 1048576
normalized_cut(FAR, KNN(3)(X)) → labels must be counted from 0
Graph.from_edge_index(2**40 * BOTH) → nodes, counted from 0, got 1099511627776 among 2 edges; .* num_nodes
Graph.from_edge_index(BOTH, num_nodes=2**31) → num_nodes must be at most 2147483647
Graph.from_edge_index(BOTH, batch=torch.tensor([0, 0]), num_graphs=2**40) → at most 1048578, got 1099511627776
laplacian_positional_encoding(BOTH, 10**30, 2) → nodes must be at most 2147483647
HeatKernel(10**400) → t must be positive and finite, got an integer of 1329 bits
# Few labels
spreading(labels=torch.full((60,), -1)) → at least one label, got −1 for every
spreading(labels=torch.zeros(60, 2)) → at least one label, got zeros for
spreading(labels=FEW - 1) → labels must be at least −1, .* got -2
spreading(n_classes=2) → smaller than n_classes=2, got 2
spreading(labels=FEW[:50]) → labels must have shape \(60,\), .* got \(50,\)
spreading(labels=torch.ones(50, 2)) → soft labels must have shape
spreading(labels=torch.ones(60, 2), n_classes=3) → \(60, 3\), a row
spreading(labels=torch.full((60, 2), torch.nan)) → labels must be finite
spreading(labels=torch.full((60, 2), -1.0)) → labels must be non-negative
spreading(x=SHEET * torch.nan) → x must be finite
LabelSpreading(alpha=0) → alpha must be above 0 and below 1
LabelSpreading(class_prior="equal") → class_prior must be one of 'labels', 'uniform'
HarmonicFunction(class_prior=[1.5, -0.5]) → positive numbers that sum to 1
spreading(class_prior=[0.5, 0.5]) → share for each of 3 classes, got 2
HarmonicFunction(n_classes=0) → n_classes must be at least 1
HarmonicFunction()(SHEET, targets=SHEET[:5]) → targets must have shape \(60,\) or \(60, 'm'\)
HarmonicFunction()(SHEET, targets=SHEET, known=torch.zeros(60, dtype=torch.bool)) → hold at least one target, got NaN or
HarmonicFunction()(SHEET, targets=SHEET.log()) → targets must be finite
HarmonicFunction()(torch.cat([SHEET, NEW + 99]), targets=torch.cat([SHEET, NEW * torch.nan])) → known in each component
HarmonicFunction().fit(SHEET, targets=SHEET).predict_proba() → a fit of labels, got one of targets; use predict
HarmonicFunction(AFFINITIES, HeatKernel()) → weights must be None with Precomputed
HarmonicFunction(unreached="zero") → unreached must be one of 'nearest'
HarmonicFunction(AFFINITIES, unreached="nearest") → needs points, got neigh
EigenmapsRegression(61, KNN(6))(SHEET, FEW) → n_components must be at most
EigenmapsRegression(2, ridge=0) → ridge must be positive
HarmonicFunction().fit(SHEET[None], FEW[None]) → fit takes one set of points
HarmonicFunction(KNN(6)).fit(SHEET, FEW).transform(NEW[:, :2]) → of dimension 3
HarmonicFunction(KNN(6)).out_of_sample(SHEET, FEW, NEW[None]) → x_new must have shape \(Q, D\)
HarmonicFunction(AFFINITIES).fit(KNN(6)(SHEET), FEW).transform(-torch.ones(1, 60).double()) → must be non-negative
# Encodings
laplacian_positional_encoding(BOTH, 2, 0) → k must be at least 1
laplacian_positional_encoding(BOTH, 1, 2) → edge_index must lie in \[0, 1\)
laplacian_positional_encoding(BOTH, torch.tensor([1, 0]), 2) → nodes must be ascending
laplacian_positional_encoding(BOTH, torch.tensor([0, 1]), 2) → nodes of the same graph only
laplacian_positional_encoding(BOTH[:, :1], 2, 1) → both directions
laplacian_positional_encoding(BOTH, 2, 1, torch.ones(3)) → edge_weight must have shape \(2,\)
laplacian_positional_encoding(BOTH, 2, 1, -torch.ones(2)) → non-negative
laplacian_positional_encoding(BOTH.T[:1], 2, 1) → shape \(2, E\), got \(1, 2\)
AddLaplacianPE(1, "index_pe") → attr_name must be without 'index'
AddLaplacianPE(1)([Data(edge_index=BOTH + 1, num_nodes=2)] * 2) → edge_index must lie in \[0, num_nodes\)
AddMagneticPE(1, eigenvalues="face") → eigenvalues must be without 'index' and 'batch'
AddLaplacianPE(1)(object()) → data must be homogeneous
# Samplers
NeighborhoodSampler(knn_graph(X[None], 3)) → must be one graph, got a batch
NeighborhoodSampler(GRAPH, 10) → batch_size must be above neighbors=10 .* got 10
NeighborhoodSampler(GRAPH, neighbors=0) → neighbors must be at least 1
NeighborhoodSampler(GRAPH, rank=2) → rank and num_replicas must be given together
NeighborhoodSampler(GRAPH, rank=2, num_replicas=2) → rank must be below num_replicas=2
NeighborhoodSampler(GRAPH).set_epoch(-1) → epoch must be at least 0
EdgeSampler(GRAPH, 3) → batch_size must be even
EdgeSampler(Graph.from_dense(torch.eye(3))) → graph must have an edge
EdgeSampler.pairs(X[:3]) → rows must be even in number
# Starts
spectral_init(torch.tensor([[0, 1], [1, 2]])) → both directions
spectral_init(csr_array(-DENSE)) → non-negative
spectral_init(csr_array(DENSE * np.nan)) → finite
spectral_init(knn_graph(points(9, 2, batch=2), 3)) → graph must be one graph
spectral_init(csr_array((5, 5))) → graph must have edges of positive weight
spectral_init(csr_array(DENSE), 0) → k must be
spectral_init(csr_array(DENSE), scale="pca") → scale must be
spectral_init(csr_array(DENSE), points=X[:7]) → points must have shape \(8, D\)
spectral_init(csr_array(DENSE), points=NAN[:8]) → points must be finite
spectral_init(csr_array(DENSE), points=csr_array(NAN[:8])) → must be finite
spectral_init(csr_array(DENSE), points=X[:7][0]) → points must have shape \(N
# Diffusion maps
DiffusionMap(alpha=1.5) → alpha must
DiffusionMap(time=-1) → time must
DiffusionMap("gap") → n_components must be one of 'eigengap', got 'gap'
DiffusionMap("eigengap", max_components=0) → max_components must be at least 1, got 0
DiffusionMap("eigengap", AFFINITIES).fit(0 * EYE) → n_components must be smaller than .* got n_components=1 with 0
LaplacianEigenmaps(2, KNN(3), diffusion=float("inf"), drop_trivial=False) → diffusion must be finite
DiffusionMap(2, Precomputed("affinity"), alpha=-1) → alpha must
# Labels of estimators
estimators.LabelSpreading(alpha=1.0).fit(X.numpy(), CLASSES) → alpha must be above 0 and below 1, got 1.0
estimators.LabelSpreading().fit(X.numpy(), np.full(10, -1)) → y must hold at least one class
estimators.LabelSpreading("poly").fit(X.numpy(), CLASSES) → kernel must be one of 'rbf', 'knn', got 'poly'
estimators.LabelSpreading(weights=HeatKernel()).fit(X.numpy(), CLASSES) → weights must be None with kernel="?'?rbf
estimators.LabelSpreading("knn", n_neighbors=10).fit(X.numpy(), CLASSES) → n_neighbors must be smaller than
# Singular triplets and pictures
svd(MASS, 3) → matrix must be \(m, n\) or \(B, m, n\), from 1 on, got \(6,\)
svd((torch.neg, torch.neg), 3) → shape must be \(m, n\)
svd(X, 3) → k must be at most 2
svd(X, 2, shape=(3, 3)) → shape and parameters must be left out with a matrix
svd(X, 2, parameters=[X]) → shape and parameters must be left out with a matrix
svd(NAN, 2) → matrix must be finite, got 1 NaN
plot_embedding(SHEET[None]) → of shape \(N, k\), got \(1, 60, 3\): of a batch
plot_embedding(SHEET[:, 0]) → of shape \(N, k\), got \(60,\)$
plot_embedding(SHEET / 0) → must be finite, got NaN or infinite values in 60 rows
plot_embedding(SHEET, columns=(0, 3)) → two numbers from 0 to 2
plot_embedding(SHEET, parts=[[60]]) → parts must hold numbers of nodes from 0 to 59
plot_embedding(SHEET, parts=[]) → axes must be one for each of at least one part
plot_embedding(SHEET, [1, 2]) → one for each of the 60 points, got shape \(2,\)
plot_embedding(SHEET, images=SHEET) → images must be of shape \(60, height, width\)
plot_embedding(SHEET, new=SHEET[:, :1]) → columns must be two numbers from 0 to 0
plot_embedding(MASKED) → must be finite, got NaN or infinite values in 1 rows
plot_spectrum([0.0, np.nan]) → without NaN
plot_graph(knn_graph(X[None], 3), X) → must be one graph, got a batch
plot_graph(knn_graph(SHEET, 3), X) → a row for each of the 60 nodes, got 10
LaplacianEigenmaps(1, Landmarks(4, 2)).fit_stream(MASKED) → x must be finite, got 1 NaN
spectral_init(GRAPH, points=MASKED) → points must be finite, got 1 NaN
TypeError
svd([1.0, 2.0], 3) → matrix must be a tensor, a sparse matrix, or two functions
svd((torch.neg, torch.neg), 1, shape=5) → shape must be \(m, n\) or \(B, m, n\) of two functions, got 5
svd(X.long(), 2) → matrix must be float32 or float64, got torch.int64
svd(CUBE.reshape(2, 4, 3).to_sparse(), 2) → sparse_coo of .2, 4, 3.; use matrix.to_dense
plot_embedding("abc") → embedding must be an array or tensor of numbers
plot_embedding(X.to_sparse()) → embedding must be a dense tensor
plot_spectrum(X[0] * 1j) → found must hold real numbers, got complex128
plot_embedding(X, X[:, 0] * 1j) → labels must hold real numbers, got complex128
plot_graph(X, X) → graph must be a Graph
methods.refine_cut(torch.ones(10, 2), GRAPH) → use labels.argmax.-1. of soft ones
spectral_function(PAIRS.values, HEAT) → pairs must be the result of eigenpairs
SpectralFilter(HeatResponse) → phi must be a function.*make an object
spectral_signature(PAIRS, lambda v: 1.0) → result of phi must be a tensor
spectral_signature(PAIRS, lambda v: v.float()) → return the pairs' dtype, got
spectral_signature(PAIRS, torch.nn.Linear(1, 2).double().float()) → \{torch.float32\}; use phi.to\(torch.float64
SpectralFilter(HEAT)(PAIRS, [[1.0]]) → x must be a torch.Tensor
SpectralFilter(HEAT)(PAIRS, SIGNAL.float()) → x must have the dtype .*x\.to
StableEncoding(HEAT, torch.nn.Identity())(PAIRS, mask=torch.ones(4)) → mask must be
SpectralFilter(HEAT, bank="no") → bank must be True or False
spectral_signature(PAIRS, HEAT, normalize=1) → normalize must be True or False
HeatResponse(1.0) → times must be a list
AddSpectralFeatures("heat", 3) → phi must be a function
AddSpectralFeatures(HEAT, 3, normalisation="symmetric") → unexpected keyword argument 'normalisation'
FactoredCosine(torch.ones(3, 2).long()) → x must be float32 or float64
FactoredCosine(np.ones((3, 2))) → x must be a tensor or a SciPy sparse matrix
FactoredCosine(torch.ones(3, 2).to_sparse_csc()) → CSR or COO
FactoredCosine(torch.ones(3, 2), loops=1) → loops
FunctionOperator(lambda y: y.float(), 20) → must return real numbers of torch.float64
FunctionOperator(torch.clone, 20, dtype=torch.complex64) → dtype must be torch.float32 or torch.float64
FunctionOperator(torch.clone, 20, parameters=torch.ones(3)) → parameters must be several tensors.*\(tensor,\)
FunctionOperator(torch.clone, 20, parameters=[torch.arange(3)]) → parameters\[0\] must be a real
FunctionOperator(None, 20) → function must be
eigenpairs(torch.ones(2, 2, dtype=torch.int64), 1) → float
eigh([[1.0]]) → tensor
eigh(torch.ones(2, 2, dtype=torch.int64)) → float or complex
eigh(torch.eye(2)).matrix_function("sqrt") → function
eigh(torch.eye(2)).matrix_function(torch.sum) → shape and dtype
solve_linear(SymmetricOperator(DensePattern((6,)), 0 * EYE, MASS), [1.0]) → rhs must be a torch.Tensor
solve_linear(SymmetricOperator(DensePattern((6,)), 0 * EYE, MASS), torch.ones(6, 1))
    → must be float64, got torch.float64 and torch.float32
massed(MASS.long()) → mass must be float32 or float64
massed(MASS.tolist()) → mass must be a
mesh_laplacian(CORNERS, FACES.double()) → int64
mesh_laplacian(CORNERS, FACES.tolist()) → faces must be a
mesh_laplacian(CORNERS.half(), FACES) → vertices must be float32 or float64
mesh_laplacian(CORNERS, FACES, intrinsic="yes") → intrinsic must be True or False
MagneticLaplacian(RING).eigenpairs(2.5) → k must be an integer
MagneticLaplacian(RING).eigenpairs(2, tolerence=1e-3) → tolerence is not an option .* tolerance
MagneticLaplacian(RING, "0.25") → q must
MagneticLaplacian(RING, [0.1, None]) → q must
DirectedGraph.from_scipy(csr_array(np.eye(3) * 1j)) → affinity must hold real numbers
DirectedGraph.from_dense(torch.eye(3, dtype=torch.complex64)) → must be float32 or float64
eigenpairs(MagneticLaplacian(RING), 2) → a Laplacian or a symmetric matrix, got .*; use its eigenpairs\(k\)
knn_graph(X.long(), 3) → float32 or float64, got torch.int64; use x.float\(\)
KNN(5, recall="all") → recall must
nearest_neighbors(X, 3, recall=True) → recall must
KNN(True) → k must be an integer
eigenpairs(FunctionOperator(lambda y: y, 6), 2, fixed=TWO) → fixed must be None for a matrix known by products
eigenpairs(LAPLACIAN, 2, mask=MASK) → fixed= holds nodes at 0
LaplacianEigenmaps(2, lambda x, mask=None: torch.cdist(x, x))(X) → neighbors must give a Graph of the points, got Tensor
Isomap(1, lambda x, mask=None: SignedGraph.from_dense(-path(10)))(X)
    → must be a Graph of affinities, got a SignedGraph; use
Isomap(1, lambda x, mask=None: RING)(X[:5]) → must be a Graph of affinities, got a DirectedGraph; use
KNN("nearest") → k must be an integer, got 'nearest'
LLE(2, KNN("nme")) → neighbors must be KNN.k., not symmetrised.*got NME
knn_graph(X, 3, mask=MASK.float()) → mask must be a boolean tensor
Graph.from_edge_index(torch.zeros(2, 3)) → int64 tensor, got torch.float32
LaplacianEigenmaps(2, 5) → KNN\(k\), Radius\(r\), Precomputed.* got 5
LaplacianEigenmaps(2, KNN(3), "heat") → weights must be a Weighting
LaplacianEigenmaps(2, "affinity") → Precomputed\(.* got 'affinity'
LaplacianEigenmaps(2, KNN(3))(GRAPH) → x must be points, got a Graph
eigenpairs(LAPLACIAN, 2, "eigh") → solver such as Eigh\(\) \(a mass has its name, mass=\), got 'eigh'
eigenpairs(LAPLACIAN, 2, warm_start=None) → warm_start is not an option of this solve; options are solver, tol
Lobpcg(preconditioner=SmoothedAggregation) → preconditioner must be None or a preconditioner such as
Lobpcg(preconditioner=Eigh()) → preconditioner must be None or a preconditioner such as
LaplacianEigenmaps(2, KNN(3), type("Own", (HeatKernel,), {"extend": SimpleWeights.extend})()).fit(SHEET).frozen()
    → frozen needs one of this library's weightings, got Own
LaplacianEigenmaps(2, KNN(3), normalization="unnormalized", components="separate").fit(SHEET).frozen() → needs comp
ShiftInvert(memory=torch.ones(3)) → memory must be a number, got
ShiftInvert(max_products=1.5) → max_products must be an integer
LaplacianEigenmaps(2, diffusion="1") → diffusion must be a number
Isomap(2, 5) → KNN\(k\), Radius\(r\) or .* got 5
KernelPCA(2, 3) → kernel must be a name such as "rbf", or a function
KernelPCA(2, "poly", degree=1.5) → degree must be an integer
GRAPH.subgraph(torch.ones(10, dtype=torch.bool)) → int64 tensor, got torch.bool; use nodes.nonzero\(\).flatten\(\)
SpectralClustering(2, seed=None) → seed must be an integer, got None
SpectralClustering(2, KNN(3)).fit(GRAPH) → x must be points, got a Graph
normalized_cut(LABELS.to(torch.complex64), GRAPH) → labels must be float32 or float64, got torch.complex64
normalized_cut([0] * 10, GRAPH) → labels must be a torch.Tensor, got list
estimators.SpectralClustering(2, affinity="nearest_neighbors", n_neighbors=2.5).fit(X.numpy()) → be an integer, got 2.5
laplacian_smoothness(X.long(), GRAPH) → y must be float32 or float64, got
spectral_loss(X.numpy(), GRAPH) → y must be a torch.Tensor, got ndarray
SpectralLoss(10) → neighbors must be KNN\(k\), Radius\(r\), .* got 10
LaplacianSmoothness(KNN(3), "heat") → weights must be a Weighting
replace(GRAPH, weight=GRAPH.weight.long()) → weight must be float32 or float64, got torch\.int64
SparsePattern(ROW.float(), COL, (3,)) → row must be an int32 or int64 tensor
DensePattern((2.5,)) → shape must be an integer, got 2.5
spreading(labels=FEW > 0) → labels must be integers, .* got torch.bool
spreading(labels=FEW.tolist()) → labels must be a torch.Tensor, got list
HarmonicFunction()(SHEET, FEW, targets=SHEET) → with labels, or targets and maybe known, got labels and targets
HarmonicFunction()(SHEET, FEW, known=FEW > 0) → got labels and known
HarmonicFunction()(SHEET) → got none
HarmonicFunction()(SHEET, targets=FEW) → targets must be float32 or float64
HarmonicFunction()(SHEET, targets=SHEET, known=FEW) → known must be a boolean tensor
spreading(labels=torch.ones(60, 2).long()) → labels must be float32 or float64
spreading(x=KNN(6)(SHEET)) → x must be points, got a Graph
LabelSpreading(class_prior=3) → "labels", "uniform" or a share .* got 3
laplacian_positional_encoding(BOTH, 2.0, 2) → nodes must be an integer
laplacian_positional_encoding(BOTH, 2, 1, solve=Eigh) → solve must be a Solve
AddLaplacianPE(1, solve=Eigh) → solve must be a Solve
laplacian_positional_encoding(BOTH, 2, 1, torch.ones(2, dtype=torch.int64)) → edge_weight must be float32 or float64
NeighborhoodSampler(X) → graph must be a Graph
spectral_init([1, 2, 3]) → graph must be a Graph, a SciPy sparse matrix
spectral_init(DENSE) → got ndarray; use Graph.from_dense\(torch.as_tensor\(graph\)\)
spectral_init(X) → got Tensor; use knn_graph\(graph, k\) of points
spectral_init(csr_array(DENSE), 2, "a") → seed
spectral_init(csr_array(DENSE), points=["a"] * 8) → points must hold real numbers
KNN(n_neighbors=5) → KNN has no argument n_neighbors=: the number of neighbours is the k of a rule
LaplacianEigenmaps(2, n_neighbors=5) → as in neighbors=KNN\(k\)
HeatKernel(sigma=1.0) → as in HeatKernel\(2 \* sigma\*\*2\)
SpectralClustering(2, gamma=1.0) → as in HeatKernel\(1 / gamma\)
HeatKernel(bandwidth=1.0) → as in HeatKernel\(bandwidth\)
LaplacianEigenmaps(2, epsilon=1.0) → as in Radius\(epsilon\)
Radius(eps=1.0) → as in Radius\(eps\)
SpectralClustering(2, affinity="precomputed") → given by neighbors=Precomputed
LaplacianEigenmaps(2, nonsense=1) → unexpected keyword argument 'nonsense'
DiffusionMap(weights=3) → weights must be a Weighting
LaplacianEigenmaps(1)([X, X[:5]]) → got list; pad sets of unequal size: pad_batch
spreading(labels=["a", None] * 30) → got list; encode the words as integers, with −1 for none
Laplacian(networkx.DiGraph([(0, 1)])) → use DirectedGraph.from_scipy.networkx
LaplacianEigenmaps(1)(networkx.cycle_graph(8)) → use Graph.from_scipy.*, with Precomputed
LaplacianEigenmaps(1)(csr_array(np.eye(3))) → toarray.+ of rows of points, or Graph.from_scipy.x., with Precomputed
Laplacian(type("Net", (), {"__module__": "networkx.classes"})()) → use Graph.from_scipy.networkx.to_scipy_sparse_array
IndexError
SparsePattern(ROW, COL + 1, (3,)) → col .* from 0 to 2, got 1 to 3
RuntimeError
HarmonicFunction().predict() → must be fitted
MDS(2).frozen() → must be fitted
NotFittedError
estimators.HarmonicFunction().predict(X.numpy()) → not fitted
"""


def cases():
    """Read the table: error, call and words of each case."""
    error = call = ""
    for line in REFUSED.splitlines():
        before, arrow, words = line.partition("→")
        if arrow:
            yield error, before.strip() or call, words.strip()
        elif line.endswith("Error"):
            error = line
        elif line and not line.startswith("#"):
            call = line


NAMES = {**vars(tl.plots), **vars(methods), **vars(eigen), **vars(tl.graph), **vars(tl.losses), **vars(tl.samplers)}
NAMES |= {**vars(tl.pyg), **vars(tl), **globals(), "estimators": estimators, "NotFittedError": NotFittedError}
NAMES |= {"csr_array": csr_array, "replace": replace, "copy": copy, "spectral_embedding": spectral_embedding}
NAMES["dense_values"] = dense_values


@pytest.mark.parametrize(("error", "call", "words"), [*cases()], ids=[call for _, call, _ in cases()])
def test_what_is_refused(error, call, words):
    with pytest.raises(eval(error, NAMES), match=words):
        eval(call, NAMES)


class Frame:
    """A data frame of a library that is not known by name."""

    def __init__(self, x):
        self.to_numpy = x.numpy


SIGNED, MESH = tl.SignedGraph.from_dense(-path(4)), tl.mesh_laplacian(CORNERS, FACES)
CYCLE = cycle(8)
RING, SIGNS, ROWS = Graph.from_dense(CYCLE), tl.SignedGraph.from_dense(CYCLE), CYCLE[:, :2]
OF_RING = {"networkx": networkx.cycle_graph(8), "PyG": Data(edge_index=RING.to_sparse().edge_index, num_nodes=8)}
OF_RING |= {"pandas": pandas.DataFrame(CYCLE.numpy()), "frame": Frame(CYCLE), "np.matrix": np.matrix(CYCLE.numpy())}
OF_RING |= {"list": CYCLE.tolist(), "SciPy": csr_array(CYCLE), "tensor": CYCLE}
DOORS = {  # each with what it takes
    "Laplacian": (lambda graph: Laplacian(graph).to_dense(), RING),
    "smoothness": (lambda graph: tl.losses.laplacian_smoothness(ROWS, graph, "sum"), RING),
    "picture": (lambda graph: len(plot_graph(graph, ROWS, axes=Figure().subplots()).collections), RING),
    "SignedLaplacian": (lambda graph: eigen.SignedLaplacian(graph).to_dense(), SIGNS),
    "eigenpairs": (lambda laplacian: eigenpairs(laplacian, 3).values, CYCLE),
    "eigh": (lambda matrix: eigen.eigh(matrix).values, CYCLE),
    "from_dense": (lambda affinity: Graph.from_dense(affinity).to_dense(), CYCLE),
    "from_scipy": (
        lambda affinity: (affinity if isinstance(affinity, Graph) else Graph.from_scipy(affinity)).to_dense(),
        csr_array(CYCLE),
    ),
    "affinities": (lambda affinity: GIVEN(affinity).abs(), CYCLE),
}


@every(name=[*DOORS], kind=[*OF_RING])
def test_advice_for_objects_of_other_libraries_gives_the_true_answer(name, kind):
    (door, right), given = DOORS[name], OF_RING[kind]
    try:
        found = door(given)
    except TypeError as error:
        argument, got, advice = re.fullmatch(r"(\w+) must .*, got (.*?); use (.*?)(, or .*)?", str(error)).groups()[:3]
        assert kind in got or kind not in ("networkx", "pandas")
        if advice.endswith(".x"):  # the features of PyG's data
            return
        found = door(eval(advice, {**vars(tl), "torch": torch, "networkx": networkx, argument: given}))
        right = Laplacian(RING) if "Laplacian(" in advice else right
    torch.testing.assert_close(found, door(right), check_dtype=False, atol=1e-5, rtol=0)  # lists have float32


@pytest.mark.parametrize("x", [[X, X[:6]], torch.nested.nested_tensor([X, X[:6]], layout=torch.jagged)], ids=type)
def test_advice_for_sets_of_unequal_size_gives_the_true_answer(x):
    with pytest.raises(TypeError, match="pad sets of unequal size") as error:
        LaplacianEigenmaps(2, KNN(3))(x)
    advice = re.search(r"pad_batch\(.*\)\)\)", str(error.value))[0]
    points, mask = eval(advice, {"pad_batch": tl.pad_batch, "torch": torch, "x": x})
    y = LaplacianEigenmaps(2, KNN(3))(points, mask=mask)
    torch.testing.assert_close(y[1, :6], LaplacianEigenmaps(2, KNN(3))(X[:6]))


WHOLE, FEW_NODES = CYCLE + torch.arange(8.0).diag().double(), torch.arange(8) % 2 == 0
MARKOV = CYCLE * torch.arange(1.0, 9) * torch.arange(1.0, 9)[:, None]
FLAT = torch.tensor([[0.0, 0, 0], [2, 0, 0], [2, 1.7, 0], [0, 1.5, 0], [1, 0, 0]], dtype=torch.float64)
SLIVER, PROPER = torch.tensor([[0, 1, 4], [0, 1, 2], [0, 2, 3]]), torch.tensor([[0, 4, 2], [4, 1, 2], [0, 2, 3]])


def eliminated(stiffness):
    """Finite eigenvalues of K u = λ M u without a mass at every other node, which follow the others."""
    a, b = FEW_NODES, ~FEW_NODES
    inner = stiffness[a][:, a] - stiffness[a][:, b] @ torch.linalg.solve(stiffness[b][:, b], stiffness[b][:, a])
    return eigenpairs(inner, 2).values


def of_faces(faces, **options):
    mesh = tl.mesh_laplacian(FLAT, faces, **options)
    return eigenpairs(mesh.stiffness, 3, mass=mesh.mass).values


def gradient(loss, leaf=None):
    found = torch.autograd.grad(loss.sum(), LEAF if leaf is None else leaf, retain_graph=True)[0]
    return found + found.mT


def of_circle(scale):
    y = LaplacianEigenmaps(2, KNN(2), scale=scale)(polygon(8).requires_grad_())
    return (y @ y.mT * OUTER).sum()


def drawn(y, **options):
    return tl.plots.plot_embedding(y, axes=Figure().subplots(), **options)


def loaded(module, state):
    module.load_state_dict(state)
    return module


def numbered(labels):
    labels[labels >= 0] = labels[labels >= 0].unique(return_inverse=True)[1]
    return labels


SOME, ONE, HALF = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 2]]), torch.ones(1), csr_array(torch.eye(8) - CYCLE.triu())
ON_LINE, PLACES = (torch.arange(4.0)[:, None] - torch.arange(4.0)).abs().double(), torch.tensor([1.5, 0.5, 0.5, 1.5])
ONE_WAY, SHARE = ON_LINE * 1.25 - ON_LINE.tril() / 2, X.abs() / X.abs().sum(-1, keepdim=True)
WEIGHTED = Data(edge_index=GRAPH.edge_index, edge_weight=GRAPH.weight, num_nodes=10)
SPECTRUM, EIGHT = torch.linalg.eigvalsh(WHOLE), torch.eye(8).double()
PENCIL, QUAD, PATCH = WHOLE + 3 * EIGHT, torch.arange(4)[None], torch.tensor(3.2)  # the area of FLAT
FINITE = scipy.linalg.eigvals(PENCIL.numpy(), FEW_NODES.double().diag().numpy())
HERMITIAN, FLOW = torch.complex(points(4, 4), points(4, 4)), Laplacian(GRAPH, "unnormalized")
HERMITIAN = HERMITIAN + HERMITIAN.mH
NUMBERS, LARGE = torch.linalg.eigvalsh(HERMITIAN), Laplacian(knn_graph(surface(300), 5))
HASTY, LOWEST = eigen.ChebyshevSubspace(max_iterations=0), torch.linalg.eigvals(LARGE.to_dense()).real.sort()[0][:3]
TIMES, UNIT = lambda y: torch.arange(1.0, 31)[:, None] * y, torch.diag(MASS.new([1e2, 1e-6, 1e5]))
STIFF = 1e5 * MASS.new([[0, 10, 1], [10, 10, 0], [1, 0, 1000]])
LIGHT = UNIT.inverse() @ (EYE + path(6) / 2)[:3, :3] @ UNIT.inverse()
SINKING = eigen.SymmetricOperator(tl.graph.DensePattern((6,)), 0 * EYE, MASS - 9)
COPIES = (EYE - 1 / 3) @ torch.diag(MASS.new([1e-8] * 4 + [1, 2])) @ (EYE - 1 / 3)
LEAF, SMALL, POINTS = CYCLE.clone().requires_grad_(), path(6).float().requires_grad_(), points(8, 2)
ROUND, MEAN, OUTER = Laplacian(Graph.from_dense(LEAF), "unnormalized"), (LEAF + LEAF.mT) / 2, POINTS @ POINTS.mT
DENSE_ROUND, MOSTLY, STREAM = MEAN.sum(1).diag() - MEAN, torch.cat([torch.zeros(400, 2), X[:3]]), SHEET.split(20)
SAVED, OUTSIDE = LaplacianEigenmaps(1, KNN(3)).fit(X), 1.5 * points(40, 2, seed=3)
PARTED = torch.cat([points(40, 2), points(40, 2, seed=1) + 100])
PHASES = eigen.MagneticLaplacian(tl.DirectedGraph.from_dense(CYCLE.triu())).eigenpairs(2)
LINE, LINEAR = tl.MDS(1, metric=Precomputed("distance")), lambda x, y: x @ y.T
UNEVEN = functools.partial(LaplacianEigenmaps, neighbors=KNN(3), normalization="unnormalized")
MAPPED, LINEAR_MAP = LaplacianEigenmaps(2, KNN(3)).embed(X), aslinearoperator(X.numpy())
MIXED, ARCS = pandas.DataFrame({0: X[:, 0], 1: MASK}), networkx.DiGraph([(0, 1)])
with ignoring():  # torch will give it up
    QUANTISED = torch.quantize_per_tensor(X.float(), 0.1, 0, torch.qint8)
# Each call, words of its error or warning, what they advise (or "old ⇒ new" of the call), and the answer to it: "-"
# where the advice is to run. Answers are eigenvalues of pairs, and matrices of graphs.
FOLLOWED = """
# Matrices and their solvers
eigenpairs(WHOLE.tril(), 3) → add the other triangle, less the diagonal
    → tril() ⇒ tril() + WHOLE.tril().mT - WHOLE.diagonal().diag() → SPECTRUM[:3]
eigenpairs(MARKOV / MARKOV.sum(1, keepdim=True), 3)
    → a Markov matrix D⁻¹ W take Laplacian(Graph.from_dense(W), "random_walk")
    → 1 - eigenpairs(Laplacian(Graph.from_dense(MARKOV), "random_walk"), 3).values
    → torch.linalg.eigvals(MARKOV / MARKOV.sum(1, keepdim=True)).real.sort(descending=True).values[:3]
eigenpairs(csr_array(ASKEW), 1) → (A + A.T.conj()) / 2 of a SciPy or COO matrix
    → eigenpairs((csr_array(ASKEW) + csr_array(ASKEW).T.conj()) / 2, 1) → torch.linalg.eigvalsh(ASKEW + ASKEW.T)[:1] / 2
eigenpairs(WHOLE, 2, ShiftInvert(memory=0)) → use Krylov() or → ShiftInvert(memory=0) ⇒ Krylov() → SPECTRUM[:2]
eigenpairs(CYCLE, 2, which="SM") → nearest=0 (SM) → which="SM" ⇒ nearest=0 → torch.zeros(2)
eigenpairs(WHOLE, 2, tol=1e-3) → use tolerance= → tol ⇒ tolerance → SPECTRUM[:2]
eigenpairs(WHOLE, 2, M=PENCIL) → takes mass= → M= ⇒ mass= → dense_values(WHOLE, PENCIL)[:2]
eigenpairs(WHOLE, 2, which="LA") → largest=True → which="LA" ⇒ largest=True → SPECTRUM.flip(0)[:2]
eigenpairs(WHOLE, 2, sigma=1.0) → takes nearest= → sigma ⇒ nearest → SPECTRUM[(SPECTRUM - 1).abs().argsort()[:2]].sort()
eigh(HERMITIAN.to_sparse()) → use matrix.to_dense() → to_sparse() ⇒ to_sparse().to_dense() → NUMBERS
eigenpairs(PENCIL, 2, mass=FEW_NODES.double().diag())
    → eliminate nodes b without a mass, K_aa − K_ab K_bb⁻¹ K_ba → eliminated(PENCIL)
    → torch.from_numpy(np.sort(FINITE[np.isfinite(FINITE)].real)[:2])
eigenpairs(STIFF, 1, mass=LIGHT, nearest=0) → take D K D and D M D of the same eigenvalues, D = diag(M)^-½
    → eigenpairs(UNIT @ STIFF @ UNIT, 1, mass=UNIT @ LIGHT @ UNIT, nearest=0)
    → torch.tensor([min(scipy.linalg.eigvals(STIFF.numpy(), LIGHT.numpy()).real, key=abs)])
eigenpairs(SINKING, 2) → eigenvalues goes in as a matrix → SINKING ⇒ (MASS - 9).diag() → (MASS - 9).sort()[0][:2]
eigenpairs(SINKING, 2) → or a FunctionOperator without a bound
    → SINKING ⇒ FunctionOperator(lambda y: (MASS - 9)[:, None] * y, 6) → (MASS - 9).sort()[0][:2]
eigenpairs(SINKING, 2, ShiftInvert()) → add a number to its diagonal and subtract it from the eigenvalues
    → eigenpairs(replace(SINKING, diagonal=MASS, bound=MASS.max()[None]), 2, ShiftInvert()).values → MASS.sort()[0][:2]
eigenpairs(LARGE, 3, HASTY) → use Eigh() or the default solver, more → HASTY ⇒ Eigh() → LOWEST
eigenpairs(LARGE, 3, HASTY) → the default solver, more iterations → HASTY ⇒ None → LOWEST
eigenpairs(LARGE, 3, HASTY) → more iterations, or a larger tolerance → HASTY ⇒ ChebyshevSubspace() → LOWEST
eigenpairs(torch.arange(5.0).diag(), 2, nearest=2.2, fill=True) → be None with → , fill=True ⇒ → torch.tensor([2, 3])
eigenpairs(COPIES, 2) → for a matrix with k or more equal values ask for more pairs → 2 ⇒ 4 → torch.zeros(4)
eigenpairs(WHOLE, 2, Lobpcg()) → use Lobpcg(preconditioner=SparseFactors())
    → Lobpcg() ⇒ Lobpcg(preconditioner=SparseFactors()) → SPECTRUM[:2]
eigenpairs(FunctionOperator(TIMES, 30), 2, Eigh()) → use Krylov() or → Eigh() ⇒ Krylov() → torch.tensor([1, 2])
eigenpairs(FunctionOperator(TIMES, (2, 30)), 2, Krylov()) → use ChebyshevSubspace()
    → Krylov() ⇒ ChebyshevSubspace() → torch.tensor([[1, 2], [1, 2]])
eigenpairs(FunctionOperator(TIMES, 30, bound=2.0), 2) → leave bound out → , bound=2.0 ⇒ → torch.tensor([1, 2])
FunctionOperator(lambda y: HIDDEN * y, 6) → pass it in parameters=
    → torch.autograd.grad(eigenpairs(FunctionOperator(lambda y, a: a * y, 6, (HIDDEN,)), 6).values.sum(), HIDDEN)[0]
    → torch.tensor(6)
eigenpairs(FunctionOperator(lambda y: MARKOV.triu() @ y, 8), 1) → use the mean of it and its transpose
    → MARKOV.triu() ⇒ (MARKOV.triu() + MARKOV.tril()) / 2 → torch.linalg.eigvalsh(MARKOV / 2)[:1]
eigen.svd(SHARE.to_sparse_csc(), 1) → use matrix.to_dense()
    → eigen.svd(SHARE.to_sparse_csc().to_dense(), 1).S → torch.linalg.svdvals(SHARE)[:1]
eigenpairs(1e37 * EYE.float(), 2, mass=1e-5 * MASS.float()) → divide the matrix, or multiply the mass, by a number
    → 1e-5 ⇒ 1e37 → (1 / MASS).sort()[0][:2]
eigen.solve_linear(LAPLACIAN, X - X.mean(0)) → use Laplacian(graph, "unnormalized")
    → LAPLACIAN ⇒ FLOW → torch.linalg.pinv(FLOW.to_dense()) @ X
# Derivatives
(eigenpairs(ROUND, 3).vectors[:, 1] @ POINTS[:, 0]).backward() → through Eigenpairs.projected
    → gradient((lambda p: p.vectors @ torch.matrix_exp(-p.projected) @ p.vectors.mT)(eigenpairs(ROUND, 8)) * OUTER)
    → gradient(torch.matrix_exp(-DENSE_ROUND) * OUTER)
gradient(eigenpairs(ROUND, 3).values * torch.arange(3)) → use a symmetric function of them
    →  * torch.arange(3) ⇒ → gradient(torch.linalg.eigvalsh(DENSE_ROUND)[:3])
gradient(eigenpairs(ROUND, 4).values) → the nearest k that does not is 3
    → 4 ⇒ 3 → gradient(torch.linalg.eigvalsh(DENSE_ROUND)[:3])
of_circle("unit").backward() → use scale="degree" → unit ⇒ degree → -
gradient(LaplacianEigenmaps(2, AFFINITIES)(1e-36 * SMALL), SMALL) → use float64 → 1e-36 * SMALL) ⇒ SMALL.double()) → -
gradient(LaplacianEigenmaps(2, AFFINITIES)(1e-36 * SMALL), SMALL) → scale="unit" → IES) ⇒ IES, scale="unit") → -
gradient(SpectralFilter(torch.sqrt)(eigenpairs(ROUND, 3), POINTS)) → take a phi that is smooth there
    → torch.sqrt ⇒ lambda v: (v + 1).sqrt() → -
# Meshes
of_faces(SLIVER) → got 1 that do not, first [0, 1, 4]; use intrinsic=True
    → SLIVER ⇒ SLIVER, intrinsic=True → of_faces(PROPER, intrinsic=True)
of_faces(SLIVER, mass="consistent") → use intrinsic=True and mass="lumped"
    → mass="consistent" ⇒ intrinsic=True, mass="lumped" → of_faces(PROPER, intrinsic=True)
mesh_laplacian(FLAT[[0, 1, 2, 3, 0]], torch.tensor([[0, 4, 1], [4, 1, 2], [0, 2, 3]])) → drop them, merge equal vertices
    → mesh_laplacian(FLAT[:4], torch.tensor([[0, 1, 2], [0, 2, 3]])).mass.sum() → PATCH
mesh_laplacian(FLAT[:4], QUAD) → split quadrilaterals, torch.cat([faces[..., [0, 1, 2]], faces[..., [0, 2, 3]]], -2)
    → mesh_laplacian(FLAT[:4], torch.cat([QUAD[..., [0, 1, 2]], QUAD[..., [0, 2, 3]]], -2)).mass.sum() → PATCH
mesh_laplacian(FLAT, PROPER[1:2]) → leave them out by mask= → 1:2] ⇒ 1:2], mask=torch.arange(5) % 3 > 0 → -
# Graphs
Graph.from_edge_index(SOME) → torch.cat([edge_index, edge_index.flip(0)], 1).unique(dim=1)
    → SOME ⇒ torch.cat([SOME, SOME.flip(0)], 1).unique(dim=1) → torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 1]])
Graph.from_edge_index(SOME[:, 2:3], ONE) → torch.cat([edge_index, edge_index.flip(0)], 1) with edge_weight.repeat(2)
    → Graph.from_edge_index(torch.cat([SOME, SOME.flip(0)], 1)[:, [2, 6]], ONE.repeat(2)).weight → torch.ones(2)
Graph.from_edge_index(BOTH, torch.tensor([1, 2.0])) → DirectedGraph.from_edge_index(edge_index, edge_weight).affin
    → DirectedGraph.from_edge_index(BOTH, torch.tensor([1.0, 2.0])).affinities().weight → torch.tensor([1.5, 1.5])
Graph.from_edge_index(BOTH[:, :0], batch=FAR[:2]) → use batch.unique(return_inverse=True)[1]
    → FAR[:2] ⇒ FAR[:2].unique(return_inverse=True)[1] → torch.zeros(2, 1, 1)
Graph.from_dense(CYCLE.to_sparse()) → of a = affinity.to_sparse_coo().coalesce()
    → Graph.from_edge_index(CYCLE.to_sparse().indices(), CYCLE.to_sparse().values(), 8) → CYCLE
Graph.from_scipy(csr_array(X.numpy())) → points: torch.tensor(affinity.toarray())
    → KNN(3)(torch.tensor(csr_array(X.numpy()).toarray())) → GRAPH
Graph.from_hyperedges(MEMBERS[:, [0, 1, 0]]) → use hyperedge_index.unique(dim=1)
    → [0, 1, 0]] ⇒ [0, 1, 0]].unique(dim=1) → torch.ones(2, 2) / 2
SignedGraph.from_scipy(HALF) → take affinity + affinity.T - scipy.sparse.diags_array(affinity.diagonal())
    → HALF ⇒ HALF + HALF.T - scipy.sparse.diags_array(HALF.diagonal()) → EIGHT - CYCLE
Laplacian(WEIGHTED) → use Graph.from_edge_index(graph.edge_index, graph.edge_weight, graph.num_nodes, graph.batch)
    → Graph.from_edge_index(WEIGHTED.edge_index, WEIGHTED.edge_weight, 10, WEIGHTED.batch) → GRAPH
knn_graph(torch.complex(X, X + 1), 3) → torch.view_as_real(x).flatten(-2)
    → torch.complex(X, X + 1) ⇒ torch.view_as_real(torch.complex(X, X + 1)).flatten(-2) → GRAPH
AddLaplacianPE(1, "pe")(Data(edge_index=BOTH, edge_weight=ONE.expand(2, 1), num_nodes=2)).pe → use edge_weight.flatten()
    → expand(2, 1) ⇒ expand(2, 1).flatten() → torch.tensor([[1], [-1]]) * 0.5**0.5
copy.deepcopy(GRAPH.with_weight(GRAPH.weight * HIDDEN)) → detach() them → HIDDEN ⇒ HIDDEN.detach() → GRAPH
# Embeddings and clusters
LINE(ON_LINE.triu())[:, 0].abs() → x + x.mT of one triangle → triu() ⇒ triu() + ON_LINE.triu().mT → PLACES
LINE(ONE_WAY)[:, 0].abs() → (x + x.mT) / 2 of two measurements → ONE_WAY ⇒ (ONE_WAY + ONE_WAY.mT) / 2 → PLACES
LINE(WHOLE) → LaplacianEigenmaps(neighbors=Precomputed("affinity"))
    → LINE ⇒ LaplacianEigenmaps(neighbors=Precomputed("affinity")) → -
KernelPCA(2, "linear")(X[:, :1]).abs() → use fewer components → 2 ⇒ 1 → (X[:, :1] - X[:, :1].mean()).abs()
MDS(2)(1e-25 * X.float()).abs() → or their squares underflow; rescale them → 1e-25 ⇒ 1 → MDS(2)(X).abs()
LaplacianEigenmaps(1, Precomputed("distance"))(torch.cdist(X, X)).abs()
    → neighbors=KNN(10, metric=Precomputed("distance"))
    → Precomputed("distance") ⇒ KNN(10, metric=Precomputed("distance")) → LaplacianEigenmaps(1, KNN(10))(X).abs()
LaplacianEigenmaps(1, KNN(4, metric="cityblock"))(X.clone().requires_grad_()).abs() → use x.detach()
    → requires_grad_() ⇒ detach() → LaplacianEigenmaps(1, KNN(4, metric=lambda x, y: torch.cdist(x, y, p=1)))(X).abs()
HeatKernel()(torch.cdist(X, X), replace(graph.Graph.from_dense(GRAPH.to_dense()), metric=APART)) → use graph.to_sparse()
    → metric=APART) ⇒ metric=APART).to_sparse() → HeatKernel()(X, GRAPH)
Isomap(1, KNN(4)).frozen() → use LaplacianEigenmaps, SpectralClustering, MDS or KernelPCA
    → MDS(1).fit(X).frozen()(X + 1) → MDS(1).fit(X).transform(X + 1)
LaplacianEigenmaps(1, Landmarks(2, 2))(MOSTLY) → drop copies → MOSTLY ⇒ MOSTLY.unique(dim=0) → -
LaplacianEigenmaps(1, Landmarks(9)).fit_stream(iter(STREAM)).embedding_ → give an array, a list, a DataLoader
    → iter(STREAM) ⇒ [*STREAM] → LaplacianEigenmaps(1, Landmarks(9)).fit_stream(SHEET.split(30)).embedding_
LaplacianEigenmaps(2, Landmarks(12, 3))(PARTED) → larger bandwidth, or embed each on its own → PARTED ⇒ PARTED[:40] → -
LaplacianEigenmaps(2, Radius(3.0))(torch.cat([X, X[:1] + 9])) → a larger radius or bandwidth → 3.0 ⇒ 20.0 → -
UNEVEN(9).fit(X).transform(OUTSIDE) → use fewer components → 9 ⇒ 3 → -
LaplacianEigenmaps(1, KNN(4)).load_state_dict(SAVED.state_dict()) → construct the module as it was
    → loaded(LaplacianEigenmaps(1, KNN(3)), SAVED.state_dict()).transform(X + 1) → SAVED.transform(X + 1)
StableEncoding(HEAT, torch.nn.Linear(1, 2).double())(PHASES) → let it begin with a.abs()
    → torch.nn.Linear(1, 2).double() ⇒ lambda a: torch.nn.Linear(1, 2).double()(a.abs()) → -
StableEncoding(HEAT, torch.nn.Linear(1, 2).double())(PHASES) → or with torch.view_as_real(a).flatten(-2)
    → torch.nn.Linear(1, 2).double() ⇒ lambda a: torch.nn.Linear(2, 2).double()(torch.view_as_real(a).flatten(-2)) → -
spectral_signature(PAIRS, lambda v: (1j * v).exp()) → use lambda v: phi(v).real
    → exp() ⇒ exp().real → spectral_signature(PAIRS, torch.cos)
normalized_cut(2 * SHARE, GRAPH) → labels / labels.sum(-1, keepdim=True)
    → 2 * SHARE ⇒ 2 * SHARE / (2 * SHARE).sum(-1, keepdim=True) → normalized_cut(SHARE, GRAPH)
normalized_cut(X, GRAPH) → use labels.softmax(-1) of logits → X ⇒ X.softmax(-1) → -
refine_cut(1.0 * LABELS, GRAPH) → labels.long() → 1.0 * LABELS ⇒ LABELS.long() → refine_cut(LABELS, GRAPH)
spreading(labels=FEW[:, None]) → use labels.squeeze(-1) → None] ⇒ None].squeeze(-1) → spreading()
LabelSpreading(KNN(6))(SHEET, torch.where(FEW < 0, torch.nan, FEW)) → use targets=labels
    → SHEET, torch ⇒ SHEET, targets=torch → spreading() @ torch.arange(FEW.max() + 1).double()
spreading(labels=torch.where(FEW < 0, FEW, FEW + 10**9)) → = labels[labels >= 0].unique(return_inverse=True)[1]
    → torch.where(FEW < 0, FEW, FEW + 10**9) ⇒ numbered(torch.where(FEW < 0, FEW, FEW + 10**9)) → spreading()
spreading(alpha=1) → HarmonicFunction keeps all labels → HarmonicFunction(KNN(6))(SHEET, FEW)[:6].argmax(1) → FEW[:6]
spectral_init(csr_array(DENSE), 9) → use k=7 at most → 9 ⇒ 7 → -
# Faces
estimators.spectral_embedding(MARKOV.numpy(), norm_laplacian=False)
    → use LaplacianEigenmaps(k, Precomputed("affinity"), normalization="unnormalized") of torch_lapeig
    → LaplacianEigenmaps(2, Precomputed("affinity"), normalization="unnormalized")(MARKOV).abs()
    → torch.tensor(abs(spectral_embedding(MARKOV.numpy(), n_components=2, norm_laplacian=False, eigen_tol=1e-12)))
torch.tensor(estimators.KernelPCA(1, kernel=LINEAR).fit(csr_array(X.numpy())).embedding_) → use X.toarray()
    → csr_array(X.numpy()) ⇒ csr_array(X.numpy()).toarray() → KernelPCA(1, "linear")(X)
drawn(X, parts=[MASK]) → of a mask, its nonzero() → MASK ⇒ MASK.nonzero() → -
drawn(torch.complex(X, X)) → draw the real parts or the angles → X)) ⇒ X).angle()) → -
# Objects of other libraries
knn_graph(Frame(X), 3) → ; use torch.tensor(x.to_numpy()) → Frame(X) ⇒ torch.tensor(Frame(X).to_numpy()) → GRAPH
knn_graph([*X.numpy()], 3) → ; use torch.stack([torch.as_tensor(part) for part in x])
    → [*X.numpy()] ⇒ torch.stack([torch.as_tensor(part) for part in [*X.numpy()]]) → GRAPH
knn_graph(MAPPED, 3) → ; use x.embedding → MAPPED ⇒ MAPPED.embedding → -
eigenpairs(SIGNED, 2) → ; use SignedLaplacian(graph) → SIGNED ⇒ SignedLaplacian(SIGNED) → -
eigenpairs(GRAPH, 2) → ; use Laplacian(graph) → GRAPH ⇒ Laplacian(GRAPH) → eigenpairs(LAPLACIAN, 2)
Laplacian(LAPLACIAN).to_dense() → ; use graph.graph → LAPLACIAN ⇒ LAPLACIAN.graph → LAPLACIAN.to_dense()
knn_graph(X.numpy()[::-1], 3) → ; use torch.tensor(numpy.array(x, float))
    → X.numpy()[::-1] ⇒ torch.tensor(np.array(X.numpy()[::-1], float)) → GRAPH.subgraph(torch.arange(9, -1, -1))
knn_graph(MIXED, 3) → ; use torch.tensor(numpy.array(x, float)) → MIXED ⇒ torch.tensor(np.array(MIXED, float)) → -
eigen.svd(LINEAR_MAP, 2).S → ; use torch.as_tensor(matrix @ numpy.eye(matrix.shape[1]))
    → LINEAR_MAP ⇒ torch.as_tensor(LINEAR_MAP @ np.eye(2)) → torch.linalg.svdvals(X)
Laplacian(BOTH).to_dense() → ; use Graph.from_edge_index(graph) → BOTH ⇒ Graph.from_edge_index(BOTH) → -
eigenpairs(MESH, 2) → ; use laplacian.stiffness, with mass=laplacian.mass → MESH, 2 ⇒ *MESH[:1], 2, mass=MESH[1] → -
eigen.MagneticLaplacian(ARCS).to_dense() → ; use DirectedGraph.from_scipy(networkx.to_scipy_sparse_array(graph))
    → ARCS ⇒ DirectedGraph.from_scipy(networkx.to_scipy_sparse_array(ARCS)) → -
knn_graph(QUANTISED, 3) → ; use x.dequantize() → QUANTISED ⇒ QUANTISED.dequantize() → -
"""


def followed():
    """Read the table: call, words, what they advise and the answer of each case."""
    rows = [line for line in FOLLOWED.splitlines() if line and not line.startswith("#")]
    for row in re.split(r"\n(?! )", "\n".join(rows)):
        call, words, advised, true = (" ".join(part.split()) for part in row.split(" → "))
        old, arrow, new = (part.strip() for part in advised.partition("⇒"))
        assert not arrow or old in call
        yield call, words, call.replace(old, new) if arrow else advised, true


@pytest.mark.parametrize(("call", "words", "advised", "true"), [*followed()])
def test_advice_gives_the_true_answer(call, words, advised, true):
    names = {**NAMES, **globals()}
    with pytest.raises((TypeError, ValueError, RuntimeError, UserWarning), match=re.escape(words)):
        eval(call, names)
    found = eval(advised, names)
    if true != "-":
        found, true = (getattr(x, "to_dense", lambda x=x: x.values)() for x in (found, eval(true, names)))
        torch.testing.assert_close(found, true, atol=2e-4, rtol=0, check_dtype=False)
