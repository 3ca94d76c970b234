"""Bad input: each case with the error it raises, which names the argument, what arrived and the way out."""

from dataclasses import replace

import pytest
import torch
from scipy.sparse import csr_array

import torch_lapeig
from problems import path, points
from torch_lapeig import (
    KNN,
    LLE,
    MDS,
    DensityCorrected,
    Graph,
    GraphWarning,
    HeatKernel,
    Isomap,
    KernelPCA,
    KernelWeights,
    Landmarks,
    Laplacian,
    LaplacianEigenmaps,
    LaplacianSmoothness,
    Precomputed,
    Radius,
    SelfTuning,
    SignedGraph,
    Solve,
    SpectralClustering,
    SpectralLoss,
    Whitening,
    eigenpairs,
    knn_graph,
    laplacian_smoothness,
    normalized_cut,
    radius_graph,
)
from torch_lapeig import sklearn as estimators
from torch_lapeig.eigen import (
    Lobpcg,
    ShiftInvert,
    SmoothedAggregation,
    SparseLU,
    SymmetricOperator,
    component_eigenpairs,
)
from torch_lapeig.graph import nearest_neighbors, radius_neighbors
from torch_lapeig.losses import orthogonality, spectral_loss, whiten

X = points(10, 2)
NAN, INF = X.clone(), X.clone()
NAN[3, 1], INF[0, 0] = torch.nan, torch.inf
GRAPH = knn_graph(X, 3)
LAPLACIAN = Laplacian(GRAPH)
MASK = torch.ones(10, dtype=torch.bool)
GIVEN, DISTANCES = LaplacianEigenmaps(1, Precomputed("affinity")), MDS(2, metric=Precomputed("distance"))
LABELS = torch.arange(10) % 2
SAME = torch.ones(10, 2)
BOTH = torch.tensor([[0, 1], [1, 0]])

