"""
Cosine similarities without the matrix
======================================

Rows of counts, such as words in documents or open sites in cells, are compared by the
cosine of their angle. `FactoredCosine` multiplies by the matrix of all similarities
through its two thin factors, and gradients flow back to the counts.
"""

# %%
# Three groups of rows, half of the columns without meaning
# ---------------------------------------------------------
# A group has counts in ten columns of its own and in thirty columns that all share.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import eigenpairs
from torch_lapeig.eigen import FactoredCosine, FunctionOperator

generator = torch.Generator().manual_seed(0)
group = torch.arange(3).repeat_interleave(200)
rate = 0.7 * torch.ones(600, 60, dtype=torch.float64)
rate[:, :30] = 0.1 + 0.9 * (torch.arange(30) // 10 == group[:, None])
counts = torch.poisson(rate, generator=generator)
print(f"{int((counts > 0).sum())} entries; the matrix would have {len(counts) ** 2}")

operator = FactoredCosine(counts.to_sparse_coo())
pairs = eigenpairs(operator, 3)
embedding = operator.degrees.rsqrt()[:, None] * pairs.vectors[:, 1:]
print(
    f"eigenvalues {pairs.values.tolist()}, largest residual {pairs.residuals.max():.0e}"
)

# %%
# Which columns make the groups?
# ------------------------------
# Each column gets a weight of 1. The gradient of the two eigenvalues after the trivial
# one says which columns hold the groups together and which blur them: more weight on
# a column of the groups lowers the eigenvalues.

weight = torch.ones(60, dtype=torch.float64, requires_grad=True)
values = eigenpairs(FactoredCosine(counts * weight), 3).values
(gradient,) = torch.autograd.grad(values[1:].sum(), weight)
assert (gradient[:30] < 0).all()
assert gradient[30:].mean() > 0

# %%
# Any function that multiplies
# ----------------------------
# The same matrix as a function of a block of columns. Its ends are estimated.

unit = torch.nn.functional.normalize(counts, dim=1)
degree = unit @ unit.sum(0) - 1


def walk(y):
    """Return the product with −D^-½ W D^-½."""
    y = y / degree.sqrt()[:, None]
    return (y - unit @ (unit.T @ y)) / degree.sqrt()[:, None]


largest = eigenpairs(FunctionOperator(walk, 600), 3).values
assert torch.allclose(1 + largest, pairs.values)
print(f"eigenvalues of the walk: {(-largest).tolist()}")

# %%
# The picture
# -----------
figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
axes[0].scatter(*embedding.T, c=group, s=8)
axes[0].set(title="rows, by cosine similarity", xlabel="first column", ylabel="second")
colors = ["C0"] * 30 + ["C1"] * 30
axes[1].bar(range(60), gradient, color=colors)
axes[1].set(title="gradient of the eigenvalues", xlabel="column of counts")
plt.show()
