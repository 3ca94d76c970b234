"""
Saving a fit and loading it
===========================

To fit in one program and embed new points in another, save the fit as a ``state_dict``,
like that of any PyTorch module. It loads into a fresh module of the same configuration,
without pickled code.
"""

# %%
# Fit, save, load
# ---------------
# ``weights_only=True`` is PyTorch's safe way of loading: tensors and plain values,
# nothing that runs.

import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from torch_lapeig import KNN, LaplacianEigenmaps
from torch_lapeig.plots import plot_embedding

pixels, classes = load_digits(return_X_y=True)
x, x_new = torch.from_numpy(pixels).float().split([1500, 297])
model = LaplacianEigenmaps(5, KNN(10), scale="unit").fit(x)

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "digits.pt"
    torch.save(model.state_dict(), file)
    print(
        f"{file.stat().st_size / 2**20:.1f} MiB on disk, {x.nbytes / 2**20:.1f} MiB of "
        "them the points"
    )
    state = torch.load(file, weights_only=True)

fresh = LaplacianEigenmaps(5, KNN(10), scale="unit")
fresh.load_state_dict(state)
print(
    "the same rows for new points:",
    torch.equal(fresh.transform(x_new), model.transform(x_new)),
)

# %%
# A module of another configuration does not take it
# --------------------------------------------------
# It would place new points by other rules than the old ones. The error says what
# differs.

try:
    LaplacianEigenmaps(5, KNN(15), scale="unit").load_state_dict(state)
except Exception as error:
    print(textwrap.fill(f"{type(error).__name__}: {error}", 88))

# %%
# The picture
# -----------
# Small dots: the digits of the fit. Large dots: new digits, placed by the loaded
# module. Shown are the third and the fifth column, which tell most digits apart.

y, y_new = fresh.embedding_, fresh.transform(x_new)
axes = plot_embedding(y, classes[:1500], columns=(2, 4), legend=False)
plot_embedding(y_new, classes[1500:], columns=(2, 4), axes=axes, name="digit")
axes.set_title("digits, and new ones after loading")
plt.show()