CASES = {
    "NaN": (lambda: knn_graph(NAN, 3), ValueError, r"x must be finite, got 1 NaN or Inf of 20 .*\(3, 1\)"),
    "Inf": (lambda: radius_graph(INF, 1.0), ValueError, "x must be finite"),
    "rank 1": (lambda: knn_graph(X[:, 0], 3), ValueError, r"\(N, D\) or \(B, N, D\), got \(10,\)"),
    "rank 4": (lambda: knn_graph(X[None, None], 3), ValueError, "got .1, 1, 10, 2."),
    "integers": (lambda: knn_graph(X.long(), 3), TypeError, r"float32 or float64, got torch.int64; use x.float\(\)"),
    "half": (lambda: knn_graph(X.half(), 3), TypeError, "got torch.float16"),
    "array": (lambda: knn_graph(X.numpy(), 3), TypeError, "torch.Tensor, got ndarray"),
    "k = N": (lambda: nearest_neighbors(X, 10), ValueError, "k must be smaller than the number of points, got k=10"),
    "k = valid": (lambda: nearest_neighbors(X, 3, mask=torch.arange(10) < 3), ValueError, "k=3 with 3 points"),
    "k = 0": (lambda: knn_graph(X, 0), ValueError, "k must be at least 1, got 0"),
    "k = 2.5": (lambda: KNN(2.5), TypeError, "k must be an integer, got 2.5"),
    "k = True": (lambda: KNN(True), TypeError, "k must be an integer"),
    "one point": (lambda: knn_graph(X[:1], 1), ValueError, "at least 2 points"),
    "no dimension": (lambda: knn_graph(X[:, :0], 1), ValueError, "dimension"),
    "empty batch": (lambda: knn_graph(X[None][:0], 1), ValueError, r"got \(0, 10, 2\)"),
    "rule": (lambda: KNN(3, "both"), ValueError, "'union', 'mutual', 'mean', got 'both'"),
    "radius 0": (lambda: radius_graph(X, 0.0), ValueError, "radius must be positive"),
    "radius NaN": (lambda: Radius(float("nan")), ValueError, "radius must be positive"),
    "radius²": (lambda: radius_graph(X, 1e-170), ValueError, "radius must be at least 1.5e-154 .* got 1.0e-170"),
    "radius too small": (lambda: radius_graph(X, 1e-9), ValueError, "use a larger radius"),
    "mask dtype": (lambda: knn_graph(X, 3, mask=MASK.float()), TypeError, "mask must be a boolean tensor"),
    "mask shape": (lambda: knn_graph(X, 3, mask=MASK[:4]), ValueError, r"mask must have shape \(10,\)"),
    "t = 0": (lambda: HeatKernel(0.0), ValueError, "t must be positive"),
    "t < 0": (lambda: HeatKernel(-1.0), ValueError, "t must be positive and finite, got -1.0"),
    "t word": (lambda: HeatKernel("mean"), ValueError, "'median', 'component-median', 'steepest', got 'mean'"),
    "points of another graph": (lambda: HeatKernel()(X[:5], GRAPH), ValueError, r"shape \(10, 'D'\).*got \(5, 2\)"),
    "asymmetric": (lambda: Graph.from_dense(path(4).triu()), ValueError, "symmetric.*average the two directions"),
    "negative": (lambda: Graph.from_dense(-path(4)), ValueError, "non-negative, got a minimum of -1"),
    "NaN weights": (lambda: Graph.from_dense(path(4) * torch.nan), ValueError, "affinity must be finite"),
    "not square": (lambda: Graph.from_dense(path(4)[:3]), ValueError, r"\(N, N\) or \(B, N, N\), got \(3, 4\)"),
    "padding with edges": (
        lambda: Graph.from_dense(path(4), torch.arange(4) < 3),
        ValueError,
        "zero in the rows that mask",
    ),
    "one direction": (lambda: Graph.from_edge_index(torch.tensor([[0], [1]])), ValueError, "both directions.*flip"),
    "edge out of range": (
        lambda: Graph.from_edge_index(torch.tensor([[0, 5], [5, 0]]), num_nodes=3),
        ValueError,
        r"must lie in \[0, 3\), got 0 to 5",
    ),
    "negative index": (lambda: Graph.from_edge_index(torch.tensor([[0, -1], [-1, 0]])), ValueError, "got -1 to 0"),
    "edge dtype": (lambda: Graph.from_edge_index(torch.zeros(2, 3)), TypeError, "int64 tensor, got torch.float32"),
    "edge shape": (
        lambda: Graph.from_edge_index(torch.zeros(3, 2).long()),
        ValueError,
        r"\(2, E\), got \(3, 2\)",
    ),
    "edge weights": (
        lambda: Graph.from_edge_index(BOTH, torch.tensor([1.0, 2.0])),
        ValueError,
        "edge_weight must be symmetric",
    ),
    "negative edge": (
        lambda: Graph.from_edge_index(BOTH, -torch.ones(2)),
        ValueError,
        "non-negative",
    ),
    "edge NaN": (
        lambda: Graph.from_edge_index(BOTH, torch.full((2,), torch.nan)),
        ValueError,
        "be finite",
    ),
    "edge count": (lambda: Graph.from_edge_index(BOTH, torch.ones(3)), ValueError, r"shape \(2,\).*got \(3,\)"),
    "batch order": (lambda: Graph.from_edge_index(BOTH, batch=torch.tensor([1, 0])), ValueError, "ascending"),
    "batch edges": (lambda: Graph.from_edge_index(BOTH, batch=torch.tensor([0, 1])), ValueError, "between graphs"),
    "array for scipy": (lambda: Graph.from_scipy(path(4).numpy()), TypeError, "got ndarray; use Graph.from_dense"),
    "not scipy": (lambda: Graph.from_scipy(torch.eye(2)), TypeError, "SciPy sparse matrix, got Tensor"),
    "scipy asymmetric": (lambda: Graph.from_scipy(csr_array([[0, 1.0], [0, 0]])), ValueError, "symmetric"),
    "scipy negative": (lambda: Graph.from_scipy(csr_array([[0, -1.0], [-1.0, 0]])), ValueError, "non-negative"),
    "edges of a dense graph": (lambda: Graph.from_dense(path(3)).edge_index, ValueError, "to_sparse"),
    "scipy of a batch": (lambda: Graph.from_dense(path(3)[None]).to_scipy(), ValueError, "one graph"),
    "metric": (lambda: KNN(3, metric="l1"), ValueError, "'euclidean', 'cosine'"),
    "backend": (lambda: nearest_neighbors(X, 3, backend="ann"), ValueError, "'exact', 'faiss'"),
    "zero vector": (lambda: knn_graph(0 * X, 3, metric="cosine"), ValueError, "positive length, got 10 zero vectors"),
    "queries": (lambda: nearest_neighbors(X, 3, X[:, :1]), ValueError, r"queries must go with x of shape \(10, 2\)"),
    "k of queries": (
        lambda: nearest_neighbors(X, 11, X),
        ValueError,
        "at most the number of points, got k=11",
    ),
    "budget": (lambda: nearest_neighbors(X, 3, budget=0), ValueError, "budget must be at least 1"),
    "too large": (lambda: knn_graph(1e20 * X.float(), 3), ValueError, "x must be at most .*rescale"),
    "queries too large": (lambda: nearest_neighbors(X, 3, 1e200 * X), ValueError, "queries must be at most"),
    "radius shape": (lambda: radius_neighbors(X, torch.ones(4)), ValueError, r"of shape \(10,\), got \(4,\)"),
    "radius negative": (lambda: radius_neighbors(X, -torch.ones(10)), ValueError, "radius must be non-negative"),
    "empty batch vector": (
        lambda: Graph.from_edge_index(BOTH[:, :0], batch=torch.zeros(0, dtype=torch.int64)),
        ValueError,
        "at least one node",
    ),
    "nodes of two items": (
        lambda: Graph.from_dense(path(4).expand(2, 4, 4)).subgraph(torch.tensor([0, 5])),
        ValueError,
        "of one graph, got nodes of several",
    ),
    "mask of a graph": (lambda: GIVEN(GRAPH, mask=MASK), ValueError, "has its own"),
    "alpha": (lambda: DensityCorrected(1.5), ValueError, r"alpha must be a number in \[0, 1\], got 1.5"),
    "m": (lambda: SelfTuning(0), ValueError, "m must be at least 1"),
    "kernel": (lambda: KernelWeights(torch.neg)(X, GRAPH), ValueError, "finite, non-negative weights"),
    "NaN points to weight": (lambda: HeatKernel(1.0)(NAN, GRAPH), ValueError, "x must be finite"),
    "not a graph": (lambda: Laplacian(path(4)), TypeError, "graph must be a Graph, got Tensor"),
    "not a Laplacian": (
        lambda: eigenpairs(path(4), 2),
        TypeError,
        r"got Tensor; use Laplacian\(graph\)",
    ),
    "negative weights": (lambda: replace(GRAPH, weight=-GRAPH.weight), ValueError, "weight must be non-negative"),
    "Inf weights": (lambda: replace(GRAPH, weight=GRAPH.weight * torch.inf), ValueError, "weight must be finite"),
    "neighbors": (lambda: LaplacianEigenmaps(2, 5), TypeError, r"KNN\(k\), Radius\(r\), Precomputed.* got 5"),
    "weights": (lambda: LaplacianEigenmaps(2, KNN(3), "heat"), TypeError, "weights must be a Weighting"),
    "solver": (lambda: LaplacianEigenmaps(2, solve="eigh"), TypeError, r"solver such as Eigh\(\)"),
    "precomputed weights": (
        lambda: LaplacianEigenmaps(2, Precomputed("affinity"), HeatKernel()),
        ValueError,
        "weights must be None",
    ),
    "precomputed word": (lambda: LaplacianEigenmaps(2, "affinity"), TypeError, r"Precomputed\(.* got 'affinity'"),
    "graph for points": (lambda: LaplacianEigenmaps(2, KNN(3))(GRAPH), TypeError, "x must be points, got a Graph"),
    "nothing to embed": (
        lambda: LaplacianEigenmaps(1, Precomputed("affinity"), components="separate").fit(torch.eye(3)),
        ValueError,
        "no component of two or more",
    ),
    "normalisation": (lambda: Laplacian(GRAPH, "left"), ValueError, "normalization must be one of"),
    "matmul": (lambda: LAPLACIAN.matmul(X[:5]), ValueError, r"y must have shape \(10, 'm'\)"),
    "pairs > N": (lambda: eigenpairs(LAPLACIAN, 11), ValueError, "got k=11 with 10"),
    "pairs = 0": (lambda: eigenpairs(LAPLACIAN, 0), ValueError, "k must be at least 1"),
    "Inf degrees": (
        lambda: eigenpairs(Laplacian(replace(GRAPH, weight=GRAPH.weight * 1e308)), 2),
        ValueError,
        "laplacian must be finite",
    ),
    "tolerance": (lambda: eigenpairs(LAPLACIAN, 2, tolerance=0.0), ValueError, "tolerance must be positive"),
    "solver by name": (lambda: eigenpairs(LAPLACIAN, 2, "eigh"), TypeError, r"solver such as Eigh\(\), got 'eigh'"),
    "degeneracy": (lambda: eigenpairs(LAPLACIAN, 2, degeneracy="no"), ValueError, "'mask', 'lorentz', 'exact'"),
    "cluster width": (
        lambda: eigenpairs(LAPLACIAN, 2, cluster_width=-1.0),
        ValueError,
        "cluster_width must be positive",
    ),
    "no nodes": (
        lambda: eigenpairs(Laplacian(Graph.from_dense(torch.zeros(0, 0))), 1, fill=True),
        ValueError,
        r"laplacian must be of at least one graph with a node, got shape \(0,\)",
    ),
    "warm start": (
        lambda: eigenpairs(LAPLACIAN, 2, warm_start=None),
        TypeError,
        "unexpected keyword .*warm_start",
    ),
    "guards": (lambda: Lobpcg(guards=0), ValueError, "guards must be at least 1"),
    "iterations": (lambda: Lobpcg(max_iterations=-1), ValueError, "max_iterations must be at least 0"),
    "basis": (lambda: ShiftInvert(basis=2), ValueError, "basis must be at least 3"),
    "products": (lambda: ShiftInvert(max_products=1.5), TypeError, "max_products must be an integer"),
    "coarsest": (lambda: SmoothedAggregation(coarsest=0), ValueError, "coarsest must be at least 1"),
    "complexity": (lambda: SmoothedAggregation(max_complexity=0.0), ValueError, "max_complexity must be positive"),
    "component pairs": (lambda: component_eigenpairs(GRAPH, 0), ValueError, "k must be at least 1"),
    "on_failure": (lambda: eigenpairs(LAPLACIAN, 2, on_failure="no"), ValueError, "'warn', 'raise'"),
    "filled by an iterative solver": (
        lambda: eigenpairs(LAPLACIAN, 11, Lobpcg(), fill=True),
        ValueError,
        r"solver must be Eigh\(\) or None to fill graphs of fewer than k=11",
    ),
    "diffusion": (lambda: LaplacianEigenmaps(2, diffusion=-1.0), ValueError, "diffusion must be .* at least 0"),
    "diffusion by name": (lambda: LaplacianEigenmaps(2, diffusion="1"), TypeError, "diffusion must be a number"),
    "unnormalised diffusion": (
        lambda: LaplacianEigenmaps(2, normalization="unnormalized", diffusion=1),
        ValueError,
        "diffusion must be 0",
    ),
    "graphs of a batch": (
        lambda: Graph.from_edge_index(BOTH, batch=torch.tensor([0, 0, 1]), num_graphs=1),
        ValueError,
        "num_graphs must be at least 2",
    ),
    "NaN in a small item": (lambda: knn_graph(NAN[None, 2:5], 5), ValueError, "x must be finite"),
    "components": (lambda: LaplacianEigenmaps(10, KNN(3))(X), ValueError, "n_components=10 with 10"),
    "n_components": (lambda: LaplacianEigenmaps(0), ValueError, "n_components must be at least 1"),
    "scale": (lambda: LaplacianEigenmaps(2, scale="big"), ValueError, "'degree', 'unit'"),
    "components option": (lambda: LaplacianEigenmaps(2, components="all"), ValueError, "'joint', 'separate', 'error'"),
    "fit a batch": (
        lambda: LaplacianEigenmaps(2).fit(X[None]),
        ValueError,
        r"\(N, D\), got a batch of .*\(1, 10, 2\)",
    ),
    "manifold components": (lambda: MDS(0), ValueError, "n_components must be at least 1"),
    "manifold solver": (lambda: LLE(2, solve="eigh"), TypeError, r"solver such as Eigh\(\), got 'eigh'"),
    "manifold points": (lambda: MDS(10)(X), ValueError, "smaller than the number of points.*n_components=10 with 10"),
    "manifold batch": (lambda: KernelPCA(2).fit(X[None]), ValueError, r"\(N, D\), got a batch of .*\(1, 10, 2\)"),
    "manifold NaN": (lambda: LLE(1, KNN(3))(NAN), ValueError, "x must be finite"),
    "positive eigenvalues": (lambda: MDS(3).fit(X), ValueError, "positive eigenvalues.*n_components=3 with 2"),
    "positive eigenvalues, partial": (
        lambda: KernelPCA(4, "linear").fit(points(500, 3)),
        ValueError,
        "n_components=4 with 3; use fewer components",
    ),
    "equal points": (lambda: MDS(1).fit(SAME), ValueError, "n_components=1 with 0"),
    "many equal points": (lambda: MDS(1).fit(torch.ones(500, 2)), ValueError, "n_components=1 with 0"),
    "distances shape": (lambda: DISTANCES(X), ValueError, r"\(N, N\) or \(B, N, N\), got \(10, 2\)"),
    "distances asymmetric": (lambda: DISTANCES(path(4).triu()), ValueError, "must be symmetric"),
    "distances negative": (lambda: DISTANCES(-path(4)), ValueError, "got a minimum of -1"),
    "MDS metric": (lambda: MDS(2, metric="cosine"), ValueError, "Precomputed.* got 'cosine'"),
    "Isomap neighbors": (lambda: Isomap(2, 5), TypeError, r"KNN\(k\), Radius\(r\) or .* got 5"),
    "Isomap in parts": (
        lambda: Isomap(1, KNN(3)).fit(torch.cat([X, X[:6] + 100, X[:5] - 100])),
        ValueError,
        "3 connected components, of 10, 6, 5 points.*use more neighbours",
    ),
    "landmarks": (lambda: Isomap(2, KNN(4), landmarks=1), ValueError, "landmarks must be at least 2"),
    "landmarks > N": (lambda: Isomap(2, KNN(4), landmarks=11)(X), ValueError, "got 11 with 10 points"),
    "landmark twice": (lambda: Isomap(landmarks=torch.tensor([1, 1])), ValueError, "landmarks must be distinct, got 1"),
    "landmark out of range": (
        lambda: Isomap(1, KNN(4), landmarks=torch.tensor([1, 4, 10]))(X),
        ValueError,
        r"lie in \[0, 10\), got 1 to 10",
    ),
    "too few landmarks": (lambda: Isomap(2, KNN(4), landmarks=2)(X), ValueError, "n_components=2 with 2 points"),
    "reg": (lambda: LLE(2, KNN(3), reg=0.0), ValueError, "reg must be positive"),
    "kernel name": (lambda: KernelPCA(2, "sigmoid"), ValueError, "'rbf', 'linear', 'poly', got 'sigmoid'"),
    "kernel type": (lambda: KernelPCA(2, 3), TypeError, 'kernel must be a name such as "rbf", or a function'),
    "kernel shape": (lambda: KernelPCA(1, lambda x, y: x)(X), ValueError, r"shape \(10, 10\), got \(10, 2\)"),
    "kernel NaN": (lambda: KernelPCA(1, lambda x, y: torch.nan * x @ y.T)(X), ValueError, "kernel must be finite"),
    "gamma": (lambda: KernelPCA(2, gamma=-1.0), ValueError, "gamma must be positive"),
    "degree": (lambda: KernelPCA(2, "poly", degree=1.5), TypeError, "degree must be an integer"),
    "multigrid of a kernel": (
        lambda: eigenpairs(SymmetricOperator.of_largest(X @ X.T), 2, Lobpcg()),
        TypeError,
        r"operator must be a Laplacian for multigrid, got a SymmetricOperator; use Lobpcg\(preconditioner=",
    ),
    "operator NaN": (
        lambda: eigenpairs(SymmetricOperator.of_largest(NAN @ NAN.T), 2),
        ValueError,
        "operator must be finite",
    ),
    "shift": (lambda: SparseLU(0.0), ValueError, "shift must be positive"),
    "loss shape": (lambda: laplacian_smoothness(X[:5], GRAPH), ValueError, "to go with the graph"),
    "loss rank": (lambda: laplacian_smoothness(X[:, 0], GRAPH), ValueError, r"\(10, 'k'\)"),
    "loss reduction": (lambda: LaplacianSmoothness(reduction="max"), ValueError, "'weighted_mean', 'sum', 'none'"),
    "part by a mask": (
        lambda: GRAPH.subgraph(torch.ones(10, dtype=torch.bool)),
        TypeError,
        r"int64 tensor, got torch.bool; use nodes.nonzero\(\).flatten\(\)",
    ),
    "no clusters": (lambda: SpectralClustering(0), ValueError, "n_clusters must be at least 1, got 0"),
    "variant": (lambda: SpectralClustering(2, variant="sm"), ValueError, "'njw', 'shi_malik', got 'sm'"),
    "seed": (lambda: SpectralClustering(2, seed=None), TypeError, "seed must be an integer, got None"),
    "solver of clusters": (lambda: SpectralClustering(2, solve="eigh"), TypeError, r"solver such as Eigh\(\)"),
    "neighbors of clusters": (lambda: SpectralClustering(2, 5), TypeError, r"KNN\(k\), Radius\(r\), "),
    "more clusters than points": (
        lambda: SpectralClustering(11, KNN(3)).fit(X),
        ValueError,
        "n_clusters must be at most .* got n_clusters=11 with 10",
    ),
    "more clusters than joined nodes": (
        lambda: SpectralClustering(3, Precomputed("affinity"))(torch.block_diag(path(2), torch.zeros(2, 2))),
        ValueError,
        "positive degree, got n_clusters=3 with 2",
    ),
    "clusters of a batch": (lambda: SpectralClustering(2).fit(X[None]), ValueError, r"\(N, D\), got a batch"),
    "clusters of a batch of graphs": (
        lambda: SpectralClustering(2, Precomputed("affinity")).fit(Graph.from_dense(path(4)[None])),
        ValueError,
        r"got a batch of shape \(1, 4\).* fit the sets one by one",
    ),
    "graph to cluster": (lambda: SpectralClustering(2, KNN(3)).fit(GRAPH), TypeError, "x must be points, got a Graph"),
    "label shape": (lambda: normalized_cut(LABELS[:4], GRAPH), ValueError, r"shape \(10,\) .*got \(4,\)"),
    "label -2": (lambda: normalized_cut(LABELS - 2, GRAPH), ValueError, "−1 for no cluster, got a minimum of -2"),
    "label dtype": (
        lambda: normalized_cut(LABELS.to(torch.complex64), GRAPH),
        TypeError,
        "labels must be float32 or float64, got torch.complex64",
    ),
    "label list": (lambda: normalized_cut([0] * 10, GRAPH), TypeError, "labels must be a torch.Tensor, got list"),
    "float labels": (lambda: normalized_cut(LABELS.float(), GRAPH), ValueError, r"\(10, 'K'\) if they are soft"),
    "negative assignments": (lambda: normalized_cut(-X.abs(), GRAPH), ValueError, "non-negative if they are soft"),
    "NaN assignments": (lambda: normalized_cut(NAN, GRAPH), ValueError, "labels must be finite"),
    "affinity": (
        lambda: estimators.SpectralEmbedding(affinity="cosine").fit(X.numpy()),
        ValueError,
        "affinity must be one of 'nearest_neighbors', 'rbf', .* got 'cosine'",
    ),
    "n_neighbors of an estimator": (
        lambda: estimators.SpectralEmbedding(n_neighbors=11).fit(X.numpy()),
        ValueError,
        "n_neighbors must be at most .* got n_neighbors=11 with n_samples=10",
    ),
    "n_neighbors = 2.5": (
        lambda: estimators.SpectralClustering(2, affinity="nearest_neighbors", n_neighbors=2.5).fit(X.numpy()),
        TypeError,
        "n_neighbors must be an integer, got 2.5",
    ),
    "gamma of an estimator": (
        lambda: estimators.SpectralClustering(2, gamma=-1.0).fit(X.numpy()),
        ValueError,
        "gamma must be a finite number of at least 0, got -1.0",
    ),
    "n_components = N": (
        lambda: estimators.SpectralEmbedding(10).fit(X.numpy()),
        ValueError,
        "n_components must be smaller .* got n_components=10 with n_samples=10",
    ),
    "clusters > samples": (
        lambda: estimators.SpectralClustering(11).fit(X.numpy()),
        ValueError,
        "n_clusters must be at most .* got n_clusters=11 with 10",
    ),
    "n_components of an estimator": (
        lambda: estimators.Isomap(n_components=10).fit(X.numpy()),
        ValueError,
        "n_components must be smaller .* got n_components=10 with n_samples=10",
    ),
    "positive eigenvalues of samples": (
        lambda: estimators.KernelPCA(3).fit(X.numpy()),
        ValueError,
        "positive eigenvalues.*n_components=3 with 2; use fewer components",
    ),
    "neighbours and radius": (
        lambda: estimators.Isomap(n_neighbors=3, radius=1.0).fit(X.numpy()),
        ValueError,
        "n_neighbors must be None with a radius, got n_neighbors=3 with radius=1.0",
    ),
    "n_neighbors of LLE's estimator": (
        lambda: estimators.LocallyLinearEmbedding(n_neighbors=10).fit(X.numpy()),
        ValueError,
        "n_neighbors must be smaller .* got n_neighbors=10 with n_samples=10",
    ),
    "reg of an estimator": (
        lambda: estimators.LocallyLinearEmbedding(reg=-1.0).fit(X.numpy()),
        ValueError,
        "reg must be positive",
    ),
    "kernel of an estimator": (
        lambda: estimators.KernelPCA(kernel="polynomial").fit(X.numpy()),
        ValueError,
        "kernel must be one of 'linear', 'rbf', 'poly', 'sigmoid', 'cosine', 'precomputed', got 'polynomial'",
    ),
    "metric of an estimator": (
        lambda: estimators.ClassicalMDS(metric="cosines").fit(X.numpy()),
        ValueError,
        "metric.* Got 'cosines' instead",
    ),
    "affinities not square": (
        lambda: estimators.SpectralClustering(2, affinity="precomputed").fit(csr_array(path(4).numpy()[:3])),
        ValueError,
        r"X must be square with affinity='precomputed', got \(3, 4\)",
    ),
    "negative affinities": (
        lambda: estimators.SpectralClustering(2, affinity="linear").fit(X.numpy()),
        ValueError,
        r"affinities must be non-negative, got a minimum of -.* in affinity\(X\); use a kernel that is",
    ),
    "affinities of another shape": (
        lambda: estimators.SpectralEmbedding(affinity=lambda x: x).fit(X.numpy()),
        ValueError,
        r"affinity\(X\) must have shape \(10, 10\), got \(10, ",
    ),
    "negative distances": (
        lambda: estimators.SpectralEmbedding(affinity="precomputed_nearest_neighbors").fit(-path(4).numpy()),
        ValueError,
        "X must hold distances, which are not negative, got a minimum of -1",
    ),
    "too few distances": (
        lambda: estimators.SpectralEmbedding(affinity="precomputed_nearest_neighbors", n_neighbors=3).fit(
            csr_array(path(4).numpy())
        ),
        ValueError,
        "X must hold a distance to n_neighbors=3 samples in every row, got 1 in row 0",
    ),
    "weights of a kernel": (
        lambda: estimators.SpectralClustering(2, weights=HeatKernel()).fit(X.numpy()),
        ValueError,
        "weights must be None with affinity='rbf', which weights the edges itself",
    ),
    "two tolerances": (
        lambda: estimators.SpectralEmbedding(eigen_tol=1e-3, solve=Solve(tolerance=1e-6)).fit(X.numpy()),
        ValueError,
        "eigen_tol must be .auto. with a solve that has a tolerance, got 0.001",
    ),
    "eigen_solver": (
        lambda: estimators.SpectralEmbedding(eigen_solver="eigh").fit(X.numpy()),
        ValueError,
        "eigen_solver must be one of 'arpack', 'lobpcg', 'amg', got 'eigh'",
    ),
    "assign_labels": (lambda: SpectralClustering(2, assign_labels="qr"), ValueError, "'discretize', got 'qr'"),
    "columns without clusters": (
        lambda: SpectralClustering(2, assign_labels="cluster_qr", n_components=3),
        ValueError,
        "n_components must be None or n_clusters=2 with assign_labels='cluster_qr'.* got 3",
    ),
    "loss of integers": (lambda: laplacian_smoothness(X.long(), GRAPH), TypeError, "y must be float32 or float64, got"),
    "loss of an array": (lambda: spectral_loss(X.numpy(), GRAPH), TypeError, "y must be a torch.Tensor, got ndarray"),
    "loss without columns": (lambda: spectral_loss(X[:, :0], GRAPH), ValueError, r"\(10, 'k'\)"),
    "loss on a matrix": (lambda: laplacian_smoothness(X, path(10)), TypeError, "graph must be a Graph, got Tensor"),
    "loss mask": (lambda: LaplacianSmoothness(KNN(3))(X, GRAPH, MASK), ValueError, "has its own"),
    "loss neighbors": (lambda: SpectralLoss(10), TypeError, r"neighbors must be KNN\(k\), Radius\(r\), .* got 10"),
    "loss weights": (lambda: LaplacianSmoothness(KNN(3), "heat"), TypeError, "weights must be a Weighting"),
    "orthogonality rank": (lambda: orthogonality(X[:, 0]), ValueError, r"\(N, k\) or \(B, N, k\), got \(10,\)"),
    "orthogonality mask": (lambda: orthogonality(X, mask=MASK[:4]), ValueError, r"mask must have shape \(10,\)"),
    "orthogonality of nothing": (lambda: orthogonality(X, mask=~MASK), ValueError, "without valid rows"),
    "whiten mask": (lambda: whiten(X, GRAPH, MASK), ValueError, "has its own"),
    "whitening size": (lambda: Whitening(0), ValueError, "n_components must be at least 1"),
    "whitening columns": (lambda: Whitening(3)(X), ValueError, r"y must have 3 columns, got shape \(10, 2\)"),
    "whitening a batch": (lambda: Whitening(2).fit(X[None], Graph.from_dense(path(10)[None])), ValueError, "one graph"),
    "whitening rank": (lambda: Whitening(2).fit(X[:, [0, 0]], GRAPH), ValueError, "2 linearly independent.*about 1"),
    "whitening NaN": (lambda: Whitening(2).fit(NAN, GRAPH), ValueError, "y must be finite"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bad_input(case):
    call, error, message = case
    with pytest.raises(error, match=message):
        call()


class Frame:
    """A data frame, as pandas and polars have it."""

    def to_numpy(self):
        return X.numpy()


SIGNED = SignedGraph.from_dense(-path(4))
FOLLOWED = {
    "data frame": (lambda x: knn_graph(x, 3), Frame(), "torch.tensor(x.to_numpy())"),
    "SciPy": (lambda x: knn_graph(x, 3), csr_array(X), "torch.as_tensor(x.toarray())"),
    "list": (lambda x: knn_graph(x, 3), X.tolist(), "torch.as_tensor(x)"),
    "signed graph": (lambda graph: eigenpairs(graph, 2), SIGNED, "SignedLaplacian(graph)"),
    "graph": (lambda graph: eigenpairs(graph, 2), GRAPH, "Laplacian(graph)"),
    "SciPy graph": (lambda graph: Laplacian(graph), GRAPH.to_scipy(), "Graph.from_scipy"),
}


@pytest.mark.parametrize(("call", "given", "advice"), FOLLOWED.values(), ids=FOLLOWED)
def test_advice_can_be_followed(call, given, advice):
    with pytest.raises(TypeError) as error:
        call(given)
    assert advice in str(error.value)
    made = eval(advice, {**vars(torch_lapeig), "torch": torch, "x": given, "graph": given})
    call(made(given) if callable(made) else made)


def test_landmarks_in_parts_are_not_sent_to_an_option_that_they_refuse():
    x = torch.cat([points(40, 2), points(40, 2, seed=1) + 100])
    with pytest.warns(GraphWarning, match="2 connected components") as said:
        LaplacianEigenmaps(2, Landmarks(12, 3))(x)
    assert "separate" not in str(said[0].message)
