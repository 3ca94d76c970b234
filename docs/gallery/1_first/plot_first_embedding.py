"""
A first embedding
=================

A swiss roll in two columns.
"""

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, LaplacianEigenmaps

generator = torch.Generator().manual_seed(0)
angle = 3 * torch.pi * (0.5 + torch.rand(1000, generator=generator))
x = torch.stack([angle * angle.cos(), 20 * torch.rand(1000, generator=generator), angle * angle.sin()], 1)
y = LaplacianEigenmaps(2, KNN(10))(x)

# %%
# The colour is the position along the roll.
plt.scatter(*y.T, c=angle, s=5)
plt.show()
