"""Pictures of embeddings, spectra and graphs by matplotlib (extra ``embed``), imported when the first one is drawn.

Each function draws into the axes that it is given, or a new figure of pyplot's, and returns them. Styles stay as they
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torch_lapeig.eigen import Eigenpairs
from torch_lapeig.graph import DirectedGraph, Graph
from torch_lapeig.methods import Embedding
from torch_lapeig.support import checks
from torch_lapeig.support.extras import needed
from torch_lapeig.support.kinds import refuse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_embedding", "plot_graph", "plot_spectrum"]

Array = NDArray[Any]

MATPLOTLIB = ("matplotlib", "pictures need matplotlib", "embed")
CLASSES = 20  # most that have a colour each
BLUE, RED, GREY, PALE = "#1f6fb4", "#c0392b", "#777777", "#c8c8c8"


def plot_embedding(
    embedding: Embedding | Eigenpairs | Tensor | Array,
    labels: Any = None,
    *,
    columns: tuple[int, int] | None = None,
    new: Any = None,
    images: Any = None,
    parts: Sequence[Any] | None = None,
    axes: Any = None,
    name: str = "",
    legend: bool = True,
) -> Any:
    """Draw points at two columns of an embedding, coloured by labels.

    Args:
        embedding: an `Embedding`, `Eigenpairs` or a real array ``(N, k)``, finite. A single column is drawn on a line.
        labels: one for each point ``(N,)``; default: one colour. Words, flags and up to 20 whole numbers are classes.
            Of more words the most frequent 19 have a colour each, and the rest is "other". Other numbers are a scale
            with a colour bar. Points of NaN, infinity and None, and of the class −1, have no label: pale grey.
        columns: numbers of the two columns, from 0; default: the first two, of the smallest `Eigenpairs` the second
            and third, as the first is trivial.
        new: columns ``(Q, k)`` of new points, such as ``model.transform`` gives: rings, below the points.
        images: ``(N, height, width)``, or with 3 or 4 colours last: pictures of points, drawn instead of some dots.
        parts: numbers of the nodes of each component (`Graph.nodes_of_components`): each has a panel, in a list.
        axes: to draw into, a sequence of them with ``parts``; default: a new figure of pyplot's.
        name: of the labels, above the legend or next to the colour bar.
        legend: whether to draw it, next to the (last) axes.

    >>> from matplotlib.figure import Figure
    >>> y = np.random.default_rng(0).random((50, 3))
    >>> axes = plot_embedding(y, ["a", "b"] * 25, axes=Figure().subplots())
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['a', 'b']
    """
    needed(*MATPLOTLIB)
    y, pair, words = _plane(embedding, columns, "embedding")
    n = len(y)
    rings = None if new is None else _plane(new, pair, "new")[0]
    pictures = None if images is None else _images(images, n)
    of_points, order, classes, scale = colours_of(labels, n)
    panels = [np.arange(n)] if parts is None else [_array(part, "parts") for part in parts]
    for found in panels:
        if (found.size and found.dtype.kind not in "iu") or ((found < 0) | (found >= n)).any():
            expected = f"numbers of nodes from 0 to {n - 1}"
            raise ValueError(f"parts must hold {expected}, got others; of a mask, its nonzero()")
    if not panels or (axes is not None and np.size(axes) != len(panels)):
        raise ValueError(f"axes must be one for each of at least one part, got {np.size(axes)} for {len(panels)} parts")
    axes = _new_axes(len(panels)) if axes is None else np.ravel(axes).tolist()
    for panel, nodes in zip(axes, panels, strict=True):
        size = float(np.clip(6000 / max(len(nodes), 1), 1.5, 40))  # of a dot, in squared points
        if rings is not None:
            panel.scatter(*rings.T, s=size + 14, c="none", edgecolors=GREY, lw=0.6, label="new points", zorder=0.9)
        nodes = order[np.isin(order, nodes)]
        panel.scatter(y[nodes, 0], y[nodes, 1], s=size, c=of_points[nodes], lw=0)
        if pictures is not None:
            _draw_images(panel, y[nodes], pictures[nodes], of_points[nodes])
        _name_axes(panel, words, pair)
    if legend:
        last = axes[-1]
        if scale is not None:
            last.figure.colorbar(scale, ax=last, label=name, shrink=0.8)
        for text, colour in classes.items():
            shown = (text if len(text) <= 30 else f"{text[:29]}…").replace("$", r"\$")  # no formula
            last.scatter([], [], s=30, color=[colour], label=f" {shown}" if shown[:1] == "_" else shown)
        handles, texts = last.get_legend_handles_labels()
        if handles:
            beside: dict[str, Any] = {} if scale is not None else {"loc": "upper left", "bbox_to_anchor": (1, 1)}
            title = name if classes and name else None
            last.legend(handles, texts, title=title, fontsize=9, frameon=False, handletextpad=0.2, **beside)
    return axes[0] if parts is None else axes


def plot_spectrum(
    found: Embedding | Eigenpairs | Tensor | Array | Sequence[float],
    *,
    first: int | None = None,
    after: int | None = None,
    axes: Axes | None = None,
    label: str | None = None,
) -> Axes:
    """Draw eigenvalues over their numbers, and the next one if the gap to it is known.

    Args:
        found: an `Embedding` or `Eigenpairs`, with the next eigenvalue as a hollow dot (of the largest pairs a smaller
            one); or values ``(k,)``. Items of a batch are lines, and so are components of ``components="separate"``.
            Infinite values, which an item lacks, are left out.
        first: number of the first one; default: 1.
        after: number of the eigenvalue after which a dashed line is drawn, such as the last one before a gap.
        axes: to draw into; default: a new figure of pyplot's.
        label: of the line in a legend.

    >>> from matplotlib.figure import Figure
    >>> plot_spectrum([0.0, 0.1, 0.7], after=2, axes=Figure().subplots()).get_ylabel()
    'eigenvalue'
    """
    needed(*MATPLOTLIB)
    values: Any = found
    gap: Any = np.inf
    if isinstance(found, Embedding | Eigenpairs):
        values, pairs = (found.eigenvalues, found.pairs) if isinstance(found, Embedding) else (found.values, (found,))
        # Of the pairs nearest a number the next value may be on either side.
        step = {"smallest": 1, "largest": -1, "nearest": np.inf}[pairs[0].which if pairs else "smallest"]
        values, gap = values.reshape(-1, values.shape[-1]), step * (_array(found.gap, "gap").flatten() + 0.0)
    rows = np.atleast_2d(_array(values, "found").astype(float))
    if rows.ndim > 2 or np.isnan(rows).any():
        raise ValueError(f"found must be eigenvalues (k,) or (B, k) without NaN, got shape {rows.shape}")
    if isinstance(found, Embedding) and found.eigenvalues.ndim == found.embedding.ndim:  # of the component of each node
        rows, nodes = np.unique(rows, axis=0, return_index=True)
        rows, gap = rows[is_solved := np.isfinite(rows).any(1)], gap[nodes][is_solved]
    start = 1 if first is None else checks.check_count(first, "first", 0)
    last = None if after is None else checks.check_count(after, "after", 0)
    axes = _new_axes()[0] if axes is None else axes
    for row, step in zip(rows, np.broadcast_to(gap, len(rows)), strict=True):
        present = row[np.isfinite(row)]
        (line,) = axes.plot(start + np.arange(len(present)), present, "o-", lw=0.6, ms=4, label=label)
        if np.isfinite(step) and len(present) == len(row):
            ends = present[-1] + np.array([0, step])
            axes.plot(start + len(row) - 1 + np.arange(2), ends, ":", lw=0.6, color=line.get_color())
            axes.plot(start + len(row), ends[1], "o", ms=4, mfc="none", color=line.get_color())
    if last is not None:
        axes.axvline(last + 0.5, color=GREY, ls="--", lw=0.8)
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="number", ylabel="eigenvalue")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def plot_graph(
    graph: Graph,
    place: Embedding | Eigenpairs | Tensor | Array,
    labels: Any = None,
    *,
    columns: tuple[int, int] | None = None,
    axes: Axes | None = None,
    name: str = "",
    legend: bool = True,
) -> Axes:
    """Draw the edges of a graph, the darker the heavier, and its nodes without padding.

    Arcs of a `DirectedGraph` have arrowheads. Edges of a `SignedGraph` are grey, of negative weights red.

    Args:
        graph: one graph. place: of each node: an `Embedding`, `Eigenpairs`, or an array ``(N, k)`` such as the points
            themselves; rows of padding may hold anything.
        labels, columns, axes, name, legend: as for `plot_embedding`.

    >>> from matplotlib.figure import Figure
    >>> from torch_lapeig import knn_graph
    >>> x = Tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]])
    >>> axes = plot_graph(knn_graph(x, 1), x, axes=Figure().subplots())
    >>> len(axes.collections[0].get_segments())
    2
    """
    needed(*MATPLOTLIB)
    checks.check_instance(graph, "graph", Graph, "a Graph")
    refuse("plot_graph", graph=graph)
    is_there = np.ones(graph.num_nodes, dtype=bool) if graph.mask is None else _array(graph.mask, "mask")
    y, pair, words = _plane(place, columns, "place", is_there)
    axes = _new_axes()[0] if axes is None else axes
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    sparse, is_arc = graph.to_sparse(), isinstance(graph, DirectedGraph)
    (row, col), weight = _array(sparse.edge_index, "edges"), _array(sparse.weight, "weights").astype(float)
    drawn = (weight != 0) & ((row != col) if is_arc else (row < col))
    tail, head, weight = y[row[drawn]], y[col[drawn]], weight[drawn]
    colours = np.where(weight[:, None] < 0, to_rgba(RED), to_rgba(GREY))
    colours[:, 3] = 0.15 + 0.6 * np.abs(weight) / np.abs(weight).max(initial=np.finfo(float).tiny)
    axes.add_collection(LineCollection([*np.stack([tail, head], 1)], colors=colours, linewidths=0.8, zorder=0.5))
    way = head - tail
    if is_arc and (long := way.any(1)).any():
        tip = (tail + 0.6 * way)[long]  # heads of opposite arcs lie apart
        shape: dict[str, Any] = {"headwidth": 5, "headlength": 5, "headaxislength": 5, "width": 0.003}
        way = way[long] / np.linalg.norm(way[long], axis=1, keepdims=True)
        axes.quiver(*tip.T, *way.T, color=colours[long], angles="xy", pivot="tip", scale=50, zorder=0.6, **shape)
    plot_embedding(y, labels, parts=[np.flatnonzero(is_there)], axes=[axes], name=name, legend=legend)
    _name_axes(axes, words, pair)
    return axes


def colours_of(labels: Any, n: int, most: int = CLASSES) -> tuple[Array, Array, dict[str, Any], Any]:
    """Return colours of points ``(n, 4)``, their order to draw, colours of ``most`` classes by name, or a scale."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, to_rgba

    order = np.random.default_rng(0).permutation(n)  # no class lies above the others
    if labels is None:
        return np.tile(to_rgba(BLUE), (n, 1)), order, {}, None
    labels = _array(labels, "labels") if isinstance(labels, Tensor) else labels
    found = np.asanyarray(labels) if hasattr(labels, "dtype") else np.asarray(labels, dtype=object)
    if found.shape != (n,):
        raise ValueError(f"labels must be one for each of the {n} points, got shape {found.shape}")
    if found.dtype.kind == "c":
        raise TypeError(f"labels must be numbers or words, got {found.dtype}")
    is_there = ~checks.are_unlabelled(found.tolist(), (np.inf, -np.inf), minus_one=False)
    there = found[is_there].tolist()
    is_numeric = all(isinstance(label, Number) and not isinstance(label, bool) for label in there)
    kinds = np.unique(np.asarray(there, dtype=float if is_numeric else str))
    is_scale = is_numeric and (len(kinds) > CLASSES or not all(value.is_integer() for value in kinds.tolist()))
    is_there &= is_scale | ~checks.are_unlabelled(found.tolist())
    order = order[np.argsort(is_there[order], kind="stable")]  # points without a label lie below
    of_points = np.tile(to_rgba(PALE), (n, 1))
    there = np.asarray(found[is_there].tolist(), dtype=float if is_numeric else str)
    kinds, codes, counts = np.unique(there, return_inverse=True, return_counts=True)
    if is_scale:
        scale = ScalarMappable(Normalize(kinds[0], kinds[-1]), "viridis")
        of_points[is_there] = scale.to_rgba(there)
        return of_points, order, {}, scale
    names, shown = [f"{n:.0f}" if is_numeric else str(n) for n in kinds.tolist()], np.arange(len(kinds))
    if len(kinds) > most:
        shown = np.sort(np.argsort(-counts, kind="stable")[: most - 1])
    colours, found = np.tile(to_rgba(GREY), (len(kinds), 1)), colormaps["tab10" if len(shown) <= 10 else "tab20"]
    found = found if len(shown) <= CLASSES else colormaps["turbo"].resampled(len(shown))
    colours[shown] = found(np.arange(len(shown)))
    of_points[is_there] = colours[codes]
    classes: dict[str, Any] = {names[i]: colours[i] for i in shown}
    if len(shown) < len(kinds):
        classes[f"other ({len(kinds) - len(shown)})"] = to_rgba(GREY)
    if not is_there.all():
        classes["(no label)"] = to_rgba(PALE)
    return of_points, order, classes, None


