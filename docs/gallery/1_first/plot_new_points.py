"""
New points on a half moon
=========================

Points that arrive after an embedding do not need a second embedding of all points.
``fit`` stores what ``transform`` needs, and Nyström's formula places new points among
the old ones.
"""

# %%
# Fit on 600 points, place 200 others
# -----------------------------------
# The points lie along a noisy half moon. Its first eigenvector orders them from one end
# to the other.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, LaplacianEigenmaps

torch.manual_seed(0)


def half_moon(count):
    """Return points of half a circle with noise, and their angles."""
    angle = torch.pi * torch.rand(count, dtype=torch.float64)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.03 * torch.randn(
        count, 2, dtype=torch.float64
    ), angle


x, _ = half_moon(600)
x_new, angle_new = half_moon(200)
model = LaplacianEigenmaps(1, KNN(10), scale="unit").fit(x)
y_new = model.transform(x_new)

# %%
# Compared with embedding all of them
# -----------------------------------
# Where would the new points lie if all points were embedded together? The printed
# difference is a root mean square, for columns of mean square one. A point of the fit
# gets its own row, up to round-off.

y_all = LaplacianEigenmaps(1, KNN(10), scale="unit")(torch.cat([x, x_new]))[len(x) :]
y_all = y_all * (y_all * y_new).sum().sign()  # the sign of an eigenvector means nothing
print(f"transform against embedding all: {(y_new - y_all).square().mean().sqrt():.3f}")
print(
    "points of the fit against their rows: "
    f"{(model.transform(x) - model.embedding_).abs().max():.1e}"
)

# %%
# The picture
# -----------
# Left: the plane, coloured by the model at every place that the graph reaches; places
# further away are left white. Right: the column of the new points over their angle. On
# an interval the first eigenfunction is a cosine, the dashed line.

grid = torch.cartesian_prod(
    *(
        torch.linspace(a, b, 90, dtype=torch.float64)
        for a, b in ((-1.3, 1.3), (-0.3, 1.3))
    )
)
near = torch.cdist(grid, x).amin(1) < 0.15
value = torch.full((len(grid),), torch.nan, dtype=torch.float64)
value[near] = model.transform(grid[near])[:, 0]

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.pcolormesh(
    *torch.column_stack([grid, value]).T.reshape(3, 90, 90).numpy(), shading="nearest"
)
left.plot(*x.T, "k.", markersize=2)
left.set(title="the model anywhere near the moon", aspect="equal")
order = angle_new.argsort()
right.plot(angle_new[order], y_new[order], ".", label="new points")
cosine = 2**0.5 * angle_new[order].cos()
right.plot(
    angle_new[order],
    cosine * (cosine * y_new[order, 0]).sum().sign(),
    "k--",
    label="√2 cos(angle)",
)
right.set(title="new points", xlabel="angle", ylabel="column")
right.legend()
plt.show()
