"""
A metric learned through the eigenvectors
=========================================

Some channels of the points may be noise. The loss is on the embedding; its gradient
goes through the eigenvectors, the weights and the distances back to a factor for each
channel, so that training turns the noise down.
"""

# %%
# A circle hidden in noise
# ------------------------
# Two of six channels lie on a circle; the other four are noise of the same size.
# Neighbours in all six channels are not neighbours on the circle.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, HeatKernel, LaplacianEigenmaps

torch.manual_seed(0)
angle = 2 * torch.pi * torch.rand(300)
x = torch.cat(
    [torch.stack([angle.cos(), angle.sin()], 1), 0.7 * torch.randn(300, 4)], 1
)
labelled = torch.arange(60)  # the angle of a fifth of the points is known
target = torch.stack([angle.cos(), angle.sin()], 1)

# %%
# Training
# --------
# One factor a channel is learned. The loss depends on the plane that the two
# eigenvectors span, not on their signs or on a rotation within the plane: the two
# eigenvalues of a circle nearly coincide, so the rotation is arbitrary.

scale = torch.zeros(6, requires_grad=True)
layer = LaplacianEigenmaps(2, KNN(12), HeatKernel("median"), scale="unit")
optimiser = torch.optim.Adam([scale], lr=0.05)


def unexplained(y, rows):
    """Return the share of the target's variance that no linear map of y explains."""
    basis = torch.linalg.qr(torch.cat([torch.ones(len(rows), 1), y[rows]], 1)).Q
    rest = target[rows] - basis @ (basis.mT @ target[rows])
    return rest.square().sum() / (target[rows] - target[rows].mean(0)).square().sum()


before = layer(x).detach()
losses, scales = [], []
for _ in range(80):
    loss = unexplained(layer(x * scale.exp()), labelled)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
    scales.append(scale.detach().exp().clone())
after = layer(x * scale.exp()).detach()
held_out = torch.arange(60, 300)
shares = [float(unexplained(y, held_out)) for y in (before, after)]
print(f"unexplained at held-out points: {shares[0]:.3f} before, {shares[1]:.3f} after")
print("learned factors:", [f"{factor:.2f}" for factor in scales[-1]])

# %%
# The picture
# -----------
# The factors of the two channels that hold the circle grow against those of noise, and
# the embedding becomes the circle.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
axes[0].scatter(*before.T, c=angle, cmap="hsv", s=8)
axes[0].set_title("before")
axes[1].scatter(*after.T, c=angle, cmap="hsv", s=8)
axes[1].set_title("after")
lines = axes[2].plot(torch.stack(scales).numpy())
axes[2].legend(lines, ["circle", "circle", *["noise"] * 4], fontsize="small")
axes[2].set(title="factors of the channels", xlabel="step")
plt.show()

# sphinx_gallery_thumbnail_panel = 1
