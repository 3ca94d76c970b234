"""
Whitening of a batch with equal eigenvalues
===========================================

The inverse square root of a covariance matrix whitens a batch. Early in training, or
after a whitening before, covariances have equal eigenvalues: there the gradient of
``torch.linalg.eigh`` is NaN, and that of ``eigh`` is exact.
"""

import torch

from torch_lapeig import eigh

# %%
# Four covariances: two with equal eigenvalues, two without.
scale = torch.tensor([[1, 1, 1], [4, 4, 1], [3, 2, 1], [9, 4, 1]], dtype=torch.float64)
covariance = torch.diag_embed(scale).requires_grad_()

# %%
# By torch: the gradient of the first two is NaN.
values, vectors = torch.linalg.eigh(covariance)
whitening = vectors @ torch.diag_embed(values.rsqrt()) @ vectors.mT
(gradient,) = torch.autograd.grad(whitening.sum(), covariance)
print("torch.linalg.eigh:", gradient.isfinite().all((1, 2)).tolist())

# %%
# By ``matrix_function``: finite, and that of finite differences.
whitening = eigh(covariance).matrix_function(torch.rsqrt)
(gradient,) = torch.autograd.grad(whitening.sum(), covariance)
print("eigh:", gradient.isfinite().all((1, 2)).tolist())


def whitened(x):
    """Return the inverse square root of the symmetric part."""
    return eigh((x + x.mT) / 2).matrix_function(torch.rsqrt)


print("equal to finite differences:", torch.autograd.gradcheck(whitened, covariance))
