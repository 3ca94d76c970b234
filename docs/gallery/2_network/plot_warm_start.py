"""
Warm starts through a training
==============================

Whoever trains through one larger graph solves a similar problem in every step. ``Solve(warm_start=True)`` begins each
solve with the eigenvectors of the step before.
"""

# %%
# The same training, cold and warm
# --------------------------------
# 6000 points on a torus; a map of its channels is trained so that the first column becomes smooth in one of the angles.
# The graph has one component and a crowded spectrum, for which multigrid and LOBPCG are the choice.

import time

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, LaplacianEigenmaps, Solve
from torch_lapeig.eigen import Lobpcg

torch.manual_seed(0)
angles = 2 * torch.pi * torch.rand(6000, 2, dtype=torch.float64)
tube = 2 + angles[:, 1].cos()
x = torch.stack([tube * angles[:, 0].cos(), tube * angles[:, 0].sin(), angles[:, 1].sin()], 1)


def train(warm_start):
    """Five steps; seconds and iterations of each solve, and the last eigenvalues."""
    channels = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    layer = LaplacianEigenmaps(4, KNN(10), solve=Solve(Lobpcg(), tolerance=1e-4, warm_start=warm_start))
    optimiser = torch.optim.SGD([channels], lr=1.0)
    seconds, iterations = [], []
    for _ in range(5):
        began = time.perf_counter()
        found = layer.embed(x * channels.exp())
        seconds.append(time.perf_counter() - began)
        iterations.append(found.pairs[0].iterations)
        loss = found.eigenvalues[0].log()
        optimiser.zero_grad()
        loss.backward()
        channels.grad /= channels.grad.norm() / 0.002  # steps of one size
        optimiser.step()
    return seconds, iterations, found


(cold, cold_iterations, a), (warm, warm_iterations, b) = train(None), train(True)
print("iterations, cold:", cold_iterations)
print("iterations, warm:", warm_iterations)
print(f"seconds after the first step: cold {sum(cold[1:]):.2f}, warm {sum(warm[1:]):.2f}")

# %%
# The answer is the same
# ----------------------
# A warm start is a matter of time, not of accuracy: the same tolerance is asked for, and random vectors are sent out to
# find what the old ones may overlook.

print(f"eigenvalues differ by {(a.eigenvalues - b.eigenvalues).abs().max():.1e}")
print(f"largest residuals {a.residuals.max():.1e} and {b.residuals.max():.1e}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.scatter(x[:, 0], x[:, 1], c=b.columns[:, 0].detach(), s=2)
left.set(title="first column, seen from above", aspect="equal")
right.plot(range(1, 6), cold_iterations, "o-", label="cold")
right.plot(range(1, 6), warm_iterations, "o-", label="warm")
right.set(xlabel="step", ylabel="iterations of the solver", ylim=(0, None))
right.legend()
plt.show()
