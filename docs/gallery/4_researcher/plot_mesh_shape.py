"""
A shape from its spectrum
=========================

The eigenvalues of a surface are functions of its vertices, with exact gradients. So
gradient descent finds a shape with a given spectrum: here a membrane in the plane.
"""

# %%
# A disc and a target
# -------------------
# A triangulated disc is deformed by a smooth field: a sum of the disc's own
# eigenfunctions. The target is the spectrum of another deformation of the same disc,
# and only its eigenvalues are known.

import matplotlib.pyplot as plt
import torch
from matplotlib.tri import Triangulation
from scipy.spatial import Delaunay

from torch_lapeig import eigenpairs, mesh_laplacian

rings = [
    (r / 9) * torch.exp(1j * torch.arange(6 * r).double() * torch.pi / (3 * r))
    for r in range(1, 10)
]
disc = torch.view_as_real(torch.cat([torch.zeros(1).to(rings[0]), *rings]))
faces = torch.from_numpy(Delaunay(disc).simplices).long()
stiffness, mass = mesh_laplacian(disc, faces)
# the constants, and pairs of cosine and sine
fields = eigenpairs(stiffness, 5, mass=mass).vectors[:, 1:]


def shape(coefficients):
    """Return the vertices of the disc, moved along smooth fields ``(4, 2)``."""
    return disc + fields @ coefficients


def spectrum(vertices, k=8):
    """Return the first eigenvalues of a free membrane, without the zero."""
    stiffness, mass = mesh_laplacian(vertices, faces)
    return eigenpairs(stiffness, k + 1, mass=mass).values[1:]


generator = torch.Generator().manual_seed(2)
hidden = 0.25 * torch.randn(4, 2, dtype=torch.float64, generator=generator)
target = spectrum(shape(hidden))

# %%
# Gradients against finite differences
# ------------------------------------
# One direction in the space of all vertices, and a central difference.

start = 0.02 * torch.randn(4, 2, dtype=torch.float64, generator=generator)
vertices = shape(start).requires_grad_()
(gradient,) = torch.autograd.grad(spectrum(vertices).log().sum(), vertices)
direction = torch.randn(len(disc), 2, dtype=torch.float64, generator=generator)
step = 1e-6 * direction
both = [spectrum(vertices.detach() + sign * step).log().sum() for sign in (1, -1)]
difference = (both[0] - both[1]) / 2e-6
slope = (gradient * direction).sum()
print(f"gradient {slope:.8f}, finite difference {difference:.8f}")
assert abs(slope - difference) < 1e-6 * abs(difference)

# %%
# Descent
# -------
# The loss is the squared error of the logarithms. A shape and its mirror image have one
# spectrum, and so have turned and moved shapes: areas and widths can be compared, not
# positions.

coefficients = start.clone().requires_grad_()
optimizer = torch.optim.LBFGS(
    [coefficients], max_iter=60, line_search_fn="strong_wolfe"
)
losses = []


def closure():
    """Return the loss, with gradients."""
    optimizer.zero_grad()
    loss = (spectrum(shape(coefficients)) / target).log().square().sum()
    loss.backward()
    losses.append(float(loss.detach()))
    return loss


optimizer.step(closure)
found = shape(coefficients.detach())


def variances(vertices):
    """Return the variances along the principal axes, by area."""
    mass = mesh_laplacian(vertices, faces).mass
    centred = vertices - (mass @ vertices) / mass.sum()
    return torch.linalg.eigvalsh(centred.T @ (mass[:, None] * centred) / mass.sum())


areas = [float(mesh_laplacian(v, faces).mass.sum()) for v in (found, shape(hidden))]
print(f"loss {losses[0]:.3f} at first, {losses[-1]:.1e} after {len(losses)} solves")
print(f"area {areas[0]:.4f}, of the target {areas[1]:.4f}")
print(f"variances along the axes {variances(found)},")
print(f"of the target {variances(shape(hidden))}")
assert losses[-1] < 1e-3 * losses[0]

# %%
# The picture
# -----------
# Colour is the first eigenfunction that is not constant.

figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
shapes = {"start": shape(start), "found": found, "target": shape(hidden)}
for panel, (name, vertices) in zip(axes, shapes.items(), strict=False):
    stiffness, mass = mesh_laplacian(vertices, faces)
    pairs = eigenpairs(stiffness, 2, mass=mass)
    panel.tripcolor(
        Triangulation(*vertices.T.numpy(), faces.numpy()),
        pairs.vectors[:, 1].numpy(),
        shading="gouraud",
    )
    panel.set(title=name, aspect="equal")
axes[3].semilogy(losses)
axes[3].set(title="loss", xlabel="solve")
plt.show()

# sphinx_gallery_thumbnail_panel = 2
