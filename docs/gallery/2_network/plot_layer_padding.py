"""
A layer for point clouds of unequal size
========================================

Networks on point clouds need batches, and clouds have different numbers of points. The
layer takes a padded batch and a mask; rows of padding are zero and have no influence,
even if they hold NaN.
"""

# %%
# Clouds of a ring or of two pieces of it
# ---------------------------------------
# Half of the clouds are a closed ring, half of them a ring with a small gap. Locally
# they look the same; their smallest eigenvalues do not. Each cloud has 30 to 60 points,
# in channels of which one is noise.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from torch_lapeig import KNN, HeatKernel, LaplacianEigenmaps

generator = torch.Generator().manual_seed(0)


def clouds(count):
    """Return padded clouds ``(count, 60, 3)``, their mask, and which have a gap."""
    gap = torch.arange(count) % 2
    sizes = torch.randint(30, 61, (count, 1), generator=generator)
    mask = torch.arange(60) < sizes
    start = 2 * torch.pi * torch.rand(count, 1, generator=generator)
    turn = 2 * torch.pi - 1.2 * gap[:, None]
    angle = (
        start
        + turn
        * (torch.arange(60) + 0.5 * torch.rand(count, 60, generator=generator))
        / sizes
    )
    x = torch.stack(
        [angle.cos(), angle.sin(), 0.15 * torch.randn(count, 60, generator=generator)],
        -1,
    )
    return x.masked_fill(~mask[..., None], 99.0), mask, gap  # padding may hold anything


class Network(nn.Module):
    """Scale the channels, and classify each cloud by its spectrum."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))
        self.spectrum = LaplacianEigenmaps(
            4, KNN(6), HeatKernel("median", learnable=True)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x, mask):
        """Return the scores of the two classes."""
        found = self.spectrum.embed(x * self.scale.exp(), mask=mask)
        sizes = mask.sum(1, keepdim=True)
        return self.head((found.eigenvalues * (sizes / 10) ** 2).clamp_min(1e-6).log())


# %%
# Training
# --------
# The gradient goes through the eigenvalues to the scales of the channels and the
# bandwidth.

torch.manual_seed(0)
network = Network()
optimiser = torch.optim.Adam(network.parameters(), lr=0.05)
x_test, mask_test, gap_test = clouds(200)
history = []
for _ in range(60):
    x, mask, gap = clouds(32)
    loss = cross_entropy(network(x, mask), gap)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    history.append((loss.item(), *network.scale.detach().exp().tolist()))
with torch.no_grad():
    accuracy = (network(x_test, mask_test).argmax(1) == gap_test).double().mean()
print(f"accuracy on 200 new clouds: {accuracy:.3f}")
print("scales of the channels:", [f"{value:.2f}" for value in history[-1][1:]])

# %%
# Padding has no influence
# ------------------------
# A cloud alone, without padding, has the same rows.

y = network.spectrum(x_test, mask=mask_test)
alone = network.spectrum(x_test[0][mask_test[0]])
print(f"in the batch against alone: {(y[0][mask_test[0]] - alone).abs().max():.1e}")
print("rows of padding are zero:", bool((y[~mask_test] == 0).all()))

# %%
# The picture
# -----------
# A cloud of each kind, and what was learned: the third channel, noise, is turned down.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
for panel, number, title in zip(
    axes, (0, 1), ("ring", "ring with a gap"), strict=False
):
    points = x_test[number][mask_test[number]]
    panel.scatter(*points[:, :2].T, c=y[number][mask_test[number], 0].detach(), s=18)
    panel.set(title=title, aspect="equal")
lines = axes[2].plot(history)
axes[2].legend(
    lines, ["loss", "scale 1", "scale 2", "scale of noise"], fontsize="small"
)
axes[2].set_xlabel("step")
plt.show()

# sphinx_gallery_thumbnail_panel = 1
