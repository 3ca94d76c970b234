"""Families of graphs from 10³ to 10⁶ nodes: ``graph_of(name, size)`` has about ``size`` nodes.

Graphs are connected unless the family's components say otherwise, and the same at each call. Structured ones come from
the campaign's families; here are those that need a size the campaign never has, and graphs of points and of data.
"""

import functools
import itertools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial import Delaunay

from benchmarks import graphs
from tests.campaign import families as campaign
from tests.campaign.edges import Edges, Floats, Ints, product, simple, union
from torch_lapeig import Graph, HeatKernel, knn_graph

Rng = np.random.Generator
DENSE = (1_000, 2_000)
SMALL, LARGE, HUGE = (2_000, 20_000), (2_000, 20_000, 200_000), (2_000, 20_000, 1_000_000)


@dataclass(frozen=True)
class Family:
    make: Callable[[Rng, int], Edges | Graph]  # of about so many nodes
    sizes: tuple[int, ...] = LARGE  # of the atlas
    most: int | None = None  # nodes of the largest graph there is; None where there is no end
    components: int | None = 1  # None where their number depends on the size

    def sizes_of(self, asked: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the sizes asked for, or those of the family; never more nodes than there are."""
        return tuple(sorted({min(size, self.most or size) for size in asked or self.sizes}))


def affinity_of(edges: Edges) -> csr_array:
    i, j = edges.pairs.T
    half = coo_array((edges.weight, (i, j)), shape=(edges.nodes, edges.nodes))
    return csr_array(half + half.T)


def largest_component(edges: Edges) -> Edges:
    label = connected_components(affinity_of(edges), directed=False)[1]
    inside = label == np.bincount(label).argmax()
    number = np.cumsum(inside) - 1
    keep = inside[edges.pairs[:, 0]]
    return Edges(int(inside.sum()), number[edges.pairs[keep]], edges.weight[keep])


def grid(rng: Rng, n: int) -> Edges:
    """Return a grid with sides as 4 to 3, which leaves few equal eigenvalues."""
    side = round(math.sqrt(3 * n / 4))
    return product(campaign.path(rng, side), campaign.path(rng, round(n / side)))


def cube_of(side: campaign.Family, dimensions: int) -> campaign.Family:
    return lambda rng, n: functools.reduce(product, [side(rng, round(n ** (1 / dimensions)))] * dimensions)


def balanced_tree(rng: Rng, n: int) -> Edges:
    return campaign.binary_tree(rng, 2 ** round(math.log2(n + 1)) - 1)


def tree_of(edges: Edges, weight: Floats) -> Edges:
    """Return the minimum spanning tree by positive weights, unweighted itself."""
    found = coo_array(minimum_spanning_tree(affinity_of(Edges(edges.nodes, edges.pairs, weight))))
    return simple(edges.nodes, np.stack([found.row, found.col], 1))


def random_tree(rng: Rng, n: int) -> Edges:
    """Return a random spanning tree of an expander: long branches, no hubs."""
    base = expander(rng, n)
    return tree_of(base, 1 + rng.random(len(base.weight)))


def recursive_tree(rng: Rng, n: int) -> Edges:
    """Return a tree in which each node joins any earlier one: low, with hubs."""
    child = np.arange(1, n)
    return simple(n, np.stack([child, (rng.random(n - 1) * child).astype(np.int64)], 1))


def edges_of_triangles(n: int, triangles: Ints) -> Edges:
    return simple(n, np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]]))


def disc_mesh(rng: Rng, n: int) -> Edges:
    """Return Delaunay's triangles of random points in a disc."""
    angle, radius = 2 * np.pi * rng.random(n), np.sqrt(rng.random(n))
    return edges_of_triangles(n, Delaunay(np.c_[radius * np.cos(angle), radius * np.sin(angle)]).simplices)


def sphere_mesh(rng: Rng, n: int) -> Edges:
    """Return a refined icosahedron of 10 · 4^s + 2 nodes, with threefold eigenvalues."""
    upper, lower = 1 + np.arange(5), 6 + np.arange(5)
    right = np.roll(np.arange(5), -1)
    triangles = np.concatenate([
        np.stack([np.zeros(5, int), upper, upper[right]], 1), np.stack([upper, lower, upper[right]], 1),
        np.stack([lower, lower[right], upper[right]], 1), np.stack([lower, np.full(5, 11), lower[right]], 1),
    ])  # fmt: skip
    count = 12
    for _ in range(max(0, round(math.log((n - 2) / 10, 4)))):
        sides = np.sort(np.stack([triangles, np.roll(triangles, -1, 1)], -1).reshape(-1, 2), 1)
        sides, middle = np.unique(sides, axis=0, return_inverse=True)
        middle = middle.reshape(-1, 3) + count
        a, b, c = triangles.T
        ab, bc, ca = middle.T
        corners = [(a, ab, ca), (b, bc, ab), (c, ca, bc), (ab, bc, ca)]
        triangles = np.concatenate([np.stack(corner, 1) for corner in corners])
        count += len(sides)
    return edges_of_triangles(count, triangles)


def planar(rng: Rng, n: int) -> Edges:
    """Return Delaunay's triangles of random points in a square without a third of their sides."""
    whole = edges_of_triangles(n, Delaunay(rng.random((n, 2))).simplices)
    keep = rng.random(len(whole.pairs)) > 1 / 3
    return largest_component(Edges(n, whole.pairs[keep], whole.weight[keep]))


def roads(rng: Rng, n: int) -> Edges:
    """Return crossings in the plane, one in eleven nodes, joined by long paths; weights over two decades."""
    crossings = max(4, n // 11)
    points = rng.random((crossings, 2))
    near = edges_of_triangles(crossings, Delaunay(points).simplices)
    length = np.linalg.norm(points[near.pairs[:, 0]] - points[near.pairs[:, 1]], axis=1)
    extra = near.pairs[rng.random(len(length)) < 0.2]
    streets = simple(crossings, np.concatenate([tree_of(near, length + 1e-12).pairs, extra])).pairs
    inner = rng.poisson(10 * crossings / len(streets), len(streets))  # nodes of degree two on each street
    street = np.repeat(np.arange(len(streets)), inner + 1)
    place = np.arange(len(street)) - (np.cumsum(inner + 1) - inner - 1)[street]
    first = crossings + (np.cumsum(inner) - inner)[street]
    left = np.where(place == 0, streets[street, 0], first + place - 1)
    right = np.where(place == inner[street], streets[street, 1], first + place)
    return simple(crossings + int(inner.sum()), np.stack([left, right], 1), np.exp(rng.standard_normal(len(street))))


def ring_of_cliques(rng: Rng, n: int) -> Edges:
    """Return cliques of 20 nodes, joined in a ring by light edges."""
    size, count = 20, max(3, n // 20)
    one = np.stack(np.triu_indices(size, 1), 1)
    cliques = (one + size * np.arange(count)[:, None, None]).reshape(-1, 2)
    first = size * np.arange(count)
    bridges = np.stack([first, np.roll(first, -1) + 1], 1)
    return simple(size * count, np.concatenate([cliques, bridges]), np.r_[np.ones(len(cliques)), np.full(count, 0.5)])


def blocks(rng: Rng, n: int) -> Edges:
    """Return ten stochastic blocks: about twelve neighbours within, one elsewhere."""
    size = n // 10
    i = rng.integers(0, 10 * size, 6 * n)
    within = np.stack([i, i // size * size + rng.integers(0, size, 6 * n)], 1)
    return largest_component(simple(10 * size, np.concatenate([within, rng.integers(0, 10 * size, (n // 2, 2))])))


def small_world(rng: Rng, n: int) -> Edges:
    """Return a ring with three neighbours on each side, in which one edge in twenty is random."""
    pairs = campaign.circulant_of(n, [1, 2, 3]).pairs.copy()
    moved = rng.random(len(pairs)) < 0.05
    pairs[moved, 1] = rng.integers(0, n, int(moved.sum()))
    return largest_component(simple(n, pairs))


def power_law(rng: Rng, n: int, edges: int = 3) -> Edges:
    """Return a graph in which each new node joins three old ones by degree (Batagelj and Brandes 2005)."""
    count = n * edges
    # Ends lie as (node, chosen) pairs; each chosen one is a copy of any end before it, followed until it is a node.
    source = (rng.random(count) * np.maximum(2 * np.arange(count), 1)).astype(np.int64)
    while (chosen := source % 2 == 1).any():
        source[chosen] = source[source[chosen] // 2]
    return largest_component(simple(n, np.stack([np.arange(count) // edges, source // 2 // edges], 1)))


def expander(rng: Rng, n: int, cycles: int = 3) -> Edges:
    """Return random cycles through all nodes: nearly 6-regular and connected."""
    orders = [rng.permutation(n) for _ in range(cycles)]
    return simple(n, np.concatenate([np.stack([order, np.roll(order, -1)], 1) for order in orders]))


def of_all_pairs(kernel: Callable[[Rng, int], Floats]) -> Callable[[Rng, int], Graph]:
    """Return a maker of dense graphs by the affinities ``(N, N)`` of a kernel."""

    def make(rng: Rng, n: int) -> Graph:
        affinity = kernel(rng, n)
        np.fill_diagonal(affinity, 0)
        return Graph.from_dense(torch.from_numpy(np.maximum(affinity, affinity.T)))

    return make


def clustered_cosines(rng: Rng, n: int) -> Floats:
    """Return cosines, at least 0, of noisy vectors around six centres, as speakers' embeddings are."""
    x = rng.standard_normal((6, 64))[rng.integers(6, size=n)] + 0.9 * rng.standard_normal((n, 64))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    affinity: Floats = np.clip(x @ x.T, 0, 1)
    return affinity


def gaussians(rng: Rng, n: int) -> Floats:
    x = rng.standard_normal((n, 3))
    squares = (x**2).sum(1)[:, None] + (x**2).sum(1) - 2 * x @ x.T
    affinity: Floats = np.exp(-squares / np.median(squares))
    return affinity


def patches(rng: Rng, n: int) -> Floats:
    """Return ones where features of patches are similar, of two kinds, and 1e-5 elsewhere (TokenCut)."""
    x = rng.standard_normal((n, 48)) + 1.2 * (np.arange(n) < n // 3)[:, None]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return np.where(x @ x.T > 0.2, 1.0, 1e-5)


def circle_points(rng: Rng, n: int) -> Floats:
    angle = 2 * np.pi * (np.arange(n) + rng.random(n)) / n
    points: Floats = np.c_[np.cos(angle), np.sin(angle)] * (1 + 0.5 / n * rng.standard_normal((n, 1)))
    return points


def roll_points(rng: Rng, n: int) -> Floats:
    t = 1.5 * np.pi * (1 + 2 * rng.random(n))
    points: Floats = np.c_[t * np.cos(t), 21 * rng.random(n), t * np.sin(t)]
    return points


def torus_points(rng: Rng, n: int) -> Floats:
    """Return points on a torus in space, nearly uniform by area."""
    around, tube = 2 * np.pi * rng.random((2, n))
    tube = np.where(rng.random(n) < (3 + np.cos(tube)) / 4, tube, np.pi - tube)
    ring = 3 + np.cos(tube)
    points: Floats = np.c_[ring * np.cos(around), ring * np.sin(around), np.sin(tube)]
    return points


def blob_points(rng: Rng, n: int) -> Floats:
    """Return ten Gaussian clusters in ten dimensions, apart."""
    return 12 * rng.uniform(-1, 1, (10, 10))[np.arange(n) % 10] + rng.standard_normal((n, 10))


def cube_points(dimensions: int) -> Callable[[Rng, int], Floats]:
    return lambda rng, n: rng.random((n, dimensions))


def of_points(
    points: Callable[[Rng, int], Floats], k: int = 10, *, heat: bool = False, whole: bool = False
) -> Callable[[Rng, int], Graph]:
    """Return k-NN graphs of a cloud, their largest component unless ``whole``, unweighted or with a heat kernel."""

    def make(rng: Rng, n: int) -> Graph:
        x = points(rng, n)
        graph = graphs.neighbors_of(x, k) if x.shape[1] <= 5 else knn_graph(torch.from_numpy(x), k)
        graph = HeatKernel()(torch.from_numpy(x), graph) if heat else graph
        return graph if whole else graph.subgraph(max(graph.nodes_of_components(), key=len))

    return make


def bridged(rng: Rng, n: int, *, heat: bool = False) -> Graph:
    """Return the k-NN graph of blobs, each component joined to the next by three edges of the median weight."""
    affinity = coo_array(of_points(blob_points, heat=heat, whole=True)(rng, n).to_scipy())
    count, label = connected_components(affinity, directed=False)
    of = [np.flatnonzero(label == c) for c in range(count)]
    bridges = [np.stack([rng.choice(a, 3), rng.choice(b, 3)], 1) for a, b in itertools.pairwise(of)]
    i, j = affinity.row, affinity.col
    pairs = np.concatenate([np.stack([i, j], 1)[i < j], *bridges])
    weight = np.r_[affinity.data[i < j], np.full(len(pairs) - int((i < j).sum()), np.median(affinity.data))]
    return Graph.from_scipy(affinity_of(simple(n, pairs, weight)))


def of_data(
    points: Callable[[], NDArray[np.float64]], k: int = 10, *, heat: bool = False
) -> Callable[[Rng, int], Graph]:
    """Return k-NN graphs of the first so many of some data."""
    return of_points(lambda rng, n: points()[:n], k, heat=heat)


FAMILIES: dict[str, Family] = {
    "path": Family(campaign.path, HUGE),
    "cycle": Family(campaign.cycle),
    "balanced tree": Family(balanced_tree),
    "random tree": Family(random_tree),
    "recursive tree": Family(recursive_tree, HUGE),
    "grid": Family(grid, HUGE),
    "cube grid": Family(cube_of(campaign.path, 3)),
    "torus grid": Family(cube_of(campaign.cycle, 2)),
    "disc mesh": Family(disc_mesh, HUGE),
    "sphere mesh": Family(sphere_mesh),
    "planar": Family(planar),
    "roads": Family(roads, HUGE),
    "ring of cliques": Family(ring_of_cliques),
    "blocks": Family(blocks),
    "small world": Family(small_world),
    "power law": Family(power_law, HUGE),
    "hypercube": Family(campaign.hypercube),
    "expander": Family(expander),
    "three parts": Family(
        lambda rng, n: union([of(rng, n // 3) for of in (grid, disc_mesh, balanced_tree)]), components=3
    ),
    "many parts": Family(lambda rng, n: union([grid(rng, 100)] * max(1, n // 100)), components=None),  # more than pairs
    "circle": Family(of_points(circle_points)),
    "swiss roll": Family(of_points(roll_points, 15), HUGE),
    "swiss roll, heat": Family(of_points(roll_points, heat=True)),
    "torus": Family(of_points(torus_points)),
    "torus, heat": Family(of_points(torus_points, heat=True)),
    "blobs": Family(bridged, SMALL),
    "blobs, heat": Family(lambda rng, n: bridged(rng, n, heat=True), SMALL),
    "blobs apart": Family(of_points(blob_points, whole=True), SMALL, components=None),
    "square": Family(of_points(cube_points(2))),
    "cube": Family(of_points(cube_points(3)), HUGE),
    "cube, heat": Family(of_points(cube_points(3), heat=True)),
    "cube of 5 dimensions": Family(of_points(cube_points(5))),
    "cube of 10 dimensions": Family(of_points(cube_points(10)), SMALL),
    "cosines of clusters": Family(of_all_pairs(clustered_cosines), DENSE, most=3_500),
    "RBF of all pairs": Family(of_all_pairs(gaussians), DENSE, most=3_500),
    "patches": Family(of_all_pairs(patches), (784,), most=3_500),
    "digits": Family(of_data(graphs.digits_points), (1_000, 1_797), most=1_797),
    "digits, heat": Family(of_data(graphs.digits_points, heat=True), (1_797,), most=1_797),
    "MNIST": Family(of_data(graphs.mnist_points), (2_000, 10_000), most=10_000),
    "MNIST, heat": Family(of_data(graphs.mnist_points, heat=True), (2_000, 10_000), most=10_000),
}


def graph_of(name: str, size: int) -> Graph:
    """Return the graph of a family and a size, the same at each call."""
    family = FAMILIES[name]
    made = family.make(np.random.default_rng([size, zlib.crc32(name.encode())]), min(size, family.most or size))
    return made if isinstance(made, Graph) else Graph.from_scipy(affinity_of(made))