def _plane(embedding: Any, columns: Any, name: str, is_there: Array | None = None) -> tuple[Array, Any, str]:
    """Return two columns ``(N, 2)``, zeros where ``is_there`` is False, their numbers and the word for a column."""
    first, words = 0, "column"
    if isinstance(embedding, Eigenpairs):
        first, words = int(embedding.which == "smallest" and embedding.vectors.shape[-1] > 1), "eigenvector"
        embedding = embedding.vectors
    y = _array(embedding.embedding if isinstance(embedding, Embedding) else embedding, name).astype(float)
    if y.ndim != 2 or y.shape[1] == 0:
        raise ValueError(f"{name} must be of shape (N, k), got {y.shape}{': of a batch, draw one item' * (y.ndim > 2)}")
    if is_there is not None:
        if len(y) != len(is_there):
            raise ValueError(f"{name} must have a row for each of the {len(is_there)} nodes, got {len(y)}")
        y = np.where(is_there[:, None], y, 0)
    if not np.isfinite(y).all():
        raise ValueError(f"{name} must be finite, got NaN or infinite values in {(~np.isfinite(y)).any(1).sum()} rows")
    width = y.shape[1]
    pair = (first, first + 1 if first + 1 < width else first) if columns is None else columns
    numbers = pair if isinstance(pair, (tuple, list)) and len(pair) == 2 else ("", "")
    if not all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) and 0 <= i < width for i in numbers):
        raise ValueError(f"columns must be two numbers from 0 to {width - 1}, columns of {name}, got {pair}")
    return y[:, list(pair)] * [1, pair[0] != pair[1]], (int(pair[0]), int(pair[1])), words


