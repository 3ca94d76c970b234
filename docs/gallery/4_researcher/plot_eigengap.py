"""
How many clusters? The eigengap
===============================

The spectrum suggests the number of clusters: k groups that are weakly connected give k
small eigenvalues and then a jump. Every embedding comes with the gap after its last
eigenvalue.
"""

# %%
# Five groups, more and more noise
# --------------------------------
# The centres are the same three times; what changes is how wide the groups are.

import matplotlib.pyplot as plt
import torch
from sklearn.metrics import adjusted_rand_score

from torch_lapeig import (
    KNN,
    HeatKernel,
    Laplacian,
    SpectralClustering,
    eigenpairs,
    knn_graph,
)
from torch_lapeig.plots import plot_graph, plot_spectrum

torch.manual_seed(0)
angle = 2 * torch.pi * torch.arange(5) / 5
centres = 4 * torch.stack([angle.cos(), angle.sin()], 1).double()
truth = torch.arange(5).repeat_interleave(80)
noise = torch.randn(400, 2, dtype=torch.float64)
widths = (0.6, 1.1, 2.0)

figure, axes = plt.subplots(2, 3, figsize=(10, 6), layout="constrained")
for width, (above, below) in zip(widths, axes.T, strict=True):
    x = centres[truth] + width * noise
    graph = HeatKernel("median")(x, knn_graph(x, 20))
    pairs = eigenpairs(Laplacian(graph), 10)
    gaps = pairs.values.diff()
    # one cluster is always an answer: look from two on
    best = int(gaps[1:].argmax()) + 2
    labels = SpectralClustering(best, KNN(20)).fit_predict(x)
    score = adjusted_rand_score(truth, labels)
    print(
        f"width {width}: largest gap {gaps[best - 1]:.3f} behind eigenvalue {best}, "
        f"adjusted Rand index {score:.3f}"
    )
    plot_graph(graph, x, labels, axes=above, legend=False)
    above.set(title=f"width {width}: {best} clusters", aspect="equal")
    above.set(xlabel="", ylabel="")
    plot_spectrum(pairs, after=best, axes=below)
plt.show()

# %%
# The spectrum
# ------------
# The narrower the groups, the smaller the first five eigenvalues and the wider the jump
# after them. As the groups overlap, the jump becomes small: then the spectrum suggests
# no number of clusters.

# sphinx_gallery_thumbnail_panel = 3
