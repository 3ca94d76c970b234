"""Differentiable spectral embedding for PyTorch: points, graph, weights, Laplacian, eigenpairs, embedding.

The names of every day. Further names are in `torch_lapeig.graph`, `torch_lapeig.eigen`, `torch_lapeig.methods` and
`torch_lapeig.losses`; interfaces for other ecosystems are `torch_lapeig.sklearn`, `torch_lapeig.lightning` and
`torch_lapeig.pyg`.
"""

from importlib import import_module
from typing import Any

from torch_lapeig.eigen import (
    Eigenpairs,
    Laplacian,
    MagneticLaplacian,
    SignedLaplacian,
    Solve,
    eigenpairs,
    eigh,
    mesh_laplacian,
    svd,
)
from torch_lapeig.graph import (
    KNN,
    DensityCorrected,
    DirectedGraph,
    Graph,
    HeatKernel,
    ImprovedWeights,
    KernelWeights,
    Landmarks,
    Precomputed,
    Radius,
    SelfTuning,
    SignedGraph,
    SimpleWeights,
    knn_graph,
    pad_batch,
    radius_graph,
)
from torch_lapeig.initial import InitialLayout, spectral_init
from torch_lapeig.losses import LaplacianSmoothness, SpectralLoss, Whitening, laplacian_smoothness
from torch_lapeig.methods import (
    LLE,
    MDS,
    DiffusionMap,
    EigenmapsRegression,
    Embedding,
    HarmonicFunction,
    Isomap,
    KernelPCA,
    LabelSpreading,
    LaplacianEigenmaps,
    SignInvariant,
    SpectralClustering,
    SpectralFilter,
    StableEncoding,
    laplacian_positional_encoding,
    normalized_cut,
    spectral_signature,
)
from torch_lapeig.native.versions import show_versions
from torch_lapeig.support.checks import (
    ConvergenceError,
    ConvergenceWarning,
    DegeneracyWarning,
    GraphWarning,
    ResolutionWarning,
)

__version__ = "0.3.0"

__all__ = [
    "KNN",
    "LLE",
    "MDS",
    "ConvergenceError",
    "ConvergenceWarning",
    "DegeneracyWarning",
    "DensityCorrected",
    "DiffusionMap",
    "DirectedGraph",
    "EigenmapsRegression",
    "Eigenpairs",
    "Embedding",
    "Graph",
    "GraphWarning",
    "HarmonicFunction",
    "HeatKernel",
    "ImprovedWeights",
    "InitialLayout",
    "Isomap",
    "KernelPCA",
    "KernelWeights",
    "LabelSpreading",
    "Landmarks",
    "Laplacian",
    "LaplacianEigenmaps",
    "LaplacianSmoothness",
    "MagneticLaplacian",
    "Precomputed",
    "Radius",
    "ResolutionWarning",
    "SelfTuning",
    "SignInvariant",
    "SignedGraph",
    "SignedLaplacian",
    "SimpleWeights",
    "Solve",
    "SpectralClustering",
    "SpectralFilter",
    "SpectralLoss",
    "StableEncoding",
    "Whitening",
    "eigenpairs",
    "eigh",
    "knn_graph",
    "laplacian_positional_encoding",
    "laplacian_smoothness",
    "mesh_laplacian",
    "normalized_cut",
    "pad_batch",
    "radius_graph",
    "show_versions",
    "spectral_init",
    "spectral_signature",
    "svd",
]


def __getattr__(name: str) -> Any:
    """Return a face, imported at first use: `torch_lapeig.sklearn`, for example."""
    if name in ("anndata", "distributed", "lightning", "plots", "pyg", "samplers", "sklearn"):
        return import_module(f"torch_lapeig.{name}")
    raise AttributeError(f"module 'torch_lapeig' has no attribute {name!r}")