def _array(values: Any, name: str) -> Array:
    """Return a NumPy array of real numbers, of a tensor or of what NumPy takes."""
    if isinstance(values, Tensor):
        checks.check_tensor(values, name)
        values = checks.half_to_float32(values).detach().cpu().resolve_conj().resolve_neg()
    try:
        found = np.asarray(values.astype(float).filled(np.nan) if np.ma.is_masked(values) else values)
    except ValueError:  # parts of several shapes
        found = np.array(None)
    if found.dtype.kind == "c":
        raise TypeError(f"{name} must hold real numbers, got {found.dtype}; draw the real parts or the angles")
    if found.dtype.kind not in "biuf":
        got = f"{checks.describe(values)}{checks.way_out(values, name)}"
        raise TypeError(f"{name} must be an array or tensor of numbers, got {got}")
    return found


def _images(images: Any, n: int) -> Array:
    """Return pictures ``(n, height, width)``, or with colours last, as matplotlib draws them."""
    found = _array(images, "images")
    if found.ndim not in (3, 4) or len(found) != n or (found.ndim == 4 and found.shape[3] not in (1, 3, 4)):
        raise ValueError(f"images must be of shape ({n}, height, width), or 1, 3 or 4 colours last, got {found.shape}")
    found = found[..., 0] if found.ndim == 4 and found.shape[3] == 1 else found
    if found.ndim == 4 and found.dtype != np.uint8 and found.size:  # colours are bytes, or from 0 to 1
        found = (found - found.min()) / max(float(np.ptp(found)), np.finfo(float).tiny)
    return found


