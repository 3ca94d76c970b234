"""
Gradients at equal eigenvalues
==============================

Symmetric shapes, rings, grids and molecules have equal eigenvalues.
``torch.linalg.eigh`` returns NaN as the gradient there; here the gradient is exact
wherever there is one.
"""

# %%
# A ring, whose eigenvalues come in pairs
# ---------------------------------------
# The loss sees the span of two eigenvectors only, through the projector V Vᵀ. Such a
# loss has a gradient at equal eigenvalues, which the difference quotient approximates.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import Graph, Laplacian, Solve, eigenpairs

n = 12
torch.manual_seed(0)
target = torch.randn(n, n, dtype=torch.float64)
ring = torch.arange(n)
forward = torch.stack([ring, (ring + 1) % n])
edges = torch.cat([forward, forward.flip(0)], 1)


def ours(weight):
    """Return the loss of the constant vector and the first pair of equal values."""
    graph = Graph.from_edge_index(edges, torch.cat([weight, weight]), num_nodes=n)
    vectors = eigenpairs(Laplacian(graph), 3).vectors
    return (target * (vectors @ vectors.mT)).sum()


def wider(weight):
    """Return the same loss; eigenvalues closer than 1e-6 count as equal."""
    graph = Graph.from_edge_index(edges, torch.cat([weight, weight]), num_nodes=n)
    vectors = eigenpairs(Laplacian(graph), 3, Solve(cluster_width=1e-6)).vectors
    return (target * (vectors @ vectors.mT)).sum()


def by_eigh(weight):
    """Return the same loss by ``torch.linalg.eigh`` of the dense matrix."""
    affinity = torch.zeros(n, n, dtype=torch.float64).index_put(
        (edges[0], edges[1]), torch.cat([weight, weight])
    )
    scale = affinity.sum(1).rsqrt()
    vectors = torch.linalg.eigh(
        torch.eye(n) - scale[:, None] * affinity * scale
    ).eigenvectors[:, :3]
    return (target * (vectors @ vectors.mT)).sum()


def quotient(loss, weight, step=1e-5):
    """Return the gradient by central differences."""
    moves = step * torch.eye(n, dtype=torch.float64)
    return torch.stack(
        [(loss(weight + move) - loss(weight - move)) / (2 * step) for move in moves]
    )


# %%
# Equal, and nearly equal
# -----------------------
# One edge is made a little heavier than the others, by a relative amount that goes down
# to zero, and the two eigenvalues come together. The picture shows the error of the
# gradient, relative to the difference quotient.
#
# Eigenvalues that are nearly, but not quite, equal are distinct to both: a loss may
# depend on their vectors one by one. The derivative of each divides round-off by the
# difference, and the error grows as the difference shrinks. If a loss does not depend
# on the basis, set ``cluster_width``: closer eigenvalues count as equal, and no digit
# is lost.

amounts = [10.0**-power for power in range(1, 16)] + [0.0]
errors = {
    "torch.linalg.eigh": [],
    "torch_lapeig": [],
    "torch_lapeig, cluster_width=1e-6": [],
}
for amount in amounts:
    weight = torch.ones(n, dtype=torch.float64)
    weight[0] += amount
    reference = quotient(ours, weight)
    for name, loss in zip(errors, (by_eigh, ours, wider), strict=True):
        leaf = weight.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf), leaf)
        errors[name].append(float((gradient - reference).norm() / reference.norm()))
for name, row in errors.items():
    finite = [value for value in row if value < float("inf")]
    print(
        f"{name:32s} not finite at {len(row) - len(finite)} of {len(row)}, largest "
        f"error {max(finite):.1e}"
    )

# %%
# The picture
# -----------
# The rightmost points are those of equal eigenvalues; a missing one is a gradient that
# is not finite. The floor is the error of the difference quotient itself.

figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for name, row in errors.items():
    axes.loglog([*amounts[:-1], 1e-16], row, "o-", label=name)
axes.set(xlabel="how much heavier one edge is", ylabel="relative error of the gradient")
axes.set_xticks([1e-4, 1e-8, 1e-12, 1e-16], labels=["1e-4", "1e-8", "1e-12", "equal"])
axes.minorticks_off()
axes.invert_xaxis()
figure.legend(loc="outside upper center", ncols=3)
plt.show()
