"""scikit-learn estimators: NumPy in and out, thin faces over the modules with ``fit`` and ``transform``.

Estimators have the names of scikit-learn's for the same method, and so have parameters of the same meaning.
`SpectralEmbedding` and `SpectralClustering` replace scikit-learn's, and embed or label new samples.

Needs scikit-learn ≥ 1.6, the extra ``sklearn``; ``import torch_lapeig`` alone does not.
"""

try:
    import sklearn.base  # noqa: F401
except ImportError as error:
    from torch_lapeig.support.extras import how_to_install

    raise ImportError(f"torch_lapeig.sklearn needs scikit-learn ≥ 1.6: {how_to_install('sklearn')}") from error

from torch_lapeig.sklearn.labels import HarmonicFunction as HarmonicFunction, HarmonicRegressor as HarmonicRegressor
from torch_lapeig.sklearn.labels import LabelSpreading as LabelSpreading
from torch_lapeig.sklearn.manifolds import ClassicalMDS as ClassicalMDS, Isomap as Isomap, KernelPCA as KernelPCA
from torch_lapeig.sklearn.manifolds import LocallyLinearEmbedding as LocallyLinearEmbedding
from torch_lapeig.sklearn.spectral import SpectralClustering as SpectralClustering
from torch_lapeig.sklearn.spectral import SpectralEmbedding as SpectralEmbedding
from torch_lapeig.sklearn.spectral import spectral_clustering as spectral_clustering
from torch_lapeig.sklearn.spectral import spectral_embedding as spectral_embedding

__all__ = sorted(name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__))