def _draw_images(axes: Axes, y: Array, images: Array, colours: Array) -> None:
    """Draw pictures at their places, each some way from those before, with edges in colours ``(n, 4)``."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    if len(y) == 0:
        return
    extent, side = np.ptp(y, axis=0), 22.0  # points on paper
    paper = 72 * np.array(axes.bbox.size) / axes.figure.dpi
    place = paper * y / np.where(extent > 0, extent, 1)
    is_free = np.ones(len(y), dtype=bool)
    zoom = side / max(images.shape[1:3])
    is_ink = np.median(images) < images.min() + np.ptp(images) / 4  # on an empty ground, which stays white
    while is_free.any():
        i = int(is_free.argmax())
        is_free &= np.abs(place - place[i]).max(1) > 1.4 * side
        image = OffsetImage(images[i], cmap="gray_r" if is_ink else "gray", zoom=zoom)
        box = AnnotationBbox(image, (float(y[i, 0]), float(y[i, 1])), pad=0.1, bboxprops={"lw": 1, "ec": colours[i]})
        axes.add_artist(box)


def _name_axes(axes: Axes, words: str, pair: tuple[int, int]) -> None:
    second = f"{words} {pair[1] + 1}" if pair[0] != pair[1] else ""
    axes.set(xlabel=f"{words} {pair[0] + 1}", ylabel=second, xticks=[], yticks=[])
    axes.spines[:].set_color(PALE)


def _new_axes(count: int = 1) -> list[Axes]:
    from matplotlib import pyplot

    size = (6.4 if count == 1 else 1 + 4 * count, 4.8)
    return [*pyplot.subplots(1, count, figsize=size, layout="constrained", squeeze=False)[1][0]]
