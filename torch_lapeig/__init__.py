"""Differentiable spectral embedding for PyTorch: points, graph, weights, Laplacian, eigenpairs, embedding.

The names of every day. Further names are in `torch_lapeig.graph`, `torch_lapeig.eigen`, `torch_lapeig.methods` and
`torch_lapeig.losses`; interfaces for other ecosystems are `torch_lapeig.sklearn`, `torch_lapeig.lightning` and
`torch_lapeig.pyg`.
"""
# ruff: noqa: I001 (one statement for each module)

from importlib import import_module
from typing import Any

from torch_lapeig.eigen import (
    Eigenpairs as Eigenpairs,
    Laplacian as Laplacian,
    MagneticLaplacian as MagneticLaplacian,
    SignedLaplacian as SignedLaplacian,
    Solve as Solve,
    eigenpairs as eigenpairs,
    eigh as eigh,
    mesh_laplacian as mesh_laplacian,
    svd as svd,
)
from torch_lapeig.graph import (
    KNN as KNN,
    DensityCorrected as DensityCorrected,
    DirectedGraph as DirectedGraph,
    Graph as Graph,
    HeatKernel as HeatKernel,
    ImprovedWeights as ImprovedWeights,
    KernelWeights as KernelWeights,
    Landmarks as Landmarks,
    Precomputed as Precomputed,
    Radius as Radius,
    SelfTuning as SelfTuning,
    SignedGraph as SignedGraph,
    SimpleWeights as SimpleWeights,
    knn_graph as knn_graph,
    pad_batch as pad_batch,
    radius_graph as radius_graph,
)
from torch_lapeig.initial import InitialLayout as InitialLayout, spectral_init as spectral_init
from torch_lapeig.losses import (
    LaplacianSmoothness as LaplacianSmoothness,
    SpectralLoss as SpectralLoss,
    Whitening as Whitening,
    laplacian_smoothness as laplacian_smoothness,
)
from torch_lapeig.methods import (
    LLE as LLE,
    MDS as MDS,
    DiffusionMap as DiffusionMap,
    EigenmapsRegression as EigenmapsRegression,
    Embedding as Embedding,
    HarmonicFunction as HarmonicFunction,
    Isomap as Isomap,
    KernelPCA as KernelPCA,
    LabelSpreading as LabelSpreading,
    LaplacianEigenmaps as LaplacianEigenmaps,
    SignInvariant as SignInvariant,
    SpectralClustering as SpectralClustering,
    SpectralFilter as SpectralFilter,
    StableEncoding as StableEncoding,
    align as align,
    laplacian_positional_encoding as laplacian_positional_encoding,
    normalized_cut as normalized_cut,
    spectral_signature as spectral_signature,
)
from torch_lapeig.native.versions import show_versions as show_versions
from torch_lapeig.support.checks import (
    ConvergenceError as ConvergenceError,
    ConvergenceWarning as ConvergenceWarning,
    DegeneracyWarning as DegeneracyWarning,
    GraphWarning as GraphWarning,
    ResolutionWarning as ResolutionWarning,
)

__version__ = "0.3.0"

__all__ = sorted(name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__))


def __getattr__(name: str) -> Any:
    """Return a face, imported at first use: `torch_lapeig.sklearn`, for example."""
    if name in ("anndata", "distributed", "lightning", "plots", "pyg", "samplers", "sklearn"):
        return import_module(f"torch_lapeig.{name}")
    raise AttributeError(f"module 'torch_lapeig' has no attribute {name!r}")
