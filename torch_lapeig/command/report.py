"""The report of an embedding: text, a picture, and a page with a scatter that answers the mouse."""

from __future__ import annotations

import base64
import html
import io
import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from torch_lapeig.command.choices import Answer
from torch_lapeig.command.columns import Array, Used
from torch_lapeig.command.reading import SHOWN
from torch_lapeig.plots import colours_of, plot_embedding, plot_spectrum

NEARLY_SEPARATE = 0.1  # share of a part's weight, and of the next eigenvalue, below which a part is nearly separate
SMALLEST = 8  # pixels of a side of an image
MOST = 200  # classes that have a colour each on the page
CHANNELS = (1, 3, 4)  # grey, colours, colours with transparency
GREY = "#7b7b7b"  # of text in pictures: on white and on black
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #8885; vertical-align: top; text-align: left }
td, h1 { overflow-wrap: anywhere } img { max-width: 100%; min-width: 46rem } .wide { overflow-x: auto }
.key { columns: 9rem; list-style: none; padding: 0 } .key i { display: inline-block; width: .8em; height: .8em }
.bar { height: 1rem; max-width: 20rem } select { font: inherit; margin-right: 1rem }
@media (prefers-color-scheme: dark) { body { background: #121212; color: #ddd } }
"""
SCRIPT = """
for (const menu of document.querySelectorAll("select")) menu.onchange = () => {
  const find = name => Bokeh.documents[0].get_model_by_name(name), source = find("points").data_source
  source.data = {...source.data, [menu.id]: source.data[menu.value]}
  find("axis " + menu.id).axis_label = menu.value
  find("plot").reset.emit()
}
"""


class Section(NamedTuple):
    """Part of the report: a heading, and rows of cells below their names; rows of one cell are sentences."""

    title: str
    rows: list[tuple[str, ...]]
    head: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the rows for a terminal, below each other."""
        table = [self.head, *self.rows] if self.head else self.rows
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        return "\n".join([self.title, *(f"  {row.rstrip()}" for row in rows), ""])

    def html(self) -> str:
        """Return the heading and the rows as a table, or as a list of sentences."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.head)
        rows = []
        for first, *cells in (map(html.escape, row) for row in self.rows):
            rows.append(
                f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" if cells else f"<li>{first}"
            )
        table = (
            f"<table><tr>{head}</tr>{''.join(rows)}</table>"
            if rows and rows[0][1] == "t"
            else f"<ul>{''.join(rows)}</ul>"
        )
        return f"<h2>{self.title}</h2><div class=wide>{table}</div>"


def of_input(used: Used) -> list[Section]:
    """Return what was used, and right below the advice that changes the answer."""
    advice = [Section("Advice", [(f"{line}.",) for line in used.advice])] if used.advice else []
    return [Section("What was used", list(used.lines.items())), *advice]


def of_answer(answer: Answer, index: Any) -> list[Section]:
    """Return what was chosen, the eigenvalues, and sentences about gaps, nearly separate parts, and warnings."""
    module, first = answer.module, max(len(answer.graph.nodes_of_components()) - 1, 0)  # those before tell parts apart
    rows: list[tuple[str, ...]] = []
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
    chosen = Section("What was chosen, and why", list(answer.choices), ("choice", "value", "reason"))
    head = ("column", "eigenvalue", "relative gap", "residual")
    return [chosen, Section("Eigenvalues", rows, head), Section("What to know", [(line,) for line in said])]


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


def picture(answer: Answer, used: Used, labels: Any, name: str) -> tuple[bytes, bytes]:
    """Return a PNG of columns two by two, thumbnails of images, and the eigenvalues; then without white."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    y, images, shape = answer.module.embedding_.numpy(), None, used.shape
    if len(shape) == 3 and shape[0] in CHANNELS and shape[2] not in CHANNELS:
        images = np.moveaxis(used.x.reshape(len(y), *shape), 1, -1)
    elif len(shape) == 2 or (len(shape) == 3 and shape[2] in CHANNELS):
        images = used.x.reshape(len(y), *shape)
    pairs, name = [(0, 1), (2, 3)] if y.shape[1] > 3 else [(0, min(1, y.shape[1] - 1))], name.replace("$", r"\$")
    colours: Any = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY
    )
    with rc_context(colours), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of signs that the font lacks
        figure = Figure(figsize=(13, 4.8), layout="constrained")
        *clouds, last = figure.subplots(1, len(pairs) + 1, width_ratios=[4] * len(pairs) + [2])
        for pair, axes in zip(pairs, clouds, strict=True):
            drawn = images if axes is clouds[0] and images is not None and min(images.shape[1:3]) >= SMALLEST else None
            plot_embedding(y, labels, columns=pair, images=drawn, axes=axes, name=name, legend=axes is clouds[-1])
            axes.set_title(f"columns {pair[0] + 1} and {pair[1] + 1}")
        plot_spectrum([0, *answer.module.eigenvalues_.tolist()], first=0, axes=last)
        last.set(xlabel="column", ylabel="", title="eigenvalues")
        files = io.BytesIO(), io.BytesIO()
        for file, is_clear in zip(files, (False, True), strict=True):
            figure.savefig(file, dpi=110, transparent=is_clear)
    return files[0].getvalue(), files[1].getvalue()


def scatter(y: Array, used: Used, more: dict[str, Any], name: str) -> str:
    """Return two columns as HTML that loads nothing: the mouse shows a point's names, and menus choose columns."""
    from bokeh.embed import components
    from bokeh.plotting import ColumnDataSource, figure
    from bokeh.resources import Resources
    from matplotlib.colors import to_hex

    of_points, _, classes, scale = colours_of(next(iter(more.values()), None), len(y), MOST)
    data: dict[str, Any] = {f"column {i + 1}": column for i, column in enumerate(y.T)}
    names, first = list(data), {"x": "column 1", "y": f"column {min(2, y.shape[1])}"}
    data |= {axis: data[column] for axis, column in first.items()} | {"index": used.index.astype(str).tolist()}
    data |= {key: [str(label) for label in labels] for key, labels in more.items()}
    data["colour"] = [to_hex(colour) for colour in of_points]
    tips = [(str(used.index.name or "row"), "@index"), *((name if key == "label" else key, f"@{key}") for key in more)]
    plot = figure(height=480, sizing_mode="stretch_width", tooltips=tips, active_scroll="wheel_zoom", name="plot")
    plot.background_fill_color = plot.border_fill_color = plot.outline_line_color = None
    plot.grid.grid_line_alpha, menus = 0.3, ""
    for key, axis, title in ("x", plot.xaxis, "across"), ("y", plot.yaxis, "up"):
        axis.name, axis.axis_label, axis.axis_label_text_color = f"axis {key}", first[key], GREY
        axis.major_label_text_color = axis.axis_line_color = GREY
        options = "".join(f"<option{' selected' * (column == first[key])}>{column}</option>" for column in names)
        menus += f'<label>{title} <select id="{key}">{options}</select></label>'
    plot.scatter("x", "y", source=ColumnDataSource(data), color="colour", name="points")
    library, key = Resources(mode="inline", components=["bokeh"]).render(), ""
    if classes:
        rows = (f'<li><i style="background:{to_hex(c)}"></i> {html.escape(kind)}' for kind, c in classes.items())
        key = f"<h3>{html.escape(name)}</h3><ul class=key>{''.join(rows)}</ul>"
    if scale is not None:
        stops, (low, high) = ",".join(to_hex(scale.cmap(i / 8)) for i in range(9)), scale.get_clim()
        key = f'<h3>{html.escape(name)}</h3><div class=bar style="background:linear-gradient(to right,{stops})"></div>'
        key += f"colour bar: from {low:.6g} to {high:.6g}"
    return "".join([library, "<p>", menus, *components(plot), key, f"<script>{SCRIPT}</script>"])


def page(title: str, answer: Answer, used: Used, more: dict[str, Any], name: str, png: bytes) -> bytes:
    """Return the report as one HTML file, with the picture and the scatter inside."""
    before = "".join(section.html() for section in of_input(used))
    image = f'<img alt="columns and eigenvalues" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
    after = "".join(section.html() for section in of_answer(answer, used.index))
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    body = f"<h1>{html.escape(title)}</h1>{before}<h2>Picture</h2><div class=wide>{image}</div>"
    body += f"<h2>Two columns to choose</h2>{scatter(answer.module.embedding_.numpy(), used, more, name)}{after}"
    return f'<!doctype html><html lang="en">{head}{body}</html>\n'.encode("utf-8", "replace")
