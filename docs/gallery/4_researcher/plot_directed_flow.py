"""
Communities that only directions show
=====================================

Three groups of nodes are joined at random: every two nodes have an edge with the same
probability, so the graph without directions has no groups. But edges between groups
mostly run from the first to the second, from the second to the third, and from the
third back to the first. The magnetic Laplacian sees this: its phases are the groups.
"""

# %%
# A flow around three groups
# --------------------------

import matplotlib.pyplot as plt
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from torch_lapeig import DirectedGraph, Laplacian, MagneticLaplacian, eigenpairs

generator = torch.Generator().manual_seed(0)
n = 300
group = torch.arange(3).repeat_interleave(n // 3)
start, end = torch.triu_indices(n, n, 1)
joined = torch.rand(len(start), generator=generator) < 0.1
start, end = start[joined], end[joined]
step = (group[end] - group[start]) % 3  # 1: along the flow, 2: against it
along = torch.where(step == 1, 0.95, torch.where(step == 2, 0.05, 0.5))
kept = torch.rand(len(start), generator=generator) < along
arcs = torch.where(kept, torch.stack([start, end]), torch.stack([end, start]))
graph = DirectedGraph.from_edge_index(arcs, torch.ones(arcs.shape[1]).double(), n)


def score(columns):
    """Return how well clusters of rows agree with the groups; 0 is chance."""
    found = KMeans(3, n_init=10, random_state=0).fit_predict(columns.detach())
    return adjusted_rand_score(group, found)


# %%
# With and without directions
# ---------------------------
# Each arc along the flow turns the phase. The phase of the first vector is the group.

y = MagneticLaplacian(graph).eigenpairs(1).vectors[:, 0]
plain = eigenpairs(Laplacian(graph.affinities()), 3).vectors[:, 1:]
with_directions = score(torch.stack([y.real, y.imag], 1))
without = score(plain)
print(f"adjusted Rand index: {with_directions:.3f}, without directions {without:.3f}")
assert with_directions > 0.95
assert without < 0.1

# %%
# The charge that fits
# --------------------
# Several charges are solved together. The smallest eigenvalue is 0 without a charge,
# and has a minimum where the phases fit the flow. First and second derivatives flow to
# the charge, so that Newton's method finds it. Arcs along the flow fit best at 1/3,
# where three steps lead back to the start. Those within groups run both ways and fit
# best at 0. A third of the edges lie within groups: the sum of all cosines is largest
# at 1/4.

charges = torch.linspace(0, 0.5, 21, dtype=torch.float64)
lowest = MagneticLaplacian(graph, charges).eigenpairs(1).values[:, 0]

q = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
for _ in range(4):  # Newton's method
    value = MagneticLaplacian(graph, q).eigenpairs(1).values[0]
    (slope,) = torch.autograd.grad(value, q, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, q)
    q = (q - slope / curvature).detach().requires_grad_()
print(f"the charge that fits: {q.item():.3f}")
assert abs(q.item() - 1 / 4) < 0.01

figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
for c in range(3):
    rows = group == c
    axes[0].scatter(*plain[rows].T, s=10)
    axes[1].scatter(y[rows].real, y[rows].imag, s=10)
axes[0].set(title=f"without directions, ARI {without:.2f}", xticks=[], yticks=[])
axes[1].set(title=f"magnetic, q = 1/4, ARI {with_directions:.2f}", aspect="equal")
axes[1].set(xlabel="real part", ylabel="imaginary part")
axes[2].plot(charges, lowest, ".-")
axes[2].axvline(q.item(), color="C3", label=f"found: {q.item():.3f}")
axes[2].set(title="which charge fits the flow", xlabel="q", ylabel="λ₁")
axes[2].legend()
plt.show()

# sphinx_gallery_thumbnail_panel = 2
