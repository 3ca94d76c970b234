"""Bad input: each case with the error it raises, which names the argument, what arrived and the way out."""

import pytest
import torch
from scipy.sparse import csr_array

from problems import path, points, two_cliques
from torch_lapeig import (
    KNN,
    DensityCorrected,
    Graph,
    HeatKernel,
    ImprovedWeights,
    KernelWeights,
    Lanczos,
    Laplacian,
    LaplacianEigenmaps,
    LaplacianSmoothness,
    Lobpcg,
    Radius,
    SelfTuning,
    SmoothedAggregation,
    TorchLobpcg,
    component_eigenpairs,
    eigenpairs,
    knn_graph,
    laplacian_smoothness,
    nearest_neighbors,
    radius_graph,
    radius_neighbors,
)

X = points(10, 2)
NAN, INF = X.clone(), X.clone()
NAN[3, 1], INF[0, 0] = torch.nan, torch.inf
GRAPH = knn_graph(X, 3)
LAPLACIAN = Laplacian(GRAPH)
MASK = torch.ones(10, dtype=torch.bool)
SAME = torch.ones(10, 2)
BOTH = torch.tensor([[0, 1], [1, 0]])
FITTED = LaplacianEigenmaps(1, KNN(3)).fit(X)

CASES = {
    "NaN": (lambda: knn_graph(NAN, 3), ValueError, r"x must be finite, got 1 NaN or Inf of 20 .*\(3, 1\)"),
    "Inf": (lambda: radius_graph(INF, 1.0), ValueError, "x must be finite"),
    "rank 1": (lambda: knn_graph(X[:, 0], 3), ValueError, r"\(N, D\) or \(B, N, D\), got \(10,\)"),
    "rank 4": (lambda: knn_graph(X[None, None], 3), ValueError, "got .1, 1, 10, 2."),
    "integers": (lambda: knn_graph(X.long(), 3), TypeError, r"float32 or float64, got torch.int64; use x.float\(\)"),
    "half": (lambda: knn_graph(X.half(), 3), TypeError, "got torch.float16"),
    "array": (lambda: knn_graph(X.numpy(), 3), TypeError, "torch.Tensor, got ndarray"),
    "k = N": (lambda: knn_graph(X, 10), ValueError, "k must be smaller than the number of points, got k=10 with 10"),
    "k = valid": (lambda: knn_graph(X, 3, mask=torch.arange(10) < 3), ValueError, "k=3 with 3 points"),
    "k = 0": (lambda: knn_graph(X, 0), ValueError, "k must be at least 1, got 0"),
    "k = 2.5": (lambda: KNN(2.5), TypeError, "k must be an integer, got 2.5"),
    "k = True": (lambda: KNN(True), TypeError, "k must be an integer"),
    "one point": (lambda: knn_graph(X[:1], 1), ValueError, "at least 2 points"),
    "no dimension": (lambda: knn_graph(X[:, :0], 1), ValueError, "dimension"),
    "empty batch": (lambda: knn_graph(X[None][:0], 1), ValueError, r"got \(0, 10, 2\)"),
    "rule": (lambda: KNN(3, "both"), ValueError, "'union', 'mutual', 'mean', got 'both'"),
    "radius 0": (lambda: radius_graph(X, 0.0), ValueError, "radius must be positive"),
    "radius NaN": (lambda: Radius(float("nan")), ValueError, "radius must be positive"),
    "radius too small": (lambda: radius_graph(X, 1e-9), ValueError, "use a larger radius"),
    "mask dtype": (lambda: knn_graph(X, 3, mask=MASK.float()), TypeError, "mask must be a boolean tensor"),
    "mask shape": (lambda: knn_graph(X, 3, mask=MASK[:4]), ValueError, r"mask must have shape \(10,\)"),
    "t = 0": (lambda: HeatKernel(0.0), ValueError, "t must be positive"),
    "t < 0": (lambda: HeatKernel(-1.0), ValueError, "t must be positive and finite, got -1.0"),
    "t word": (lambda: HeatKernel("mean"), ValueError, "'median', 'component-median', got 'mean'"),
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
        "of one item",
    ),
    "mask of a graph": (lambda: LaplacianEigenmaps(1, "precomputed")(GRAPH, MASK), ValueError, "carries its own"),
    "density of a non-symmetric graph": (
        lambda: DensityCorrected(1.0, ImprovedWeights())(X, GRAPH),
        ValueError,
        "symmetric to be corrected",
    ),
    "alpha": (lambda: DensityCorrected(1.5), ValueError, r"alpha must be a number in \[0, 1\], got 1.5"),
    "m": (lambda: SelfTuning(0), ValueError, "m must be at least 1"),
    "m of copies": (lambda: SelfTuning(2)(SAME, knn_graph(SAME, 3)), ValueError, "m=2 neighbours of node 0 are copies"),
    "kernel": (lambda: KernelWeights(torch.neg)(X, GRAPH), ValueError, "finite, non-negative weights"),
    "improved twice": (lambda: ImprovedWeights()(X, ImprovedWeights()(X, GRAPH)), ValueError, "already"),
    "NaN points to weight": (lambda: HeatKernel(1.0)(NAN, GRAPH), ValueError, "x must be finite"),
    "not a graph": (lambda: Laplacian(path(4)), TypeError, "graph must be a Graph, got Tensor"),
    "not a Laplacian": (
        lambda: eigenpairs(path(4), 2),
        TypeError,
        r"got Tensor; use Laplacian\(graph\)",
    ),
    "negative weights": (
        lambda: eigenpairs(Laplacian(GRAPH.with_weight(torch.linspace(-1e-3, 1, GRAPH.weight.numel()).double())), 2),
        ValueError,
        "non-negative weights",
    ),
    "neighbors": (lambda: LaplacianEigenmaps(2, 5), TypeError, r"KNN\(k\), Radius\(r\) or .precomputed., got 5"),
    "weights": (lambda: LaplacianEigenmaps(2, KNN(3), "heat"), TypeError, "weights must be a Weighting"),
    "solver": (lambda: LaplacianEigenmaps(2, solver="eigh"), TypeError, r"solver such as Eigh\(\)"),
    "precomputed weights": (
        lambda: LaplacianEigenmaps(2, "precomputed", HeatKernel()),
        ValueError,
        "weights must be None",
    ),
    "precomputed word": (lambda: LaplacianEigenmaps(2, "affinity"), ValueError, "'precomputed', got 'affinity'"),
    "graph for points": (lambda: LaplacianEigenmaps(2, KNN(3))(GRAPH), TypeError, "x must be points, got a Graph"),
    "nothing to embed": (
        lambda: LaplacianEigenmaps(1, "precomputed", components="separate").fit(torch.eye(3)),
        ValueError,
        "no component of two or more",
    ),
    "normalisation": (lambda: Laplacian(GRAPH, "left"), ValueError, "normalization must be one of"),
    "matmul": (lambda: LAPLACIAN.matmul(X[:5]), ValueError, r"y must have shape \(10, 'm'\)"),
    "pairs > N": (lambda: eigenpairs(LAPLACIAN, 11), ValueError, "got k=11 with 10"),
    "pairs = 0": (lambda: eigenpairs(LAPLACIAN, 0), ValueError, "k must be at least 1"),
    "Inf weights": (
        lambda: eigenpairs(Laplacian(GRAPH.with_weight(GRAPH.weight * torch.inf)), 2),
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
    "warm start": (lambda: eigenpairs(LAPLACIAN, 2, warm_start=X), TypeError, "warm_start must be Eigenpairs"),
    "guards": (lambda: Lobpcg(guards=0), ValueError, "guards must be at least 1"),
    "iterations": (lambda: Lobpcg(max_iterations=-1), ValueError, "max_iterations must be at least 0"),
    "basis": (lambda: Lanczos(basis=2), ValueError, "basis must be at least 3"),
    "products": (lambda: Lanczos(max_products=1.5), TypeError, "max_products must be an integer"),
    "coarsest": (lambda: SmoothedAggregation(coarsest=0), ValueError, "coarsest must be at least 1"),
    "complexity": (lambda: SmoothedAggregation(max_complexity=0.0), ValueError, "max_complexity must be positive"),
    "torch.lobpcg": (lambda: eigenpairs(LAPLACIAN, 4, TorchLobpcg()), ValueError, "at least 15 nodes for 5 vectors"),
    "component pairs": (lambda: component_eigenpairs(GRAPH, 0), ValueError, "k must be at least 1"),
    "on_failure": (lambda: eigenpairs(LAPLACIAN, 2, on_failure="no"), ValueError, "'warn', 'raise'"),
    "filled by an iterative solver": (
        lambda: eigenpairs(LAPLACIAN, 11, Lanczos(), fill=True),
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
    "components": (lambda: LaplacianEigenmaps(10, KNN(3))(X), ValueError, "k=11 with 10"),
    "n_components": (lambda: LaplacianEigenmaps(0), ValueError, "n_components must be at least 1"),
    "scale": (lambda: LaplacianEigenmaps(2, scale="big"), ValueError, "'degree', 'unit'"),
    "components rule": (lambda: LaplacianEigenmaps(2, components="all"), ValueError, "'joint', 'separate', 'error'"),
    "fit a batch": (lambda: LaplacianEigenmaps(2).fit(X[None]), ValueError, r"shape \(N, D\), got \(1, 10, 2\)"),
    "not fitted": (lambda: LaplacianEigenmaps(2).transform(X), RuntimeError, r"call fit\(x\) first"),
    "other dimension": (lambda: FITTED.transform(X[:, :1]), ValueError, "dimension 2, got .* dimension 1"),
    "other dtype": (lambda: FITTED.transform(X.float()), ValueError, "torch.float64 of dimension 2, got torch.float32"),
    "NaN query": (lambda: FITTED.transform(NAN), ValueError, "x must be finite"),
    "loss shape": (lambda: laplacian_smoothness(X[:5], GRAPH), ValueError, "to go with the graph"),
    "loss rank": (lambda: laplacian_smoothness(X[:, 0], GRAPH), ValueError, r"\(10, 'k'\)"),
    "loss reduction": (lambda: LaplacianSmoothness(reduction="max"), ValueError, "'mean', 'sum', 'none'"),
    "mean of nothing": (
        lambda: laplacian_smoothness(X[:4], Graph.from_dense(0 * two_cliques(2, 2))),
        ValueError,
        "no edges",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bad_input(case):
    call, error, message = case
    with pytest.raises(error, match=message):
        call()
