"""The report of an embedding: text, a picture, and a page with a scatter that answers the mouse."""

from __future__ import annotations

import base64
import html
import io
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from torch_lapeig.command.choices import Answer
from torch_lapeig.command.columns import SHOWN, Array, Used
from torch_lapeig.plots import colours_of, plot_embedding, plot_spectrum

NEARLY_SEPARATE = 0.1  # share of a part's weight, and of the next eigenvalue, below which a part is nearly separate
SMALLEST = 8  # pixels of a side of an image
CHANNELS = (1, 3, 4)  # grey, colours, colours with transparency
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; vertical-align: top } img { max-width: 100% }
"""


class Section(NamedTuple):
    """Part of the report: a heading, and rows of cells."""

    title: str
    rows: list[tuple[str, ...]]

    def __str__(self) -> str:
        """Return the rows for a terminal, below each other."""
        widths = [max(map(len, cells)) for cells in zip(*self.rows, strict=True)] if self.rows else []
        rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in self.rows]
        return "\n".join([self.title, *(f"  {row.rstrip()}" for row in rows), ""])

    def html(self) -> str:
        """Return the heading and the rows as a table."""
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self.rows]
        return f"<h2>{self.title}</h2><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def of_input(used: Used) -> list[Section]:
    """Return what was used, and right below the advice that changes the answer."""
    advice = [Section("Advice", [(f"{line}.",) for line in used.advice])] if used.advice else []
    return [Section("What was used", list(used.lines.items())), *advice]


def of_answer(answer: Answer, index: Any) -> list[Section]:
    """Return what was chosen, the eigenvalues, and sentences about gaps, nearly separate parts, and warnings."""
    module, first = answer.module, max(len(answer.graph.nodes_of_components()) - 1, 0)  # those before tell parts apart
    rows: list[tuple[str, ...]] = [("column", "eigenvalue", "relative gap", "residual")]
    values = module.eigenvalues_.numpy()
    nexts = np.append(values[1:], values[-1:] + module.gap_.numpy())
    gaps = np.where((nexts > 0) & np.isfinite(nexts), 1 - values / np.where(nexts > 0, nexts, 1), 0)
    for i, (value, gap, residual) in enumerate(zip(values, gaps, module.residuals_.tolist(), strict=True), 1):
        rows.append((f"{i}", f"{value:.6g}", f"{gap:.1%}", f"{residual:.1e}"))
    said = list(answer.notes)
    if len(gaps) > first:
        largest = first + int(gaps[first:].argmax())
        last = max(first + np.flatnonzero(gaps[first:] > 1 - NEARLY_SEPARATE), default=-1)
        words = f"The largest relative gap, {gaps[largest]:.1%}, is after column {largest + 1}"
        said.insert(0, f"{words}: the larger it is, the less noise of the points changes the columns up to it.")
        said[1:1] = nearly_separate(answer, index, range(first, int(last) + 1))
    chosen = Section("What was chosen, and why", list(answer.choices))
    return [chosen, Section("Eigenvalues", rows), Section("What to know", [(line,) for line in said])]


def nearly_separate(answer: Answer, index: Any, columns: range) -> list[str]:
    """Return a sentence for each nearly separate part of the graph, found by a sweep along each column."""
    weights, y = answer.graph.to_scipy(), answer.module.embedding_.numpy()
    rest, said = np.arange(len(y)), []
    for column in columns:
        order = rest[np.argsort(y[rest, column], kind="stable")]
        sorted_weights = weights[order][:, order]
        volume = sorted_weights.sum(1).cumsum()
        leaving = volume - 2 * sparse.tril(sorted_weights).sum(1).cumsum()
        smaller = np.minimum(volume, volume[-1] - volume)
        share = np.divide(leaving, smaller, out=np.ones(len(order)), where=smaller > 0)
        cut = int(share[:-1].argmin())  # of the smallest conductance
        if share[cut] < NEARLY_SEPARATE:
            part = np.sort(min(order[: cut + 1], order[cut + 1 :], key=len))
            rest = np.setdiff1d(rest, part)  # so that it is named once
            rows = ", ".join(map(str, index[part][:SHOWN])) + (", …" if len(part) > SHOWN else "")
            said.append(
                f"A nearly separate part of {len(part):,} points (rows {rows}): {max(share[cut], 0):.2g} of its weight "
                "leads elsewhere. If it is not a cluster, --standardize or more --neighbors may join it."
            )
    return said


def picture(answer: Answer, used: Used, name: str) -> bytes:
    """Return a PNG of columns two by two, with thumbnails if points are images, and the eigenvalues."""
    from matplotlib.figure import Figure

    y, images, shape = answer.module.embedding_.numpy(), None, used.shape
    if len(shape) == 3 and shape[0] in CHANNELS and shape[2] not in CHANNELS:
        images = np.moveaxis(used.x.reshape(len(y), *shape), 1, -1)
    elif len(shape) == 2 or (len(shape) == 3 and shape[2] in CHANNELS):
        images = used.x.reshape(len(y), *shape)
    pairs = [(0, 1), (2, 3)] if y.shape[1] > 3 else [(0, min(1, y.shape[1] - 1))]
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    *clouds, last = figure.subplots(1, len(pairs) + 1, width_ratios=[4] * len(pairs) + [2])
    for pair, axes in zip(pairs, clouds, strict=True):
        drawn = images if axes is clouds[0] and images is not None and min(images.shape[1:3]) >= SMALLEST else None
        plot_embedding(y, used.labels, columns=pair, images=drawn, axes=axes, name=name, legend=axes is clouds[-1])
    plot_spectrum([0, *answer.module.eigenvalues_.tolist()], first=0, axes=last)
    last.set(xlabel="column", ylabel="", title="eigenvalues")
    file = io.BytesIO()
    figure.savefig(file, dpi=110)
    return file.getvalue()


def scatter(y: Array, used: Used, name: str) -> str:
    """Return two columns as HTML that loads nothing; the mouse shows the index and the label of a point."""
    from bokeh.embed import components
    from bokeh.plotting import figure
    from bokeh.resources import Resources
    from matplotlib.colors import to_hex

    of_points, _, classes, _ = colours_of(used.labels, len(y))
    source: dict[str, Any] = {"x": y[:, 0], "y": y[:, min(1, y.shape[1] - 1)], "index": used.index.astype(str).tolist()}
    source["colour"] = [to_hex(colour) for colour in of_points]
    tips: list[tuple[str, str]] = [(str(used.index.name or "row"), "@index")]
    legend: dict[str, Any] = {}
    if used.labels is not None:
        source["label"] = used.labels.astype(str).tolist()
        tips.append((name, "@label"))
    if classes:
        kinds = {to_hex(colour): kind for kind, colour in classes.items()}
        source["kind"], legend = [kinds[colour] for colour in source["colour"]], {"legend_group": "kind"}
    plot = figure(height=600, sizing_mode="stretch_width", tooltips=tips, active_scroll="wheel_zoom")
    plot.xaxis.axis_label, plot.yaxis.axis_label = "column 1", f"column {min(2, y.shape[1])}"
    plot.scatter("x", "y", source=source, color="colour", **legend)
    return "".join([Resources(mode="inline", components=["bokeh"]).render(), *components(plot)])


def page(title: str, answer: Answer, used: Used, name: str, png: bytes) -> str:
    """Return the report as one HTML file, with the picture and the scatter inside."""
    before = "".join(section.html() for section in of_input(used))
    image = f'<img alt="columns and eigenvalues" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    after = "".join(section.html() for section in of_answer(answer, used.index))
    body = f"<h1>{html.escape(title)}</h1>{before}{image}{scatter(answer.module.embedding_.numpy(), used, name)}{after}"
    return f'<!doctype html><html lang="en">{head}{body}</html>\n'
