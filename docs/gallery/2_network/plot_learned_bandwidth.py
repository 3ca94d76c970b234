"""
A bandwidth learned from the answer
===================================

You need not tune the kernel's bandwidth by hand: the loss has a gradient with respect
to it, so the bandwidth is learned with everything else.
"""

# %%
# A regression on the embedding
# -----------------------------
# A quantity varies along a curve in space. It is explained linearly by six columns of
# the embedding; the loss is what is left unexplained at the labelled points, and the
# only parameter is a factor on the median bandwidth.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import HeatKernel, LaplacianEigenmaps, Radius

torch.manual_seed(0)
t = torch.rand(300, dtype=torch.float64)
x = (
    torch.stack([(9 * t).cos() * (1 + t), (9 * t).sin() * (1 + t), 2 * t], 1)
    + 0.05 * torch.randn(300, 3).double()
)
target = (7 * t).sin()[:, None]
train, held_out = torch.arange(150), torch.arange(150, 300)


def unexplained(y, rows):
    """Return the share of variance at ``rows`` that a ridge regression leaves."""
    design = torch.cat([torch.ones(len(y), 1).double(), y], 1)
    fitted = design[train]
    weights = torch.linalg.solve(
        fitted.mT @ fitted + 1e-3 * torch.eye(7).double(), fitted.mT @ target[train]
    )
    return (target[rows] - design[rows] @ weights).square().mean() / target[rows].var()


layer = LaplacianEigenmaps(
    6, Radius(4.0), HeatKernel("median", learnable=True), scale="unit"
)
optimiser = torch.optim.Adam(layer.parameters(), lr=0.25)
path = []
for _ in range(25):
    y = layer(x)
    loss = unexplained(y, train)
    path.append(
        (
            float(layer.weights.factor),
            loss.item(),
            unexplained(y.detach(), held_out).item(),
        )
    )
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
first, last = path[0], path[-1]
print(f"factor on the median {first[0]:.2f} -> {last[0]:.2f}")
print(f"unexplained at labelled points {first[1]:.4f} -> {last[1]:.4f}")
print(f"unexplained at held-out points {first[2]:.4f} -> {last[2]:.4f}")

# %%
# The gradient is the slope of the curve
# --------------------------------------
# The loss over the factor, computed anew on a grid, and the path of the training on it.
# The gradient at the start is compared with a difference quotient.

factors = torch.logspace(-1.7, 0.7, 25).double()
curve = []
with torch.no_grad():
    for factor in factors:
        layer.weights.log_factor.fill_(factor.log())
        y = layer(x)
        curve.append((unexplained(y, train).item(), unexplained(y, held_out).item()))


def loss_at(log_factor):
    """Return the loss for a given logarithm of the factor."""
    with torch.no_grad():
        layer.weights.log_factor.fill_(log_factor)
    return unexplained(layer(x), train)


slope = torch.autograd.grad(loss_at(0.0), layer.weights.log_factor)[0].item()
quotient = (loss_at(1e-3) - loss_at(-1e-3)).item() / 2e-3
print(f"gradient {slope:.6f}, difference quotient {quotient:.6f}")

# %%
# The picture
# -----------

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.scatter(x[:, 0], x[:, 1], c=target[:, 0], s=10)
left.set(title="points and quantity", aspect="equal")
right.loglog(factors, curve, label=["labelled points", "held-out points"])
steps = torch.tensor(path)
right.plot(steps[:, 0], steps[:, 1], "k.-", markersize=4, label="training")
right.set(xlabel="factor on the median bandwidth", ylabel="unexplained")
right.legend()
plt.show()

# sphinx_gallery_thumbnail_panel = 1
