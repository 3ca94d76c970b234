"""Segments of pictures: the recipe of the gallery beside scikit-learn's and scikit-image's ways, with scores.

Each way runs in a process of its own that ends after the limit. scikit-learn gets our graph; scikit-image's ways have
the settings of its gallery. "Border F" is the harmonic mean of the share of found borders within two pixels of true
ones, and of true ones within two pixels of found ones; the normalised cut is that of our graph.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import binary_fill_holes, distance_transform_edt, gaussian_filter
from scipy.ndimage import label as components
from scipy.spatial import cKDTree
from sklearn.metrics import adjusted_rand_score

from benchmarks.child import Child, Ended, serve
from benchmarks.peers import there
from benchmarks.record import Record, clock_of
from benchmarks.timing import clock
from experiments.tables import Table
from torch_lapeig import Graph, Laplacian, Solve, eigenpairs, normalized_cut
from torch_lapeig.methods import refine_cut
from torch_lapeig.methods.labels import cluster_qr

Array = NDArray[Any]
LIMIT = 30.0  # seconds, after which a way is cut off
REACH = 2  # pixels between borders that count as one


class Picture(NamedTuple):
    """A picture ``(height, width, 3)`` in [0, 1], the number of its segments, and the true ones, if known."""

    image: Array
    segments: int
    truth: Array | None = None


def of_regions(truth: Array, colours: Array, noise: float, segments: int) -> Picture:
    """Paint regions, add noise, and smooth by a pixel, for all ways alike."""
    image = colours[truth] + noise * np.random.default_rng(1).normal(size=(*truth.shape, 3))
    return Picture(gaussian_filter(image, (1, 1, 0)).clip(0, 1), segments, truth)


def cells(side: int = 512, count: int = 12) -> Picture:
    """Voronoi cells of random points in random colours."""
    rng = np.random.default_rng(0)
    points, pixels = side * rng.random((count, 2)), np.indices((side, side)).reshape(2, -1).T
    truth = cKDTree(points).query(pixels)[1].reshape(side, side)
    return of_regions(truth, rng.random((count, 3)), 0.1, count)


def horse() -> Picture:
    """The silhouette of a horse in two grey tones."""
    from skimage import data

    return of_regions(data.horse().astype(int), np.array([[0.3] * 3, [0.7] * 3]), 0.1, 2)


def coins() -> Picture:
    """Coins; their outlines are those of scikit-image's own example, by markers and a watershed of the gradient."""
    from skimage import data, filters, segmentation

    grey = data.coins()
    markers = np.where(grey < 30, 1, np.where(grey > 150, 2, 0))
    filled = binary_fill_holes(segmentation.watershed(filters.sobel(grey), markers) == 2)
    truth, _ = components(filled)
    sizes = np.bincount(truth.ravel())
    truth[sizes[truth] < 100] = 0
    return Picture(np.repeat(grey[..., None] / 255, 3, 2), len(np.unique(truth)), truth)


def photograph(name: str) -> Callable[[], Picture]:
    def read() -> Picture:
        from skimage import data

        found = np.asarray(getattr(data, name)()) / 255
        return Picture(found if found.ndim == 3 else np.repeat(found[..., None], 3, 2), 12)

    return read


PICTURES: dict[str, Callable[[], Picture]] = {
    "Voronoi cells with noise": cells,
    "horse with noise": horse,
    "coins": coins,
    "camera": photograph("camera"),
    "astronaut": photograph("astronaut"),
}


def grid_graph(image: Array) -> Graph:
    """Join each pixel to its eight neighbours, by weights that fall where colours differ."""
    height, width = image.shape[:2]
    number = torch.arange(height * width).reshape(height, width)
    pairs = [
        (number[:, :-1], number[:, 1:]),
        (number[:-1], number[1:]),
        (number[:-1, :-1], number[1:, 1:]),
        (number[:-1, 1:], number[1:, :-1]),
    ]
    edges = torch.cat([torch.stack([a.flatten(), b.flatten()]) for a, b in pairs], 1)
    colour = torch.from_numpy(image).reshape(height * width, -1)
    squares = (colour[edges[0]] - colour[edges[1]]).square().sum(1)
    weight = torch.exp(-squares / (0.1 * squares.mean())) + 1e-4
    return Graph.from_edge_index(torch.cat([edges, edges.flip(0)], 1), weight.repeat(2), number.numel())


