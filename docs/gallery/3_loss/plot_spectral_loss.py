"""
A network that becomes the eigenfunctions
=========================================

An encoder trained with the spectral loss gives eigenvectors at any number of new
points, for the price of one forward pass. The minimum of the loss is known beforehand:
the sum of the eigenvalues.
"""

# %%
# An encoder of a ring-shaped band
# --------------------------------
# The loss depends on the span of the outputs only and needs no constraint; `Whitening`
# then turns the outputs into the eigenfunctions, in order.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import (
    HeatKernel,
    Laplacian,
    SpectralLoss,
    Whitening,
    eigenpairs,
    knn_graph,
)

torch.manual_seed(0)


def band(count):
    """Return points of a band around a circle."""
    angle, radius = 2 * torch.pi * torch.rand(count), 1 + 0.3 * torch.rand(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


x = band(1200)
graph = HeatKernel()(x, knn_graph(x, 12))
encoder = torch.nn.Sequential(
    torch.nn.Linear(2, 64),
    torch.nn.Tanh(),
    torch.nn.Linear(64, 64),
    torch.nn.Tanh(),
    torch.nn.Linear(64, 4),
)
loss_of = SpectralLoss()
optimiser = torch.optim.Adam(encoder.parameters(), 5e-3)
losses = []
for _ in range(400):
    loss = loss_of(encoder(x), graph)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())

pairs = eigenpairs(Laplacian(graph, "random_walk"), 5)
bound = pairs.values[1:].sum().item()
print(
    f"loss at the start {losses[0]:.4f}, at the end {losses[-1]:.4f}; it can not fall "
    f"below {bound:.4f}"
)

# %%
# Compared with the eigenvectors
# ------------------------------
# The largest angle between the span of the encoder's outputs and that of the exact
# eigenvectors, in the inner product of the degrees.

with torch.no_grad():
    whitening = Whitening(4).fit(encoder(x), graph)
    y = whitening(encoder(x))
degree = graph.to_dense().sum(1, keepdim=True)
exact, found = (
    torch.linalg.qr((degree.sqrt() * part).double()).Q
    for part in (pairs.vectors[:, 1:], y)
)
sine = torch.linalg.matrix_norm(found - exact @ (exact.mT @ found), 2)
print(f"largest angle {sine.clamp_max(1).asin().rad2deg():.1f}°")
print("eigenvalues, exact:  ", [f"{value:.5f}" for value in pairs.values[1:]])
print("eigenvalues, encoder:", [f"{value:.5f}" for value in whitening.eigenvalues_])

# %%
# The picture
# -----------
# Above: the first two exact eigenvectors and the loss. Below: the same functions by the
# encoder, at 5000 new points.

new = band(5000)
with torch.no_grad():
    y_new = whitening(encoder(new))
figure, axes = plt.subplots(2, 3, figsize=(10, 6), layout="constrained")
for column in (0, 1):
    axes[0, column].scatter(*x.T, c=pairs.vectors[:, column + 1], s=4, cmap="coolwarm")
    axes[0, column].set_title(f"eigenvector {column + 2}")
    axes[1, column].scatter(*new.T, c=y_new[:, column], s=2, cmap="coolwarm")
    axes[1, column].set_title("encoder, new points")
axes[0, 2].semilogy(losses)
axes[0, 2].axhline(bound, color="k", linestyle="--")
axes[0, 2].set(title="spectral loss", xlabel="step")
axes[1, 2].plot(range(2, 6), pairs.values[1:], "o", label="exact")
axes[1, 2].plot(range(2, 6), whitening.eigenvalues_, "x", label="encoder")
axes[1, 2].set(title="eigenvalues", xlabel="number")
axes[1, 2].legend()
for panel in axes[:, :2].flat:
    panel.set_aspect("equal")
plt.show()

# sphinx_gallery_thumbnail_panel = 3
