"""
A hundred thousand points by landmarks
======================================

If you have more points than a neighbour search can handle, join each point to a few
landmarks. The eigenproblem is then that of the landmarks, and every point, known or
new, gets its row from its shares in them.
"""

# %%
# A rolled sheet that comes in blocks
# -----------------------------------
# ``fit_stream`` reads blocks from a list, a DataLoader or a memory map. Nothing of the
# size of the data is kept.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import Landmarks, LaplacianEigenmaps
from torch_lapeig.plots import plot_embedding

generator = torch.Generator().manual_seed(0)


def block(n):
    """Return points of the sheet and their places along the roll."""
    u, v = torch.rand(2, n, generator=generator)
    t = 4.7 + 9.4 * u
    return torch.stack([t * t.cos(), 60 * v, t * t.sin()], 1), t


blocks = [block(20_000) for _ in range(5)]
model = LaplacianEigenmaps(2, Landmarks(1000, r=3)).fit_stream([x for x, _ in blocks])
print(f"{int(model.train_count):,} points, {len(model.train_points)} landmarks")
print(f"residuals up to {model.residuals_.max():.1e}")

# %%
# New points have the formula of the known ones
# ---------------------------------------------

x, t = block(3000)
y = model.transform(x)
ranks = torch.stack([y[:, 0], t]).argsort().argsort().double()
rank = ranks.corrcoef()[0, 1].abs()
print(f"rank correlation of the first column with the way along the roll: {rank:.3f}")

figure = plt.figure(figsize=(9, 4), layout="constrained")
left = figure.add_subplot(1, 2, 1, projection="3d")
left.scatter(*x.T, c=t, s=2)
left.scatter(*model.train_points.T, c="k", s=1)
left.set_title("new points, and the landmarks in black")
right = figure.add_subplot(1, 2, 2)
plot_embedding(y, t, axes=right, name="way along the roll").set_title("their rows")
plt.show()
