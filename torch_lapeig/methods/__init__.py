"""Embeddings: graphs or kernels of points to coordinates, and new points."""

from torch_lapeig.methods.alignment import Alignment, align
from torch_lapeig.methods.clustering import SpectralClustering
from torch_lapeig.methods.cuts import normalized_cut, refine_cut
from torch_lapeig.methods.eigenmaps import DiffusionMap, LaplacianEigenmaps
from torch_lapeig.methods.filters import (
    HeatResponse,
    PolynomialResponse,
    SpectralFilter,
    WaveletResponse,
    WaveResponse,
    spectral_function,
    spectral_signature,
)
from torch_lapeig.methods.invariant import Canonical, SignInvariant, StableEncoding, canonicalize
from torch_lapeig.methods.kernels import MDS, Isomap, KernelPCA
from torch_lapeig.methods.lle import LLE
from torch_lapeig.methods.module import Embedding, EmbeddingModule
from torch_lapeig.methods.positional import NodeEncoding, laplacian_positional_encoding
from torch_lapeig.methods.propagation import EigenmapsRegression, HarmonicFunction, LabelSpreading
from torch_lapeig.methods.semisupervised import SemiSupervised

__all__ = [
    "LLE",
    "MDS",
    "Alignment",
    "Canonical",
    "DiffusionMap",
    "EigenmapsRegression",
    "Embedding",
    "EmbeddingModule",
    "HarmonicFunction",
    "HeatResponse",
    "Isomap",
    "KernelPCA",
    "LabelSpreading",
    "LaplacianEigenmaps",
    "NodeEncoding",
    "PolynomialResponse",
    "SemiSupervised",
    "SignInvariant",
    "SpectralClustering",
    "SpectralFilter",
    "StableEncoding",
    "WaveResponse",
    "WaveletResponse",
    "align",
    "canonicalize",
    "laplacian_positional_encoding",
    "normalized_cut",
    "refine_cut",
    "spectral_function",
    "spectral_signature",
]
