"""Families of graphs, most with many equal eigenvalues: ``FAMILIES[name](rng, n)`` has about ``n`` nodes."""

import functools
import math
from collections.abc import Callable

import networkx as nx
import numpy as np

from tests.campaign import clouds
from tests.campaign.edges import Edges, product, shuffled, simple, union

Rng = np.random.Generator
Family = Callable[[Rng, int], Edges]


def path(rng: Rng, n: int) -> Edges:
    return simple(n, np.stack([np.arange(n - 1), np.arange(1, n)], 1))


def cycle(rng: Rng, n: int) -> Edges:
    return circulant_of(max(n, 3), [1])


def circulant_of(n: int, steps: list[int]) -> Edges:
    node = np.arange(n)
    return simple(n, np.concatenate([np.stack([node, (node + step) % n], 1) for step in steps]))


def _sides(rng: Rng, n: int, dimensions: int, least: int) -> list[int]:
    """Return sides of a box of about n cells: equal ones half of the time."""
    side = max(least, round(n ** (1 / dimensions)))
    if rng.random() < 0.5:
        return [side] * dimensions
    first = [max(least, round(side * rng.uniform(0.6, 1.6))) for _ in range(dimensions - 1)]
    return [*first, max(least, n // math.prod(first))]


def box(side: Family, dimensions: int, least: int) -> Family:
    """Return products of paths or cycles."""
    return lambda rng, n: functools.reduce(product, [side(rng, a) for a in _sides(rng, n, dimensions, least)])


grid, torus = box(path, 2, 1), box(cycle, 2, 3)


def scaled(edges: Edges, factor: float) -> Edges:
    return Edges(edges.nodes, edges.pairs, edges.weight * factor)


def anisotropic_torus(rng: Rng, n: int) -> Edges:
    a, b = _sides(rng, n, 2, 3)
    return product(cycle(rng, a), scaled(cycle(rng, b), float(10 ** rng.uniform(-3, 3))))


def nearly_symmetric(rng: Rng, n: int) -> Edges:
    """Return a torus or grid whose weights are off by 1e-15 to 1e-3: clusters in the place of multiple eigenvalues."""
    base = torus(rng, n) if rng.random() < 0.5 else grid(rng, n)
    noise = 10 ** rng.uniform(-15, -3) * rng.standard_normal(len(base.weight))
    return Edges(base.nodes, base.pairs, base.weight * np.exp(noise))


def hypercube(rng: Rng, n: int) -> Edges:
    return functools.reduce(product, [path(rng, 2)] * max(1, round(math.log2(n))))


def hamming(rng: Rng, n: int) -> Edges:
    q = int(rng.integers(3, 6))
    d = max(1, min(4, round(math.log(n, q))))
    return functools.reduce(product, [complete(rng, q)] * d)


def complete(rng: Rng, n: int) -> Edges:
    n = min(n, 300)
    return simple(n, np.stack(np.triu_indices(n, 1), 1))


def complete_multipartite(rng: Rng, n: int) -> Edges:
    n = min(max(n, 2), 300)
    part = np.sort(rng.integers(0, rng.integers(2, 6), n))
    i, j = np.triu_indices(n, 1)
    return simple(n, np.stack([i, j], 1)[part[i] != part[j]])


def binary_tree(rng: Rng, n: int) -> Edges:
    return _of(nx.full_rary_tree(2, n))


def barbell(rng: Rng, n: int) -> Edges:
    """Return two equal cliques and a bridge of weight 1e-30 to 1."""
    side = min(max(n // 2, 2), 80)
    cliques = union([complete(rng, side)] * 2)
    bridge = simple(2 * side, [(side - 1, side)], 10 ** rng.uniform(-30, 0))
    pairs = np.concatenate([cliques.pairs, bridge.pairs])
    return Edges(2 * side, pairs, np.concatenate([cliques.weight, bridge.weight]))


def ring_of_cliques(rng: Rng, n: int) -> Edges:
    size = int(rng.integers(3, 12))
    count = max(3, n // size)
    cliques = union([complete(rng, size)] * count)
    ring = [(c * size, ((c + 1) % count) * size + 1) for c in range(count)]
    weight = np.concatenate([cliques.weight, np.full(count, 10 ** rng.uniform(-30, 0))])
    return simple(size * count, np.concatenate([cliques.pairs, ring]), weight)


def chain_of_cycles(rng: Rng, n: int) -> Edges:
    """Return cycles in a row, with bridges of weight 1e-30 to 1 between them."""
    count = int(rng.integers(2, 7))
    size = max(3, n // count)
    rings = union([cycle(rng, size)] * count)
    bridges = [(c * size, (c + 1) * size) for c in range(count - 1)]
    weight = np.concatenate([rings.weight, 10 ** rng.uniform(-30, 0, count - 1)])
    return simple(size * count, np.concatenate([rings.pairs, bridges]), weight)


def decades(rng: Rng, n: int) -> Edges:
    """Return weights over 24 decades on a random or a symmetric graph."""
    base = [erdos_renyi, grid, power_law, path, binary_tree][int(rng.integers(5))](rng, n)
    return Edges(base.nodes, base.pairs, 10 ** rng.uniform(-12, 12, len(base.weight)))


def two_scales(rng: Rng, n: int) -> Edges:
    """Return a symmetric graph with its weights from two values only, many decades apart."""
    base = [torus, hypercube, ring_of_cliques, binary_tree][int(rng.integers(4))](rng, n)
    light = rng.random(len(base.weight)) < 0.5
    return Edges(base.nodes, base.pairs, np.where(light, 10 ** rng.uniform(-12, 0), 1.0))


def _of(graph: nx.Graph) -> Edges:
    return simple(len(graph), [*nx.convert_node_labels_to_integers(nx.Graph(graph)).edges])


def _seed(rng: Rng) -> int:
    return int(rng.integers(2**31))


def complete_bipartite(rng: Rng, n: int) -> Edges:
    n = min(max(n, 2), 600)
    one = int(rng.integers(1, n))
    a = min(one, n - one, 60)
    return _of(nx.complete_bipartite_graph(a, n - a))


def paley(rng: Rng, n: int) -> Edges:
    primes = [p for p in (5, 13, 17, 29, 37, 41, 53, 61, 73, 89, 97, 101, 109, 113, 137, 149) if p <= max(n, 5)]
    return _of(nx.paley_graph(primes[int(rng.integers(len(primes)))]))


def spider(rng: Rng, n: int) -> Edges:
    """Return equal paths that begin in one node."""
    legs = int(rng.integers(2, 9))
    length = max(1, (n - 1) // legs)
    node = 1 + np.arange(legs * length).reshape(legs, length)
    before = np.concatenate([np.zeros((legs, 1), int), node[:, :-1]], 1)
    return simple(1 + legs * length, np.stack([before.ravel(), node.ravel()], 1))


def caterpillar(rng: Rng, n: int) -> Edges:
    """Return a path each of whose nodes has as many leaves."""
    legs = int(rng.integers(1, 6))
    return _of(nx.corona_product(nx.path_graph(max(1, n // (1 + legs))), nx.empty_graph(legs)))


def lollipop(rng: Rng, n: int) -> Edges:
    n = max(n, 4)
    clique = int(rng.integers(2, min(n, 80)))
    return _of(nx.lollipop_graph(clique, n - clique))


def windmill(rng: Rng, n: int) -> Edges:
    """Return equal cliques that share one node."""
    size = int(rng.integers(2, 7))
    return _of(nx.windmill_graph(max(2, (n - 1) // size), size + 1))


def erdos_renyi(rng: Rng, n: int) -> Edges:
    return _of(nx.gnm_random_graph(n, int(n * rng.uniform(0.5, 8) / 2) + 1, _seed(rng)))


def power_law(rng: Rng, n: int) -> Edges:
    return _of(nx.barabasi_albert_graph(max(n, 3), 2, _seed(rng)))


def blocks(rng: Rng, n: int) -> Edges:
    """Return a stochastic block model of equal blocks."""
    count = int(rng.integers(2, 8))
    size = max(2, n // count)
    within, between = min(1, rng.uniform(4, 12) / size), rng.uniform(0, 1) / (size * count)
    return _of(nx.planted_partition_graph(count, size, within, between, _seed(rng)))


def star(rng: Rng, n: int) -> Edges:
    return _of(nx.star_graph(n - 1))


def wheel(rng: Rng, n: int) -> Edges:
    return _of(nx.wheel_graph(max(n, 4)))


def kneser(rng: Rng, n: int) -> Edges:
    """Return subsets that are joined if they are disjoint (Petersen's graph is one)."""
    most = max(min(n, 500), 6)
    sizes = [(m, r) for m in range(4, 13) for r in range(2, m // 2 + 1) if math.comb(m, r) <= most]
    return _of(nx.kneser_graph(*sizes[int(rng.integers(len(sizes)))]))


SMALL: list[Family] = [path, cycle, star, complete, hypercube, binary_tree, kneser, grid, wheel]


def copies(rng: Rng, n: int) -> Edges:
    """Return the disjoint union of copies of one graph."""
    count = int(rng.integers(2, 9))
    return union([SMALL[int(rng.integers(len(SMALL)))](rng, max(2, n // count))] * count)


def bridged_copies(rng: Rng, n: int) -> Edges:
    """Return copies of one graph, joined in a star by equal bridges."""
    count = int(rng.integers(2, 7))
    part = SMALL[int(rng.integers(len(SMALL)))](rng, max(2, n // count))
    apart, m = union([part] * count), part.nodes
    hub = count * m
    bridges = [(c * m, hub) for c in range(count)]
    weight = np.concatenate([apart.weight, np.full(count, 10 ** rng.uniform(-12, 0))])
    return simple(hub + 1, np.concatenate([apart.pairs, bridges]), weight)


def products(rng: Rng, n: int) -> Edges:
    side = max(2, math.isqrt(n))
    a, b = (SMALL[int(s)](rng, side) for s in rng.integers(0, len(SMALL), 2))
    return product(a, b)


def islands(rng: Rng, n: int) -> Edges:
    """Return many components of different kinds, and isolated nodes among them."""
    parts: list[Edges] = []
    while sum(part.nodes for part in parts) < n:
        size = int(rng.integers(1, max(2, min(40, n))))
        alone = Edges(size, np.zeros((0, 2), dtype=np.int64), np.zeros(0))
        parts.append(alone if rng.random() < 0.2 else SMALL[int(rng.integers(len(SMALL)))](rng, size + 1))
    if all(len(part.pairs) == 0 for part in parts):
        parts.append(path(rng, 2))
    return shuffled(union(parts), rng)


GRAPHS: list[Family] = [
    path, cycle, anisotropic_torus, nearly_symmetric, hypercube, hamming, complete, complete_multipartite,
    complete_bipartite, star, wheel, kneser, paley, binary_tree, spider, caterpillar, lollipop, barbell,
    ring_of_cliques, windmill, erdos_renyi, power_law, blocks, chain_of_cycles, decades, two_scales, copies,
    bridged_copies, products, islands,
]  # fmt: skip


def _of_points(cloud: clouds.Cloud) -> Family:
    return lambda rng, n: clouds.heat_graph(rng, cloud(rng, min(n, 1200)))


FAMILIES: dict[str, Family] = {family.__name__: family for family in GRAPHS}
FAMILIES |= {
    "circulant": lambda rng, n: circulant_of(max(n, 5), rng.integers(1, max(n, 5) // 2 + 1, 3).tolist()),
    "grid": grid,
    "grid_3d": box(path, 3, 2),
    "torus": torus,
    "torus_3d": box(cycle, 3, 3),
    "johnson": lambda rng, n: _of(nx.line_graph(nx.complete_graph(max(4, math.isqrt(2 * min(n, 500)))))),
    "prism": lambda rng, n: _of(nx.circular_ladder_graph(max(n // 2, 3))),
    "moebius_ladder": lambda rng, n: circulant_of(2 * max(2, n // 2), [1, max(2, n // 2)]),
    "small_world": lambda rng, n: _of(nx.watts_strogatz_graph(max(n, 5), 4, rng.uniform(0, 0.3), _seed(rng))),
    "random_regular": lambda rng, n: _of(nx.random_regular_graph(4, max(n, 5), _seed(rng))),
}
# Families whose point is lost where weights are rounded to float32: most of theirs are solved in float64 only.
DOUBLE = {"nearly_symmetric", "points of a heavy tail", "points of a cauchy law", "points of a set of clusters"}
DOUBLE |= {"points of a chain of rings"}
FAMILIES |= {f"points of a {name}": _of_points(cloud) for name, cloud in clouds.CLOUDS.items()}


def size(rng: Rng, least: int, most: int) -> int:
    """Return a number of nodes, log-uniform."""
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))


def mixed_size(rng: Rng, most: int) -> int:
    """Return a mostly small size, sometimes one beyond dense solves by default, rarely ``most``."""
    kind = rng.random()
    if kind < 0.62 or most <= 300:
        return size(rng, 2, min(most, 300))
    return size(rng, 300, min(most, 800)) if kind < 0.95 else size(rng, min(most, 800), most)


def draw(rng: Rng, n: int, name: str | None = None) -> tuple[str, Edges]:
    """Return a random graph of about ``n`` nodes and its family's name: shuffled, scaled, at times with loops."""
    name = str(rng.choice(sorted(FAMILIES))) if name is None else name
    edges = FAMILIES[name](rng, n)
    if rng.random() < 0.6:
        edges = shuffled(edges, rng)
    if rng.random() < 0.15:
        edges = scaled(edges, float(10 ** rng.uniform(-6, 6)))
    if rng.random() < 0.1:
        at = np.unique(rng.integers(0, edges.nodes, int(rng.choice([3, edges.nodes]))))
        pairs = np.concatenate([edges.pairs, np.stack([at, at], 1)])
        loops = np.full(len(at), edges.weight.max(initial=1)) * 10.0 ** rng.uniform(0, rng.choice([0, 12]), len(at))
        edges = Edges(edges.nodes, pairs, np.concatenate([edges.weight, loops]))
    if rng.random() < (0.3 if name in DOUBLE else 0.9):
        edges = edges.narrowed()
    if not (edges.pairs[:, 0] != edges.pairs[:, 1]).any():
        edges = simple(max(edges.nodes, 2), [(0, 1)])
    return name, edges
