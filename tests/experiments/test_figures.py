"""Figures: colours that can be told apart, labels that can be read."""

import itertools

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from experiments.plots import COLOURS, map_with_zooms, spread_labels


def lab(colour):
    """CIELAB of sRGB under D65 (IEC 61966-2-1, CIE 15)."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(matrix) @ linear / [0.9505, 1, 1.089]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_colours_are_far_apart_and_seen_on_white():
    for a, b in itertools.combinations((*COLOURS, "white"), 2):
        assert np.linalg.norm(lab(a) - lab(b)) >= 25, (a, b)


def test_labels_do_not_overlap_and_stay_inside():
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    y = np.random.default_rng(0).uniform(size=(200, 2))
    axes.scatter(*y.T)
    figure.draw_without_rendering()
    written = spread_labels(axes, y, [f"word {i}" for i in range(200)], ["k"] * 200, 8)
    assert len(written) == len(axes.texts) >= 15
    assert [text.get_text() for text in axes.texts] == [f"word {i}" for i in written]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)
    dots = axes.transData.transform(y)
    assert not any(box.contains(*dot) for box in boxes for dot in dots)
    beside = [
        min(abs(box.x0 - x), abs(box.x1 - x), abs(box.y0 - y), abs(box.y1 - y))
        for box, (x, y) in zip(boxes, dots[written], strict=True)
    ]
    assert max(beside) < 6  # pixels


def test_zooms_show_every_point_of_their_region():
    y = np.random.default_rng(0).uniform(size=(300, 2))
    drawn = {}

    def draw(axes, chosen, zoomed):
        drawn[axes] = (chosen, zoomed)

    figure = map_with_zooms(y, draw, 20, "points", {"a: one": 3, "b: two": 5, "c: three": 7})
    main, *zooms = figure.axes
    assert drawn[main][0].tolist() == list(range(300))
    for axes, centre in zip(zooms, (3, 5, 7), strict=True):
        chosen, zoomed = drawn[axes]
        low, high = np.array([axes.get_xlim(), axes.get_ylim()]).T
        inside = ((low <= y) & (y <= high)).all(1)
        assert zoomed
        assert chosen.tolist() == np.flatnonzero(inside).tolist()
        assert centre in chosen
        assert len(chosen) >= 20
