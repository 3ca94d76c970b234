"""Embeddings: graphs or kernels of points to coordinates, and new points."""

from torch_lapeig.methods.clustering import SpectralClustering
from torch_lapeig.methods.cuts import normalized_cut, refine_cut
from torch_lapeig.methods.eigenmaps import LaplacianEigenmaps
from torch_lapeig.methods.isomap import Isomap
from torch_lapeig.methods.kernel_pca import KernelPCA
from torch_lapeig.methods.lle import LLE
from torch_lapeig.methods.mds import MDS
from torch_lapeig.methods.module import Embedding, EmbeddingModule
from torch_lapeig.methods.positional import NodeEncoding, laplacian_positional_encoding
from torch_lapeig.methods.propagation import EigenmapsRegression, HarmonicFunction, LabelSpreading
from torch_lapeig.methods.semisupervised import SemiSupervised

__all__ = [
    "LLE",
    "MDS",
    "EigenmapsRegression",
    "Embedding",
    "EmbeddingModule",
    "HarmonicFunction",
    "Isomap",
    "KernelPCA",
    "LabelSpreading",
    "LaplacianEigenmaps",
    "NodeEncoding",
    "SemiSupervised",
    "SpectralClustering",
    "laplacian_positional_encoding",
    "normalized_cut",
    "refine_cut",
]
