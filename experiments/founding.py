"""Maps of words and speech (Belkin & Niyogi 2001, Figures 2 to 5) and of faces (Baghani & Araabi, Figure 3)."""

from __future__ import annotations

import re
import zipfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from scipy.spatial.distance import pdist, squareform
from scipy.stats import rankdata
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from experiments import data
from experiments.metrics import NEIGHBORS, Numbers, mean_and_interval, plus_minus, ranks, trustworthiness
from experiments.runs import Refusal, Run, table
from torch_lapeig import KNN, DensityCorrected, HeatKernel, Isomap, LaplacianEigenmaps, Radius, SimpleWeights
from torch_lapeig.plots import plot_embedding

SetName = Literal["words", "speech", "faces"]
FILES = {"words": "brown.zip", "speech": "speech/sentence.wav", "faces": "frey_rawface.mat"}
RADII = [1.75, 2.0, 2.25, 2.5, 2.75, 3.0]
SETTINGS: dict[str, list[Any]] = {"words": ["counts", "roots"], "speech": ["spectra"], "faces": RADII}
SHOWN = ("counts", "spectra", 2.0)
METHODS = {
    "eigenmaps": "Laplacian eigenmaps",
    "improved": "Improved LE",
    "weighted": "weighted LE",
    "density_corrected": "density-corrected",
    "pca": "PCA",
    "isomap": "Isomap",
    "tsne": "t-SNE",
    "given": "all columns, no map",
}
OF_FACES = ("improved", "weighted", "density_corrected", "pca", "isomap", "tsne")
OF_VECTORS = ("eigenmaps", "pca", "isomap", "tsne", "given")  # the paper's way first, here and above
DIMENSIONS = (2, 3, 10)
PARTS_OF_SPEECH = {  # by how tags of the Brown corpus begin
    "modal or auxiliary": r"md|be|hv|do",
    "verb": r"vb",
    "noun": r"nn|np|nr|nc",
    "pronoun": r"pp(?!\$)|pn|wp|ex",
    "determiner": r"at|ap|dt|ab|pp\$|wdt",
    "preposition": r"in|to",
    "conjunction": r"cc|cs",
    "adverb": r"rb|rn|rp|ql|wrb|wql|\*",
    "adjective": r"jj",
    "number": r"cd|od",
}


class Points(NamedTuple):
    """Points of a set.

    Attributes:
        x: ``(N, D)``. classes: parts of speech, classes of phones; of faces the numbers of frames in the film.
        units: ten words, a phone or 50 frames, as a number for each point; intervals are over the means of units.
        bound: pairs ``(N, N)`` that are no neighbours: a point and itself, frames of one phone.
        rule: of the graph. names, images: of words, of faces.
    """

    x: Numbers
    classes: Any
    units: NDArray[np.int64]
    bound: NDArray[np.bool_]
    rule: Any = KNN(14, "union")
    names: list[str] | None = None
    images: Numbers | None = None


def founding(
    out: Path = Path("runs/founding"),
    sets: tuple[SetName, ...] = ("words", "speech", "faces"),
    data_dir: Path | None = None,
    quick: bool = False,
    fresh: bool = False,
) -> None:
    """Founding: do the founding papers' maps of words, a spoken sentence and faces keep together what belongs together?

    Args:
        out: folder of metrics.json, the figures and what is finished.
        sets: which of words, speech, faces; those whose file is not at hand are skipped, and speech is always there.
        data_dir: folder of brown.zip and frey_rawface.mat; default: that of TORCH_LAPEIG_DATA.
        quick: speech only.
        fresh: start anew where the folder holds a run already.
    """
    sets = tuple(name for name in sets if not quick and at_hand(name, data_dir)) or ("speech",)
    run = Run(out, locals())
    cases = [(name, setting) for name in sets for setting in SETTINGS[name]]
    cells = run.cells("maps", lambda name, setting: scores(load(name, setting, data_dir)), cases)
    metrics: dict[str, Any] = {name: {f"{s}": cells[name, s] for s in SETTINGS[name]} for name in sets}
    for name, setting in (case for case in cases if case[1] in SHOWN):
        run.figure(f"founding-{name}", figure(load(name, setting, data_dir)), dpi=75)
    tables = [score_table(f"{name}, {s}", metrics[name][f"{s}"]) for name, s in cases if s in (*SHOWN, "roots")]
    run.finish(metrics, *tables, *([radius_table(metrics["faces"])] if "faces" in sets else []))


