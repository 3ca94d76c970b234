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

from torch_lapeig import KNN, SpectralClustering, knn_graph
from torch_lapeig.plots import plot_graph

torch.manual_seed(0)
angle = 2 * torch.pi * torch.arange(5) / 5
centres = 4 * torch.stack([angle.cos(), angle.sin()], 1).double()
truth = torch.arange(5).repeat_interleave(80)
noise = torch.randn(400, 2, dtype=torch.float64)
widths = (0.6, 1.1, 2.0)

figure, axes = plt.subplots(2, 3, figsize=(10, 6), layout="constrained")
for width, (above, below) in zip(widths, axes.T, strict=True):
    x = centres[truth] + width * noise
    model = SpectralClustering("eigengap", KNN(20), max_clusters=9).fit(x)
    path = model.path(x)  # what speaks for each number
    score = adjusted_rand_score(truth, model.labels_)
    print(
        f"width {width}: {model.n_clusters_} clusters, gap {model.gap_:.3f}, "
        f"adjusted Rand index {score:.3f}"
    )
    plot_graph(knn_graph(x, 20), x, model.labels_, axes=above, legend=False)
    above.set(title=f"width {width}: {model.n_clusters_} clusters", aspect="equal")
    above.set(xlabel="", ylabel="")
    below.plot(path.n_clusters, path.gaps / path.gaps.max(), "o-", label="eigengap")
    below.plot(path.n_clusters, path.silhouettes, "s--", label="silhouette")
    below.plot(path.n_clusters, path.cuts / path.n_clusters, "^:", label="cut / number")
    below.set(xlabel="number of clusters", ylim=(0, 1.05))
axes[1, 0].legend(loc="center right")
plt.show()

# %%
# What speaks for a number
# ------------------------
# One solve serves all numbers. The narrower the groups, the wider the gap after five
# eigenvalues (shown over the widest of each panel) and the larger the silhouette. As
# the groups overlap, both fade: then nothing suggests a number of clusters.

# sphinx_gallery_thumbnail_panel = 3
