"""scikit-learn estimators: NumPy in and out, thin faces over the modules with ``fit`` and ``transform``.

Estimators have the names of scikit-learn's for the same method, and so have parameters of the same meaning.
`SpectralEmbedding` and `SpectralClustering` replace scikit-learn's: docs/sklearn.md lists the differences.

Needs scikit-learn ≥ 1.6, the extra ``sklearn``; ``import torch_lapeig`` alone does not.
"""

try:
    import sklearn.base  # noqa: F401
except ImportError as error:
    from torch_lapeig.support.extras import how_to_install

    raise ImportError(f"torch_lapeig.sklearn needs scikit-learn ≥ 1.6: {how_to_install('sklearn')}") from error

from torch_lapeig.sklearn.labels import HarmonicFunction, LabelSpreading
from torch_lapeig.sklearn.manifolds import ClassicalMDS, Isomap, KernelPCA, LocallyLinearEmbedding
from torch_lapeig.sklearn.spectral import (
    SpectralClustering,
    SpectralEmbedding,
    spectral_clustering,
    spectral_embedding,
)

__all__ = [
    "ClassicalMDS",
    "HarmonicFunction",
    "Isomap",
    "KernelPCA",
    "LabelSpreading",
    "LocallyLinearEmbedding",
    "SpectralClustering",
    "SpectralEmbedding",
    "spectral_clustering",
    "spectral_embedding",
]
