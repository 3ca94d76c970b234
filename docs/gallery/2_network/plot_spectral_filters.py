"""
Filters, wavelets and signatures of a graph
===========================================

A function of the eigenvalues defines a filter of signals on a graph. `SpectralFilter`
learns it, with gradients that are exact at equal eigenvalues.
"""

# %%
# A grid with equal eigenvalues
# -----------------------------
# A square grid is symmetric: most of its eigenvalues come in pairs.

import matplotlib.pyplot as plt
import torch
from torch import nn

from torch_lapeig import (
    Graph,
    Laplacian,
    SpectralFilter,
    eigenpairs,
    spectral_signature,
)
from torch_lapeig.methods import HeatResponse, WaveletResponse

torch.manual_seed(0)
side = 16
node = torch.arange(side * side).reshape(side, side)
right = torch.stack([node[:, :-1].flatten(), node[:, 1:].flatten()])
down = torch.stack([node[:-1].flatten(), node[1:].flatten()])
edges = torch.cat([right, down], 1)
both = torch.cat([edges, edges.flip(0)], 1)


def pairs_of(weight, k=81):
    """Return eigenpairs of the grid with these weights of the edges."""
    graph = Graph.from_edge_index(both, weight.repeat(2), num_nodes=side * side)
    return eigenpairs(Laplacian(graph, "unnormalized"), k)


ones = torch.ones(edges.shape[1], dtype=torch.float64)
pairs = pairs_of(ones)
close = (pairs.values.diff() < 1e-9).sum()
print(f"{close} of {len(pairs.values)} eigenvalues equal the one before")

# %%
# A filter that is learned
# ------------------------
# The aim is a band of the spectrum of random signals. A small network of the eigenvalue
# finds it from inputs and outputs.

signal = torch.randn(side * side, 12, dtype=torch.float64)


def band(value):
    """Return the response that is to be found."""
    return torch.exp(-((value - 0.6) ** 2) / 0.02)


aim = SpectralFilter(band)(pairs, signal)
response = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 1)).double()
learned = SpectralFilter(response)
optimizer = torch.optim.LBFGS(
    learned.parameters(), max_iter=400, line_search_fn="strong_wolfe"
)


def loss():
    """Return the distance from the aim, with its gradient."""
    optimizer.zero_grad()
    value = (learned(pairs, signal) - aim).square().mean()
    value.backward()
    return value


before = loss().detach()
optimizer.step(loss)
after = loss().detach()
print(f"mean square error {before:.2g} before, {after:.2g} after")
assert after < 0.02 * before

# %%
# Gradients to the edges
# ----------------------
# The gradient of a filtered signal in the weights of the edges agrees with a difference
# quotient, though eigenvalues are equal.


def energy(weight):
    """Return the energy that a filter leaves of one signal."""
    heat = SpectralFilter(HeatResponse([3.0]))
    return heat(pairs_of(weight), signal[:, :1]).square().sum()


weight = ones.clone().requires_grad_()
(gradient,) = torch.autograd.grad(energy(weight), weight)
direction, step = torch.randn_like(ones), 1e-4
with torch.no_grad():
    ahead, behind = energy(ones + step * direction), energy(ones - step * direction)
quotient = (ahead - behind) / (2 * step)
error = abs(float(gradient @ direction / quotient) - 1)
print(f"derivative {gradient @ direction:.6f}, by differences {quotient:.6f}")
assert error < 1e-4

# %%
# The picture
# -----------
# The learned response, a wavelet at one node at three scales, and the heat kernel
# signature, which knows corners, sides and the middle of the grid without any signs.

point = torch.zeros(side * side, 1, dtype=torch.float64)
point[node[5, 6]] = 1
wavelets = SpectralFilter(WaveletResponse(4, bound=8.0), bank=True)(pairs, point)
signature = spectral_signature(pairs, HeatResponse([2.0]))
figure, axes = plt.subplots(1, 5, figsize=(13, 2.9), layout="constrained")
at = torch.linspace(0, float(pairs.values[-1]), 200, dtype=torch.float64)[:, None]
axes[0].plot(at.numpy(), band(at).numpy(), "k--", lw=1, label="aim")
axes[0].plot(at.numpy(), response(at).detach().numpy(), label="learned")
axes[0].set(title="response", xlabel="eigenvalue")
axes[0].legend(frameon=False)
for panel, scale in zip(axes[1:4], (1, 3, 4), strict=True):
    panel.imshow(wavelets[:, scale].reshape(side, side).numpy(), cmap="RdBu")
    panel.set_title(f"wavelet {scale}")
axes[4].imshow(signature.reshape(side, side).numpy())
axes[4].set_title("heat kernel signature")
for panel in axes[1:]:
    panel.set_axis_off()
plt.show()
