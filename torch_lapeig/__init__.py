"""Differentiable spectral embedding for PyTorch: points, graph, weights, Laplacian, eigenpairs, embedding.

The names of every day. Further names are in `torch_lapeig.graph`, `torch_lapeig.eigen`, `torch_lapeig.methods` and
`torch_lapeig.losses`; interfaces for other ecosystems are `torch_lapeig.sklearn`, `torch_lapeig.lightning` and
`torch_lapeig.pyg`.
"""

from importlib import import_module
from typing import Any

from torch_lapeig.eigen import Eigenpairs as Eigenpairs, Laplacian as Laplacian, MagneticLaplacian as MagneticLaplacian
from torch_lapeig.eigen import SignedLaplacian as SignedLaplacian, Solve as Solve, eigenpairs as eigenpairs
from torch_lapeig.eigen import eigh as eigh, mesh_laplacian as mesh_laplacian, svd as svd
from torch_lapeig.graph import KNN as KNN, DensityCorrected as DensityCorrected, DirectedGraph as DirectedGraph
from torch_lapeig.graph import Graph as Graph, HeatKernel as HeatKernel, ImprovedWeights as ImprovedWeights
from torch_lapeig.graph import KernelWeights as KernelWeights, Landmarks as Landmarks, Precomputed as Precomputed
from torch_lapeig.graph import Radius as Radius, SelfTuning as SelfTuning, SignedGraph as SignedGraph
from torch_lapeig.graph import SimpleWeights as SimpleWeights, knn_graph as knn_graph, pad_batch as pad_batch
from torch_lapeig.graph import radius_graph as radius_graph
from torch_lapeig.initial import InitialLayout as InitialLayout, spectral_init as spectral_init
from torch_lapeig.losses import LaplacianSmoothness as LaplacianSmoothness, SpectralLoss as SpectralLoss
from torch_lapeig.losses import Whitening as Whitening, laplacian_smoothness as laplacian_smoothness
from torch_lapeig.methods import LLE as LLE, MDS as MDS, DiffusionMap as DiffusionMap
from torch_lapeig.methods import EigenmapsRegression as EigenmapsRegression, Embedding as Embedding
from torch_lapeig.methods import HarmonicFunction as HarmonicFunction, Isomap as Isomap, KernelPCA as KernelPCA
from torch_lapeig.methods import LabelSpreading as LabelSpreading, LaplacianEigenmaps as LaplacianEigenmaps
from torch_lapeig.methods import SignInvariant as SignInvariant, SpectralClustering as SpectralClustering
from torch_lapeig.methods import SpectralFilter as SpectralFilter, StableEncoding as StableEncoding, align as align
from torch_lapeig.methods import laplacian_positional_encoding as laplacian_positional_encoding
from torch_lapeig.methods import normalized_cut as normalized_cut, spectral_signature as spectral_signature
from torch_lapeig.native.versions import show_versions as show_versions
from torch_lapeig.support.checks import ConvergenceError as ConvergenceError, ConvergenceWarning as ConvergenceWarning
from torch_lapeig.support.checks import DegeneracyWarning as DegeneracyWarning, GraphWarning as GraphWarning
from torch_lapeig.support.checks import ResolutionWarning as ResolutionWarning

__version__ = "0.4.0"

__all__ = sorted(name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__))


def __getattr__(name: str) -> Any:
    """Return a face, imported at first use: `torch_lapeig.sklearn`, for example."""
    if name in ("anndata", "distributed", "lightning", "plots", "pyg", "samplers", "sklearn"):
        return import_module(f"torch_lapeig.{name}")
    raise AttributeError(f"module 'torch_lapeig' has no attribute {name!r}")