def ours(image: Array, k: int) -> Array:
    """The recipe of the gallery: eigenvectors, pivoted QR, and ten rounds of moves of single pixels."""
    graph = grid_graph(image)
    found = eigenpairs(Laplacian(graph), k, Solve(tolerance=1e-2))
    labels, _ = cluster_qr(torch.nn.functional.normalize(found.vectors))
    return refine_cut(labels, graph, rounds=10).reshape(image.shape[:2]).numpy()


def scikit_learn(solver: str) -> Callable[[Array, int], Array]:
    def way(image: Array, k: int) -> Array:
        from scipy.sparse import csr_matrix
        from sklearn.cluster import SpectralClustering

        options = {"affinity": "precomputed", "assign_labels": "cluster_qr", "eigen_solver": solver, "random_state": 0}
        affinity = csr_matrix(grid_graph(image).to_scipy())
        affinity.indices, affinity.indptr = affinity.indices.astype(np.int32), affinity.indptr.astype(np.int32)
        return np.asarray(SpectralClustering(k, **options).fit_predict(affinity).reshape(image.shape[:2]))

    return way


def normalised_cut_of_superpixels(image: Array, k: int) -> Array:
    from skimage import graph, segmentation

    whole = (255 * image).round().astype(np.uint8)
    pieces = segmentation.slic(whole, compactness=30, n_segments=400, start_label=1)
    return np.asarray(graph.cut_normalized(pieces, graph.rag_mean_color(whole, pieces, mode="similarity")))


def felzenszwalb(image: Array, k: int) -> Array:
    from skimage import segmentation

    return np.asarray(segmentation.felzenszwalb(image, scale=100, sigma=0.5, min_size=50))


WAYS: dict[str, Callable[[Array, int], Array]] = {
    "torch_lapeig": ours,
    "scikit-learn, arpack": scikit_learn("arpack"),
    "scikit-learn, amg": scikit_learn("amg"),
    "scikit-image, slic and cut_normalized": normalised_cut_of_superpixels,
    "scikit-image, felzenszwalb": felzenszwalb,
}


def borders(labels: Array) -> Array:
    """Return the pixels with another segment to the right or below."""
    found = np.zeros(labels.shape, bool)
    found[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    found[:-1] |= labels[:-1] != labels[1:]
    return found


def border_score(labels: Array, truth: Array) -> float:
    """Return the F score of borders, within `REACH` pixels."""
    found, true = borders(labels), borders(truth)
    shares = [(distance_transform_edt(~b)[a] <= REACH).mean() for a, b in ((found, true), (true, found)) if a.any()]
    return float(2 * shares[0] * shares[1] / sum(shares)) if len(shares) == 2 and sum(shares) else 0.0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Segment a picture in one way, twice where that takes less than ten seconds."""
    torch.set_num_threads(1)
    picture, way, now = PICTURES[request["picture"]](), WAYS[request["way"]], clock()
    seconds: list[float] = []
    while not seconds or (len(seconds) < 2 and seconds[0] < 10):
        begin = now()
        labels = way(picture.image, picture.segments)
        seconds.append(now() - begin)
    labels = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    found = {"seconds": min(seconds), "segments": int(labels.max()) + 1, "pixels": labels.size}
    found["cut"] = float(normalized_cut(torch.from_numpy(labels).flatten(), grid_graph(picture.image)))
    if picture.truth is not None:
        found["score"] = adjusted_rand_score(picture.truth.ravel(), labels.ravel())
        found["border"] = border_score(labels, picture.truth)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pictures", nargs="*", metavar="NAME", default=None, help="default all; quick: horse, coins")


def run(record: Record, options: argparse.Namespace) -> None:
    """All ways on all pictures."""
    if not there("skimage"):
        record.show("scikit-image is not installed.")
        return
    columns = {"": "", "by": "", "pixels": ",", "s": ".2f", "segments": ",", "ARI": ".3f", "border F": ".3f"}
    table = Table(f"Segments; cut off after {LIMIT:.0f} s", {**columns, "normalised cut": ".2g"})
    child = Child([sys.executable, "-m", "benchmarks.segmentation"], record.threads)
    for name in options.pictures or (["horse with noise", "coins"] if options.quick else PICTURES):
        for way in WAYS:
            try:
                found = child.ask({"picture": name, "way": way, "limit": {clock_of(record.threads): LIMIT}})
            except Ended as error:
                if not error.stopped:
                    raise
                found = {}
            keys = ("pixels", "seconds", "segments", "score", "border", "cut")
            table.add(name, way, *(found.get(key) for key in keys))
            record.say(f"{name}, {way}: {found}")
    child.end()
    record.show(table)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(answer)
