"""Pictures of embeddings and graphs: what is drawn, and what stays as it was."""

import sys

import numpy as np
import pytest
import torch

from torch_lapeig import LLE, MDS, DirectedGraph, SignedGraph, eigenpairs, knn_graph
from torch_lapeig.plots import plot_embedding, plot_graph, plot_spectrum

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.figure import Figure  # noqa: E402

X = torch.rand(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.numpy()


def axes():
    return Figure().subplots()


def texts(panel):
    return [text.get_text() for text in panel.get_legend().get_texts()]


LABELS = [(["b", "a", "_c"] * 20, [" _c", "a", "b"]), (torch.arange(60) % 3, ["0", "1", "2"])]
LABELS += [(np.arange(60) % 2 == 0, ["False", "True"]), (np.array([1, 2, np.nan] * 20), ["1", "2", "(no label)"])]
LABELS += [(["x", None] * 30, ["x", "(no label)"]), (torch.arange(60) % 3 - 1, ["0", "1", "(no label)"])]
LABELS += [(["a word of more letters than a legend has room for"] * 60, ["a word of more letters than a…"])]
LABELS += [([1, "one"] * 30, ["1", "one"])]


@pytest.mark.parametrize(("labels", "shown"), LABELS)
def test_labels_are_classes(labels, shown):
    panel = plot_embedding(X, labels, axes=axes())
    assert texts(panel) == shown
    colours = {tuple(colour) for colour in panel.collections[0].get_facecolors()}
    assert colours == {tuple(dot.get_facecolors()[0]) for dot in panel.collections[1:]}
    assert len(colours) == len(shown)


def test_numbers_are_a_scale():
    panel = plot_embedding(X, [np.nan, np.inf, *range(-1, 57)], axes=axes(), name="time")
    bar = panel.figure.axes[1]
    assert bar.get_ylabel() == "time"
    assert bar.get_ylim() == (-1, 56)
    assert panel.get_legend() is None


def test_parts_have_panels_and_new_points_lie_below():
    graph = knn_graph(torch.cat([X, X[:20] + 9]), 5)
    y, labels = torch.cat([X, X[:20]]), ["a"] * 60 + ["b"] * 20
    parts = graph.nodes_of_components()
    panels = plot_embedding(y, labels, parts=parts, new=X[:3], axes=Figure().subplots(1, 2))
    for panel, nodes in zip(panels, parts, strict=True):
        rings, drawn = panel.collections[:2]
        assert len(drawn.get_offsets()) == len(nodes)
        assert rings.get_zorder() < drawn.get_zorder()
        np.testing.assert_array_equal(rings.get_offsets(), Y[:3, :2])
    assert panels[0].get_legend() is None
    assert texts(panels[1]) == ["new points", "a", "b"]


def drawn(panel):
    """Lines, the directions of arrowheads, and the places of nodes."""
    from matplotlib.collections import LineCollection
    from matplotlib.quiver import Quiver

    panel.figure.canvas.draw()
    lines = next(part for part in panel.collections if isinstance(part, LineCollection))
    heads = [np.stack([part.U, part.V], 1) for part in panel.collections if isinstance(part, Quiver)]
    return np.array(lines.get_segments()).reshape(-1, 2, 2), lines.get_colors(), heads


@pytest.mark.parametrize("is_dense", [True, False])
def test_arcs_have_heads_in_their_direction(is_dense):
    affinity = torch.zeros(4, 4, dtype=torch.float64)
    arcs = [(0, 1), (1, 2), (2, 0), (0, 2), (3, 3)]
    affinity[tuple(zip(*arcs, strict=True))] = torch.tensor([1.0, 2, 3, 4, 5], dtype=torch.float64)
    graph = DirectedGraph.from_dense(affinity)
    panel = plot_graph(graph if is_dense else graph.to_sparse(), X[:4], axes=axes())
    segments, colours, (heads,) = drawn(panel)
    expected = {tuple(Y[[i, j], :2].flatten()): affinity[i, j] for i, j in arcs if i != j}
    assert {tuple(segment.flatten()) for segment in segments} == set(expected)
    assert [expected[tuple(segments[i].flatten())] for i in np.argsort(colours[:, 3])] == [1, 2, 3, 4]
    way = segments[:, 1] - segments[:, 0]
    np.testing.assert_allclose(heads, way / np.linalg.norm(way, axis=1, keepdims=True))


def test_edges_of_negative_weight_have_a_colour_of_their_own():
    graph = SignedGraph.from_dense(torch.tensor([[0.0, 1, -1], [1, 0, -0.5], [-1, -0.5, 0]]))
    segments, colours, heads = drawn(plot_graph(graph, X[:3], axes=axes()))
    assert len(segments) == 3
    assert not heads
    assert len(np.unique(colours[:, :3], axis=0)) == 2
    assert colours[:, 3].argmin() == 2


def test_nothing_of_matplotlib_changes_but_a_new_figure():
    from matplotlib import pyplot

    before, numbers, backend = dict(matplotlib.rcParams), pyplot.get_fignums(), matplotlib.get_backend()
    plot_embedding(X, axes=axes())
    assert pyplot.get_fignums() == numbers
    panel = plot_embedding(X)
    assert len(pyplot.get_fignums()) == len(numbers) + 1
    assert panel.figure.number in pyplot.get_fignums()
    pyplot.close(panel.figure)
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.get_backend() == backend


def test_what_cannot_be_drawn_leaves_no_figure():
    from matplotlib import pyplot

    with pytest.raises(ValueError, match="must be finite"):
        plot_embedding(X / 0)
    assert not pyplot.get_fignums()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, name, None)
    for call in (lambda: plot_embedding(X), lambda: plot_spectrum([0.0]), lambda: plot_graph(knn_graph(X, 3), X)):
        with pytest.raises(ImportError, match=r'pip install .*"matplotlib'):
            call()


@pytest.mark.parametrize("method", [MDS, LLE])
def test_the_next_eigenvalue_is_a_hollow_dot(method):
    (dot,) = (line for line in plot_spectrum(method(2).embed(X), axes=axes()).lines if line.get_mfc() == "none")
    assert dot.get_ydata()[0] == pytest.approx(float(method(3).embed(X).eigenvalues[2]), rel=0.1)
    largest, nearest = ({"largest": True}, [2.0, 1.0]), ({"nearest": 1.2}, [1.0, 2.0])
    for options, heights in (largest, nearest):  # of the pairs nearest a number the next one may be on either side
        pairs = eigenpairs(torch.arange(3.0).diag().double(), 2, **options)
        dots = [line.get_ydata()[0] for line in plot_spectrum(pairs, axes=axes()).lines if line.get_mfc() == "none"]
        assert (pairs.values.tolist(), dots) == (heights, [0.0] if "largest" in options else [])
