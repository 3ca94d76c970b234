"""
Whitening of a batch with equal eigenvalues
===========================================

The inverse square root of a covariance matrix whitens a batch. Early in training, or
after a whitening before, covariances have equal eigenvalues: there the gradient of
``torch.linalg.eigh`` is NaN, and that of ``eigh`` is exact.
"""

import matplotlib.pyplot as plt
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

# %%
# Near equal eigenvalues
# ----------------------
# Eigenvalues 1, 1 + δ and 4: torch divides round-off by δ. Both gradients are compared
# with the formula of the inverse square root, which has no difference to divide by.
generator = torch.Generator().manual_seed(0)
turn, weight = torch.randn(2, 3, 3, dtype=torch.float64, generator=generator)
turn, weight = torch.linalg.qr(turn).Q, weight + weight.mT
gap = torch.logspace(0, -15, 31, dtype=torch.float64)
root = torch.stack([torch.ones(31), (1 + gap).sqrt(), torch.full((31,), 2)], 1).double()
near = (turn @ torch.diag_embed(root**2) @ turn.mT).requires_grad_()
left, right = root[:, :, None], root[:, None, :]
slope = -1 / (left * right * (left + right))
exact = turn @ (slope * (turn.mT @ weight @ turn)) @ turn.mT


def by_torch(x):
    """Return the inverse square root from torch's eigenvectors."""
    values, vectors = torch.linalg.eigh(x)
    return vectors @ torch.diag_embed(values.rsqrt()) @ vectors.mT


figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
for name, whiten in (("torch.linalg.eigh", by_torch), ("eigh", whitened)):
    (gradient,) = torch.autograd.grad((whiten(near) * weight).sum(), near)
    error = (gradient - exact).norm(dim=(1, 2)) / exact.norm(dim=(1, 2))
    ax.loglog(gap, error, "o-", label=name)
    print(f"{name}: error of the gradient up to {error.max():.0e}")
ax.set(xlabel="δ", ylabel="relative error of the gradient")
ax.legend()
plt.show()
