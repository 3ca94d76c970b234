"""
Vibration modes of a membrane
=============================

Finite elements with a consistent mass, on a square whose mesh has the square's own
symmetry: modes come in pairs of equal frequency. The mean of a pair has exact gradients
to the density and the tension of every element.
"""

# %%
# A mesh with the symmetry of the square
# --------------------------------------
# Each cell is divided into four triangles around its centre.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import eigenpairs

n = 24
line = torch.linspace(0, 1, n + 1, dtype=torch.float64)
middle = (line[1:] + line[:-1]) / 2
vertices = torch.cat([torch.cartesian_prod(x, x) for x in (line, middle)])
node = torch.arange((n + 1) ** 2).reshape(n + 1, n + 1)
around = (node[:-1, :-1], node[1:, :-1], node[1:, 1:], node[:-1, 1:])
a, b, c, d = (part.flatten() for part in around)
centre = (n + 1) ** 2 + torch.arange(n * n)
sides = ((a, b), (b, c), (c, d), (d, a))
faces = torch.cat([torch.stack([p, q, centre], 1) for p, q in sides])

# %%
# Stiffness and mass
# ------------------
# An element of area a adds a ⟨∇φ_i, ∇φ_j⟩ times its tension to the stiffness, and
# a (1 + δ_ij) / 12 times its density to the mass. The rim is fixed: entries of its
# vertices are left out, and both matrices are sparse.

corners = vertices[faces]
jacobian = (corners[:, 1:] - corners[:, :1]).mT
hats = torch.tensor([[-1, 1, 0], [-1, 0, 1]], dtype=torch.float64)
slopes = torch.linalg.inv(jacobian).mT @ hats
area = torch.linalg.det(jacobian).abs()[:, None, None] / 2
stiffness_of_element = area * slopes.mT @ slopes
mass_of_element = area / 12 * (1 + torch.eye(3))

free = ((vertices > 0) & (vertices < 1)).all(1)
number = torch.where(free, free.cumsum(0) - 1, -1)
places = torch.stack([faces.repeat_interleave(3, 1), faces.repeat(1, 3)])
places = number[places].flatten(1)
inside = (places >= 0).all(0)
size = (int(free.sum()),) * 2


def assembled(elements, factor):
    """Return the sparse sum of all elements, each times its factor."""
    entries = (factor[:, None, None] * elements).flatten()[inside]
    index = places[:, inside]
    return torch.sparse_coo_tensor(index, entries, size, check_invariants=True)


def modes(density, tension, k=6):
    """Return the first modes for the density and the tension of each element."""
    stiffness = assembled(stiffness_of_element, tension)
    return eigenpairs(stiffness, k, mass=assembled(mass_of_element, density))


density = torch.ones(len(faces), dtype=torch.float64, requires_grad=True)
tension = torch.ones(len(faces), dtype=torch.float64, requires_grad=True)
pairs = modes(density, tension)
print("λ / π²:", [round(x, 3) for x in (pairs.values / torch.pi**2).tolist()])
print("known: ", [2, 5, 5, 8, 10, 10])

# %%
# Gradients of a pair of equal modes
# ----------------------------------
# The second and the third eigenvalue are equal, and neither is a smooth function. Their
# mean is: its gradient is the mean of the two, whatever basis of the pair was found.

mean = pairs.values[1:3].mean()
to_density, to_tension = torch.autograd.grad(mean, (density, tension))
generator = torch.Generator().manual_seed(0)
step = 1e-4 * torch.randn(len(faces), dtype=torch.float64, generator=generator)
with torch.no_grad():
    up, down = (modes(density + s * step, tension).values[1:3] for s in (1, -1))
print(f"finite differences {float((up.mean() - down.mean()) / 2):.6e}")
print(f"gradient           {float(to_density @ step):.6e}")

# %%
# Where to add mass to lower the pair's tone, and where tension holds it: both have the
# symmetry of the square, which the single modes lack.

found = torch.zeros(len(vertices), dtype=torch.float64)
found[free] = pairs.vectors[:, 1].detach()
pictures = {
    "one of the second modes": found,
    "gradient to the density": to_density,
    "gradient to the tension": to_tension,
}
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
for ax, (title, values) in zip(axes, pictures.items(), strict=True):
    picture = ax.tripcolor(*vertices.T, faces, values, cmap="viridis")
    ax.set(title=title, aspect="equal", xticks=[], yticks=[])
    figure.colorbar(picture, ax=ax, shrink=0.8)
plt.show()

# sphinx_gallery_thumbnail_panel = 1
