"""Embeddings: graphs or kernels of points to coordinates, and new points."""

from torch_lapeig.methods.clustering import SpectralClustering, normalized_cut
from torch_lapeig.methods.eigenmaps import Embedding, LaplacianEigenmaps
from torch_lapeig.methods.manifold import LLE, MDS, Isomap, KernelPCA
from torch_lapeig.methods.positional import NodeEncoding, laplacian_positional_encoding

__all__ = [
    "LLE",
    "MDS",
    "Embedding",
    "Isomap",
    "KernelPCA",
    "LaplacianEigenmaps",
    "NodeEncoding",
    "SpectralClustering",
    "laplacian_positional_encoding",
    "normalized_cut",
]
