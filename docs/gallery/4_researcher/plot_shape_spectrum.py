"""
Can one hear the shape of a drum?
=================================

This is a spectrum with a proven answer. Gordon, Webb and Wolpert (1992) found two
polygons that are not congruent and have the same eigenvalues; their discrete
Laplacians are therefore an exact test.
"""

# %%
# Two polygons as graphs
# ----------------------
# Grid points of each polygon are nodes. An edge inside has the weight 1, one on the
# boundary ½: these are the cotangent weights of the triangulated polygon, and the
# degree of a node is then the area around it, times 4/h². So L y = λ D y is the finite-
# element problem of a free membrane with lumped areas, and its eigenvalues are 4λ/h².

import matplotlib.pyplot as plt
import torch
from matplotlib.path import Path

from torch_lapeig import Graph, Laplacian, eigenpairs

corners = {
    "first drum": [(0, 0), (0, 1), (2, 3), (2, 2), (3, 2), (2, 1), (1, 1), (1, 0)],
    "second drum": [(1, 0), (0, 1), (0, 2), (2, 2), (2, 3), (3, 2), (2, 1), (1, 1)],
}
steps = 20  # to a unit of length


def membrane(polygon):
    """Return the graph of a polygon, and the places of its nodes in steps."""
    outline = Path([(x * steps, y * steps) for x, y in [*polygon, polygon[0]]])
    cells = torch.cartesian_prod(torch.arange(3 * steps), torch.arange(3 * steps))
    sides = []
    for a, b in (
        ((0, 0), (1, 0)),
        ((1, 0), (1, 1)),
        ((1, 1), (0, 1)),
        ((0, 1), (0, 0)),
    ):
        side = torch.stack([cells + torch.tensor(a), cells + torch.tensor(b)], 1)
        # the centre of the quarter of the cell at this side
        quarter = (side.sum(1) + cells + 0.5) / 3
        sides.append(side[torch.from_numpy(outline.contains_points(quarter.numpy()))])
    place, number = torch.cat(sides).reshape(-1, 2).unique(dim=0, return_inverse=True)
    ends, count = number.reshape(-1, 2).sort(1).values.unique(dim=0, return_counts=True)
    weight = count.double() / 2  # ½ cot 45° from either side of an edge
    both = torch.cat([ends, ends.flip(1)]).T
    return Graph.from_edge_index(
        both, torch.cat([weight, weight]), num_nodes=len(place)
    ), place


spectra, vectors, places = {}, {}, {}
for name, polygon in corners.items():
    graph, places[name] = membrane(polygon)
    pairs = eigenpairs(Laplacian(graph, "random_walk"), 10)
    spectra[name], vectors[name] = 4 * steps**2 * pairs.values, pairs.vectors
    print(
        f"{name}: {len(places[name])} nodes, largest residual "
        f"{pairs.residuals.max():.1e}"
    )
a, b = spectra.values()
print("first: ", *(f"{value:.3f}" for value in a))
print("second:", *(f"{value:.3f}" for value in b))
print(
    "largest difference, relative to the largest eigenvalue: "
    f"{(a - b).abs().max() / a.max():.1e}"
)

# %%
# A shape that is heard
# ---------------------
# A rectangle of the same area has another spectrum, known in closed form: π² (m² / a² +
# n² / b²).

height = 7 / 4
rectangle = [(0, 0), (0, height), (2, height), (2, 0)]
graph, _ = membrane(rectangle)
values = 4 * steps**2 * eigenpairs(Laplacian(graph), 6).values
exact = sorted(
    torch.pi**2 * ((m / 2) ** 2 + (n / height) ** 2) for m in range(6) for n in range(6)
)[:6]
print("rectangle:", [f"{value:.3f}" for value in values])
print("exact:    ", [f"{value:.3f}" for value in exact])

# %%
# The picture
# -----------
# Eigenvectors 2 to 4 of both: different shapes, different vectors, the same
# eigenvalues.

figure, axes = plt.subplots(2, 3, figsize=(9, 6), layout="constrained")
for row, name in zip(axes, corners, strict=True):
    for panel, number in zip(row, (1, 2, 3), strict=True):
        panel.scatter(*places[name].T, c=vectors[name][:, number], s=6, cmap="coolwarm")
        panel.set(title=f"{name}: {spectra[name][number]:.4f}", aspect="equal")
        panel.axis("off")
plt.show()
