"""Runs rows of `benchmarks.compare` with the `torch_lapeig` of one checkout, asked for on standard input.

Names and arguments are those that both versions know; `named` finds a name in whatever module it is.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from scipy.spatial import cKDTree
from sklearn.datasets import load_digits, make_swiss_roll
from torch import Tensor

Call = Callable[[], Tensor]
SHORTEST = 0.05  # seconds that are timed at least


def named(name: str) -> Any:
    """Return a public name, at the top level or in one of the rooms."""
    for module in ("", ".graph", ".eigen", ".methods", ".losses", ".pyg"):
        try:
            found = getattr(importlib.import_module(f"torch_lapeig{module}"), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    raise AttributeError(f"torch_lapeig has no {name}")


def cloud(n: int, d: int, seed: int = 0) -> Tensor:
    """Return Gaussian clusters that overlap, so that the neighbourhood graph is connected."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, d, generator=generator)
    x: Tensor = centres[torch.arange(n) % 10] / 2 + torch.randn(n, d, generator=generator)
    return x


def rule(k: int = 10) -> Any:
    return named("KNN")(k, "union")


def eigenmaps(k: int = 10) -> Any:
    return named("LaplacianEigenmaps")(8, rule(k), named("HeatKernel")())


@cache
def graph(name: str) -> Any:
    """Return a neighbourhood graph with heat weights, or a grid; the same whatever version searches."""
    if name == "grid":
        number = np.arange(200 * 200).reshape(200, 200)
        ends = [np.concatenate([number[:-1].ravel(), number[:, :-1].ravel()])]
        ends.append(np.concatenate([number[1:].ravel(), number[:, 1:].ravel()]))
        half = coo_array((np.ones(len(ends[0])), (ends[0], ends[1])), shape=(number.size, number.size))
        return named("Graph").from_scipy(csr_array(half + half.T))
    points = {
        "digits": lambda: load_digits().data,
        "blobs": lambda: cloud(5000, 50).double().numpy(),
        "roll": lambda: make_swiss_roll(20_000, random_state=0)[0],
        "small roll": lambda: make_swiss_roll(3000, random_state=0)[0],
    }[name]()
    lengths, index = cKDTree(points).query(points, 11)
    weight = np.exp(-(lengths[:, 1:] ** 2) / np.median(lengths[:, 1:] ** 2)).ravel()
    one_way = csr_array((weight, (np.repeat(np.arange(len(points)), 10), index[:, 1:].ravel())))
    return named("Graph").from_scipy(one_way.maximum(one_way.T))


def gradient_of(leaf: Tensor) -> Tensor:
    """Return the gradient of a tensor that ``backward`` has reached."""
    assert leaf.grad is not None
    return leaf.grad


def mnist() -> Tensor:
    """Return MNIST's test images, float64 in [0, 1]; their folder is named by TORCH_LAPEIG_DATA."""
    return torch.from_numpy(importlib.import_module("benchmarks.graphs").mnist_points())


def roll(n: int) -> Tensor:
    return torch.from_numpy(make_swiss_roll(n, random_state=0)[0])


def embed(points: Callable[[], Tensor]) -> Call:
    module, x = named("LaplacianEigenmaps")(10, named("KNN")(10)), points()
    return lambda: module(x)


def family(name: str) -> Call:
    """Solve for four pairs of a graph of the atlas; both checkouts must make the same graph."""
    laplacian = named("Laplacian")(importlib.import_module("benchmarks.atlas.families").graph_of(name, 20_000))
    solve = named("eigenpairs")

    def step() -> Tensor:
        values: Tensor = solve(laplacian, 4).values
        return values

    return step


def spreading() -> Call:
    """Spread ten labels a class over MNIST's test images."""
    x = mnist()
    labels = torch.full((len(x),), -1)
    labels[:100] = torch.arange(100) % 10
    module = named("LabelSpreading")(named("KNN")(10))
    return lambda: module(x, labels)


def layer(shape: tuple[int, ...], backward: bool) -> Call:
    module, x = eigenmaps(), torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if not backward:
        return lambda: module(x)

    def step() -> Tensor:
        leaf = x.clone().requires_grad_()
        module(leaf).square().square().sum().backward()
        return gradient_of(leaf)

    return step


def pairs(name: str, k: int = 10, backward: bool = False) -> Call:
    laplacian, solve, given = named("Laplacian"), named("eigenpairs"), graph(name)

    def step() -> Tensor:
        if not backward:
            values: Tensor = solve(laplacian(given), k).values
            return values
        weight = given.weight.clone().requires_grad_()
        found = solve(laplacian(given.with_weight(weight)), k)
        (found.vectors.square().square().sum() + found.values.sum()).backward()
        return gradient_of(weight)

    return step


def encoding() -> Call:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(12, 38, (300,), generator=generator)
    edges = []
    for n, first in zip(sizes.tolist(), (sizes.cumsum(0) - sizes).tolist(), strict=True):
        child = torch.arange(1, n)
        parent = (child - 1 - torch.randint(0, 3, (n - 1,), generator=generator)).clamp_min(0)
        tree = torch.stack([child, parent]) + first
        edges.append(torch.cat([tree, tree.flip(0)], 1))
    joined, nodes, encode = (
        torch.cat(edges, 1),
        torch.arange(300).repeat_interleave(sizes),
        named("laplacian_positional_encoding"),
    )
    return lambda: encode(joined, nodes, 8)[0]


