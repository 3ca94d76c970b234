"""
Weightings compared
===================

Which weighting is the right one? This example applies each of them to the same graph,
on points whose density varies nearly twentyfold, and measures how far each map is from
the truth.
"""

# %%
# A circle with a crowded side
# ----------------------------
# Angles are drawn from a density that is large on one side. The first two
# eigenfunctions of the circle itself are its sine and cosine; a method that removes the
# density finds them.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import (
    KNN,
    DensityCorrected,
    HeatKernel,
    LaplacianEigenmaps,
    Radius,
    SelfTuning,
    SimpleWeights,
)

fine = torch.linspace(0, 2 * torch.pi, 1_000_001, dtype=torch.float64)
# the distribution function: density 1 + 0.9 cos(angle)
share = (fine + 0.9 * fine.sin()) / (2 * torch.pi)
angle = fine[
    torch.searchsorted(share, torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1])
]
x = torch.stack([angle.cos(), angle.sin()], 1)
truth = torch.linalg.qr(torch.cat([torch.ones(1000, 1, dtype=torch.float64), x], 1)).Q


def degrees_from_truth(y):
    """Return the angle between the spans of 1 and y and of 1, cosine and sine."""
    basis = torch.linalg.qr(
        torch.cat([torch.ones(1000, 1, dtype=torch.float64), y], 1)
    ).Q
    outside = truth - basis @ (basis.mT @ truth)
    return torch.linalg.matrix_norm(outside, 2).clamp_max(1).asin().rad2deg()


# %%
# Weightings of two graphs
# ------------------------
# ``KNN`` gives every point the same number of neighbours, ``Radius`` all points within
# a distance, many where the points are crowded. Improved weights divide by the number
# of neighbours, so they need ``Radius``. The program prints the largest angle between
# the plane found and the true one, in degrees.

weightings = {
    "simple": SimpleWeights(),
    "heat kernel": HeatKernel("median"),
    "self-tuning": SelfTuning(7),
    "density-corrected": DensityCorrected(1.0),
}
rules = {"KNN(10)": KNN(10), "Radius(0.3)": Radius(0.3)}
maps = {}
for rule_name, rule in rules.items():
    for name, weights in weightings.items():
        maps[rule_name, name] = LaplacianEigenmaps(2, rule, weights, scale="unit")(x)
maps["Radius(0.3)", "improved"] = LaplacianEigenmaps.improved(
    2, Radius(0.3), scale="unit"
)(x)
angles = {key: degrees_from_truth(y) for key, y in maps.items()}
for (rule_name, name), value in angles.items():
    print(f"{rule_name:12s} {name:18s} {value:5.1f}°")

# %%
# The picture
# -----------
# True eigenfunctions make a round circle on which the crowded points lie close
# together. Colour is the angle.

figure, axes = plt.subplots(3, 3, figsize=(8, 8.6), layout="constrained")
for panel, ((rule_name, name), y) in zip(axes.flat, maps.items(), strict=True):
    panel.scatter(*y.T, c=angle, cmap="hsv", s=4)
    panel.set(
        title=f"{name}\n{rule_name}: {angles[rule_name, name]:.1f}°", aspect="equal"
    )
    panel.tick_params(labelbottom=False, labelleft=False)
plt.show()

# sphinx_gallery_thumbnail_panel = 8
