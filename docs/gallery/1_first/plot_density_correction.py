"""
When points are denser in places
================================

A map of unevenly sampled points shows the density as well as the shape. Density
correction and improved Laplacian eigenmaps remove the density; this example measures
how much of it.
"""

# %%
# A strip with a crowded end
# --------------------------
# On a strip the first eigenfunction is a cosine of the place along it. Points are drawn
# with a density that falls along the strip.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import DensityCorrected, LaplacianEigenmaps, Radius

torch.manual_seed(0)
place = 3 * torch.rand(1500, dtype=torch.float64) ** 2
x = torch.stack([place, 0.3 * torch.rand(1500, dtype=torch.float64)], 1)
x = x[place.argsort()]
place = x[:, 0]
rule = Radius(0.2)
models = {
    "heat kernel": LaplacianEigenmaps(1, rule, scale="unit"),
    "density-corrected, α = ½": LaplacianEigenmaps(
        1, rule, DensityCorrected(0.5), scale="unit"
    ),
    "density-corrected, α = 1": LaplacianEigenmaps(
        1, rule, DensityCorrected(1.0), scale="unit"
    ),
    "improved eigenmaps": LaplacianEigenmaps.improved(1, rule, scale="unit"),
}

# %%
# The first column against the cosine
# -----------------------------------
# The program prints the largest distance between column and cosine, each scaled to lie
# between −1 and 1.

cosine = (torch.pi * place / 3).cos()
figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
for name, model in models.items():
    y = model(x)[:, 0]
    y = 2 * (y - y.amin()) / (y.amax() - y.amin()) - 1
    y = y * (y * cosine).sum().sign()
    print(f"{name:26s} largest distance from the cosine {(y - cosine).abs().max():.3f}")
    axes.plot(place, y, linewidth=1, label=name)
axes.plot(place, cosine, "k--", label="cosine")
axes.set(xlabel="place along the strip", ylabel="first column")
figure.legend(loc="outside right center")
plt.show()

# %%
# Which one
# ---------
# With α = 1 the kernel sums to an estimate of the density at either end of an edge, and
# dividing by both leaves the Laplacian of the strip itself (Coifman and Lafon 2006).
# Improved eigenmaps divide by the number of neighbours (Baghani and Araabi). Both need
# a rule whose neighbourhoods have one size, as ``Radius`` does.
