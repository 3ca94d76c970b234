"""Differentiable spectral embedding for PyTorch: points, graph, weights, Laplacian, eigenpairs, embedding."""

from torch_lapeig._checks import ConvergenceError, ConvergenceWarning, DegeneracyWarning, GraphWarning
from torch_lapeig.eigen.amg import SmoothedAggregation
from torch_lapeig.eigen.direct import SparseLU
from torch_lapeig.eigen.laplacian import Laplacian
from torch_lapeig.eigen.operator import SymmetricOperator
from torch_lapeig.eigen.solve import ComponentEigenpairs, Eigenpairs, component_eigenpairs, eigenpairs
from torch_lapeig.eigen.solvers import ChebyshevSubspace, Eigh, Lanczos, Lobpcg, TorchLobpcg
from torch_lapeig.graph.graph import KNN, Graph, Radius, knn_graph, pad_batch, radius_graph
from torch_lapeig.graph.neighbors import Neighbors, Pairs, nearest_neighbors, radius_neighbors
from torch_lapeig.graph.weights import (
    DensityCorrected,
    HeatKernel,
    ImprovedWeights,
    KernelWeights,
    SelfTuning,
    SimpleWeights,
    Weighting,
)
from torch_lapeig.losses import (
    LaplacianSmoothness,
    SpectralLoss,
    Whitening,
    laplacian_smoothness,
    orthogonality,
    spectral_loss,
    whiten,
)
from torch_lapeig.methods.clustering import SpectralClustering, normalized_cut
from torch_lapeig.methods.eigenmaps import Eigenmaps, LaplacianEigenmaps
from torch_lapeig.methods.manifold import LLE, MDS, Isomap, KernelPCA
from torch_lapeig.methods.positional import AddLaplacianPE, PositionalEncoding, laplacian_positional_encoding

__version__ = "0.1.0"

__all__ = [
    "KNN",
    "LLE",
    "MDS",
    "AddLaplacianPE",
    "ChebyshevSubspace",
    "ComponentEigenpairs",
    "ConvergenceError",
    "ConvergenceWarning",
    "DegeneracyWarning",
    "DensityCorrected",
    "Eigenmaps",
    "Eigenpairs",
    "Eigh",
    "Graph",
    "GraphWarning",
    "HeatKernel",
    "ImprovedWeights",
    "Isomap",
    "KernelPCA",
    "KernelWeights",
    "Lanczos",
    "Laplacian",
    "LaplacianEigenmaps",
    "LaplacianSmoothness",
    "Lobpcg",
    "Neighbors",
    "Pairs",
    "PositionalEncoding",
    "Radius",
    "SelfTuning",
    "SimpleWeights",
    "SmoothedAggregation",
    "SparseLU",
    "SpectralClustering",
    "SpectralLoss",
    "SymmetricOperator",
    "TorchLobpcg",
    "Weighting",
    "Whitening",
    "component_eigenpairs",
    "eigenpairs",
    "knn_graph",
    "laplacian_positional_encoding",
    "laplacian_smoothness",
    "nearest_neighbors",
    "normalized_cut",
    "orthogonality",
    "pad_batch",
    "radius_graph",
    "radius_neighbors",
    "spectral_loss",
    "whiten",
]
