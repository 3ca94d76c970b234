"""Embeddings: graphs or kernels of points to coordinates, and new points."""

from torch_lapeig.methods.alignment import Alignment as Alignment, align as align
from torch_lapeig.methods.clustering import SpectralClustering as SpectralClustering
from torch_lapeig.methods.cuts import normalized_cut as normalized_cut, refine_cut as refine_cut
from torch_lapeig.methods.eigenmaps import DiffusionMap as DiffusionMap, LaplacianEigenmaps as LaplacianEigenmaps
from torch_lapeig.methods.filters import HeatResponse as HeatResponse, PolynomialResponse as PolynomialResponse
from torch_lapeig.methods.filters import SpectralFilter as SpectralFilter, WaveletResponse as WaveletResponse
from torch_lapeig.methods.filters import WaveResponse as WaveResponse, spectral_function as spectral_function
from torch_lapeig.methods.filters import spectral_signature as spectral_signature
from torch_lapeig.methods.invariant import Canonical as Canonical, SignInvariant as SignInvariant
from torch_lapeig.methods.invariant import StableEncoding as StableEncoding, canonicalize as canonicalize
from torch_lapeig.methods.kernels import MDS as MDS, Isomap as Isomap, KernelPCA as KernelPCA
from torch_lapeig.methods.lle import LLE as LLE
from torch_lapeig.methods.module import Embedding as Embedding, EmbeddingModule as EmbeddingModule
from torch_lapeig.methods.positional import NodeEncoding as NodeEncoding
from torch_lapeig.methods.positional import laplacian_positional_encoding as laplacian_positional_encoding
from torch_lapeig.methods.propagation import EigenmapsRegression as EigenmapsRegression
from torch_lapeig.methods.propagation import HarmonicFunction as HarmonicFunction, LabelSpreading as LabelSpreading
from torch_lapeig.methods.semisupervised import SemiSupervised as SemiSupervised

__all__ = sorted(name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__))