def at_hand(name: str, data_dir: Path | None) -> bool:
    """Return whether the file of a set is there; say what is missing."""
    try:
        data.locate(FILES[name], data_dir)
    except Refusal as missing:
        print(f"{name} is skipped: {missing}")
        return False
    return True


def load(name: str, setting: Any, data_dir: Path | None) -> Points:
    """Return the points of a set: words by counts or roots of shares, frames, faces that the radius joins."""
    if name == "words":
        words, classes, counts, frequency = brown_words(300, data_dir)
        x = counts if setting == "counts" else np.sqrt(counts / frequency[:, None])
        return Points(x, classes, np.arange(300) // 10, np.eye(300) > 0, names=words)
    if name == "speech":
        frames = data.speech_frames("speech/sentence", data_dir)
        return Points(frames.spectra, frames.classes, frames.instances, frames.bound)
    images = data.frey_faces(data_dir)
    x = PCA(100, random_state=0).fit_transform(images.reshape(len(images), -1))
    component = Radius(setting)(torch.from_numpy(x)).connected_components().numpy()
    number = np.flatnonzero(component == np.bincount(component).argmax())
    return Points(x[number], number, number // 50, np.eye(len(number)) > 0, Radius(setting), images=images[number])


def brown_words(count: int, data_dir: Path | None) -> tuple[list[str], list[str], Numbers, Numbers]:
    """Return the most frequent words of the Brown corpus in lower case, and what stands next to them in sentences.

    They are tokens with a letter, by frequency; then come the part of speech of most tokens of each, how often each
    word stands directly to the left and to the right of it ``(n, 2n)``, and the numbers of tokens ``(n,)``.
    """
    with zipfile.ZipFile(data.locate("brown.zip", data_dir)) as archive:
        names = [name for name in sorted(archive.namelist()) if re.fullmatch(r"brown/c[a-r]\d\d", name)]
        lines = [line for name in names for line in archive.read(name).decode("ascii").lower().splitlines()]
    tokens = [token for line in lines for token in (*line.split(), "")]  # word/tag, and "" between sentences
    of_token = Counter(tokens)
    word_of = {token: token.rpartition("/")[0] for token in of_token}  # a word may hold slashes
    frequency: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = defaultdict(Counter)
    for token, number in of_token.items():
        if re.search("[a-z]", word := word_of[token]):
            tag = token.rpartition("/")[2].removeprefix("fw-")  # of a foreign word
            part = next((name for name, start in PARTS_OF_SPEECH.items() if re.match(start, tag)), "other")
            frequency[word] += number
            parts[word][part] += number
    words = [word for word, _ in sorted(frequency.items(), key=lambda item: (-item[1], item[0]))[:count]]
    index = {word: i for i, word in enumerate(words)}
    place = np.array([index.get(word_of[token], -1) for token in tokens])
    left, right = place[:-1], place[1:]
    both = (left >= 0) & (right >= 0)
    follows = np.bincount(left[both] * count + right[both], minlength=count**2).reshape(count, count).astype(float)
    classes = [parts[word].most_common(1)[0][0] for word in words]
    return words, classes, np.hstack([follows.T, follows]), np.array([float(frequency[word]) for word in words])


def embedding(points: Points, method: str, columns: int) -> Numbers:
    """Return points in ``columns`` dimensions; as they are for "given"."""
    if method == "given":
        return points.x
    if method in ("pca", "tsne"):
        module: Any = PCA(columns, random_state=0) if method == "pca" else TSNE(columns, random_state=0)
        return np.asarray(module.fit_transform(points.x), float)
    rule = points.rule
    t: Any = rule.radius**2 / 4 if isinstance(rule, Radius) else "median"  # e⁻⁴ at the radius
    ways = {
        "isomap": lambda: Isomap(columns, rule),
        "eigenmaps": lambda: LaplacianEigenmaps(columns, rule, SimpleWeights()),
        "weighted": lambda: LaplacianEigenmaps(columns, rule, HeatKernel(t)),
        "density_corrected": lambda: LaplacianEigenmaps(columns, rule, DensityCorrected(1.0, HeatKernel(t))),
        "improved": lambda: LaplacianEigenmaps.improved(columns, rule, t),
    }
    return np.asarray(ways[method]().fit(torch.from_numpy(points.x)).embedding_)


def scores(points: Points) -> dict[str, Any]:
    """Return scores by method and dimension, over units, and the paper's method (the first) less each, paired."""
    unit = np.unique(points.units, return_inverse=True)[1]
    rank = None if points.images is None else ranks(points.x)
    first, *others = OF_VECTORS if rank is None else OF_FACES

    def of_units(y: Numbers, neighbors: int = NEIGHBORS) -> Numbers:
        each = purity(y, points, neighbors) if rank is None else trustworthiness(rank, y)
        return np.bincount(unit, each) / np.bincount(unit)

    result: dict[str, Any] = {"points": len(unit), first: {}, **{method: {} for method in others}}
    if rank is None:
        result["chance"] = float(np.mean(of_units(points.x, len(unit))))
    for d in DIMENSIONS:
        papers = of_units(embedding(points, first, d))
        result[first][f"{d}-D"] = mean_and_interval(papers)
        for method in others:
            if method != "tsne" or d == 2:
                found = of_units(embedding(points, method, d))
                less = mean_and_interval(papers - found, len(others))
                result[method][f"{d}-D"] = {**mean_and_interval(found), "less": less}
    return result


def purity(y: Numbers, points: Points, neighbors: int) -> Numbers:
    """Return for each point the share of its nearest points in ``y`` ``(N, d)``, of those not bound, in its class."""
    number = np.unique(points.classes, return_inverse=True)[1]
    distances = np.where(points.bound, np.inf, squareform(pdist(y)))
    near = distances.argsort(1, kind="stable")[:, :neighbors]
    allowed = np.isfinite(np.take_along_axis(distances, near, 1))
    return np.asarray(((number[near] == number[:, None]) & allowed).sum(1) / allowed.sum(1))


def score_table(title: str, cell: dict[str, Any]) -> Table:
    """Rows: methods; columns: their scores by dimension, and the paper's method less them."""
    names = [f"{d}-D" for d in DIMENSIONS]
    rows = []
    for method in (method for method in METHODS if method in cell):
        found = [cell[method].get(name, {}) for name in names]
        means = [plus_minus(one, 3) if one else "–" for one in found]
        less = [plus_minus(one["less"], 3, 1, "+") if "less" in one else "–" for one in found]
        rows.append([METHODS[method], *means, *less])
    return table(title, ["", *names, *(f"paper's less it, {name}" for name in names)], rows)


def radius_table(of: dict[str, Any]) -> Table:
    """Rows: ε; columns: trustworthiness in the plane, and Improved LE less other eigenmaps."""
    rows = []
    for radius, cell in of.items():
        found = [cell[method]["2-D"] for method in OF_FACES[:4]]
        less = [plus_minus(one["less"], 3, 1, "+") for one in found[1:3]]
        rows.append([radius, str(cell["points"]), *(f"{one['mean']:.3f}" for one in found), *less])
    names = [METHODS[method] for method in OF_FACES[:4]]
    return table("faces by radius, 2-D", ["ε", "frames", *names, *(f"Improved less {n}" for n in names[1:3])], rows)


def figure(points: Points) -> Figure:
    """Return the map of the paper's method next to another one; axes are ranks, as most points lie close together."""
    figure = Figure(figsize=(15, 7), layout="constrained")
    shown = OF_VECTORS[:2] if points.images is None else OF_FACES[:2]
    for axes, method in zip(figure.subplots(1, 2), shown, strict=True):
        place = rankdata(embedding(points, method, 2), axis=0) / len(points.x)
        plot_embedding(place, points.classes, images=points.images, axes=axes, legend=method in ("pca", "weighted"))
        axes.set(xlabel="", ylabel="", xticks=[], yticks=[], title=METHODS[method])
        taken = np.zeros((0, 2))
        for (x, y), word in zip(place, points.names or [], strict=False):
            if not (np.abs(taken - (x, y)) < (0.07, 0.022)).all(1).any():
                axes.annotate(word, (x, y), fontsize=8, ha="center", va="bottom")
                taken = np.vstack([taken, (x, y)])
    return figure