def transform(name: str) -> Call:
    made = named(name)
    makes: dict[str, Callable[[], Any]] = {
        "LaplacianEigenmaps": eigenmaps,
        "SpectralClustering": lambda: made(8, rule()),
        "Isomap": lambda: made(2, rule()),
        "LLE": lambda: (
            made(2, 12) if "n_neighbors" in inspect.signature(made).parameters else made(2, named("KNN")(12))
        ),
        "KernelPCA": lambda: made(2, "rbf", gamma=0.01),
        "MDS": lambda: made(2),
    }
    module, new = makes[name]().fit(cloud(1500, 20)), cloud(3000, 20, seed=1)
    return lambda: module.transform(new)


def loss(name: str) -> Call:
    module, x = named(name)(rule(), named("HeatKernel")()), cloud(1000, 20)

    def step() -> Tensor:
        y = x[:, :4].clone().requires_grad_()
        module(y, x).backward()
        return gradient_of(y)

    return step


def search(points: Callable[[], Tensor], k: int = 10) -> Call:
    x, nearest = points(), named("nearest_neighbors")
    return lambda: nearest(x, k).squared_distances


FAMILIES = (
    "grid",
    "swiss roll",
    "blobs",
    "power law",
    "disc mesh",
    "cube of 5 dimensions",
    "expander",
    "small world",
    "cube grid",
    "torus grid",
    "random tree",
)
METHODS = ("LaplacianEigenmaps", "SpectralClustering", "Isomap", "LLE", "KernelPCA", "MDS")
ROWS: dict[str, Callable[[], Call]] = {
    "layer 1 × 200 × 3, forward": lambda: layer((1, 200, 3), False),
    "layer 1 × 200 × 3, forward and backward": lambda: layer((1, 200, 3), True),
    "layer 32 × 256 × 16, forward": lambda: layer((32, 256, 16), False),
    "layer 32 × 256 × 16, forward and backward": lambda: layer((32, 256, 16), True),
    "layer 16 × 512 × 16, forward and backward": lambda: layer((16, 512, 16), True),
    "layer 500 × 3, forward and backward": lambda: layer((500, 3), True),
    "layer 2000 × 16, forward and backward": lambda: layer((2000, 16), True),
    "digits to 10 columns": lambda: embed(lambda: torch.from_numpy(load_digits().data)),
    "MNIST to 10 columns": lambda: embed(mnist),
    "swiss roll of 20,000 to 10 columns": lambda: embed(lambda: roll(20_000)),
    "swiss roll of 100,000 to 10 columns": lambda: embed(lambda: roll(100_000)),
    **{f"20,000 nodes, {name}": lambda name=name: family(name) for name in FAMILIES},  # type: ignore[misc]
    "eigenpairs, digits": lambda: pairs("digits"),
    "eigenpairs, 5000 points of clusters": lambda: pairs("blobs"),
    "eigenpairs, swiss roll of 20,000": lambda: pairs("roll"),
    "eigenpairs, grid of 200 × 200": lambda: pairs("grid"),
    "eigenpairs and backward, digits": lambda: pairs("digits", backward=True),
    "eigenpairs and backward, swiss roll of 3000": lambda: pairs("small roll", backward=True),
    "eigenpairs and backward, swiss roll of 20,000": lambda: pairs("roll", backward=True),
    "search, 10,000 × 50": lambda: search(lambda: cloud(10_000, 50)),
    "search, 15 neighbours of 70,000 × 50": lambda: search(lambda: cloud(70_000, 50), 15),
    "search, swiss roll of 50,000": lambda: search(lambda: roll(50_000)),
    "label spreading, MNIST": spreading,
    "positional encodings of 300 molecules": encoding,
    **{f"transform, {name}": lambda name=name: transform(name) for name in METHODS},  # type: ignore[misc]
    **{f"loss, {name}": lambda name=name: loss(name) for name in ("LaplacianSmoothness", "SpectralLoss")},  # type: ignore[misc]
}


def main() -> None:
    """Print for each line {"row": …} the mean seconds of a call, and its result.

    Seconds of the processor with one thread, elapsed ones with more.
    """
    warnings.simplefilter("ignore")
    threads = int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter  # the former does not see the machine's other work
    made: dict[str, tuple[Call, int]] = {}
    print(json.dumps({"torch_lapeig": importlib.import_module("torch_lapeig").__file__}), flush=True)
    for line in sys.stdin:
        row = json.loads(line)["row"]
        if row not in made:
            call = ROWS[row]()
            call()
            start = clock()
            call()
            made[row] = call, max(1, round(SHORTEST / (clock() - start)))
        call, calls = made[row]
        start = clock()
        for _ in range(calls):
            result = call()
        seconds = (clock() - start) / calls
        print(json.dumps({"seconds": seconds, "result": float(result.detach().double().norm())}), flush=True)


if __name__ == "__main__":
    main()
