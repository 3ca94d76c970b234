"""The report of an embedding: text, a picture, and a page with a scatter that answers the mouse."""

from __future__ import annotations

import base64
import html
import io
import warnings
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from torch_lapeig.command.choices import Answer
from torch_lapeig.command.columns import Used
from torch_lapeig.plots import colours_of, plot_embedding, plot_spectrum

SMALLEST = 8  # pixels of a side of an image
CHANNELS = {1, 3, 4}  # grey, colours, colours with transparency
MOST = 200  # classes that have a colour each on the page
GREY = "#7b7b7b"  # of text in pictures: on white and on black
OF_TEXT = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
PAGE = Path(__file__).with_name("report.html")


class Section(NamedTuple):
    """Part of the report: a heading, and rows of cells below their names."""

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
        """Return the heading and the rows as a table."""
        rows = "".join(f"<th>{cell}" for cell in self.head)
        for first, *cells in (map(html.escape, row) for row in self.rows):
            rows += f"<tr><{'th' if cells else 'td'}>{first}" + "".join(f"<td>{cell}" for cell in cells)
        return f"<h2>{self.title}</h2><div class=wide><table>{rows}</table></div>"


def of_input(used: Used) -> list[Section]:
    """Return what was used, and right below the advice that changes the answer."""
    advice = [Section("Advice", [(f"{line}.",) for line in used.advice])] if used.advice else []
    return [Section("What was used", list(used.lines.items())), *advice]


def of_answer(answer: Answer) -> list[Section]:
    """Return what was chosen, the eigenvalues, and sentences about gaps and warnings."""
    module, first = answer.module, max(answer.choices["parts"][0] - 1, 0)  # those before tell parts apart
    values, said = module.eigenvalues_.numpy(), list(answer.notes)
    nexts = np.append(values[1:], values[-1:] + module.gap_.numpy())
    gaps = np.where((nexts > 0) & np.isfinite(nexts), 1 - values / np.where(nexts > 0, nexts, 1), 0)
    of_columns = enumerate(zip(values, gaps, module.residuals_.tolist(), strict=True), 1)
    rows = [(f"{i}", f"{value:.6g}", f"{gap:.1%}", f"{residual:.1e}") for i, (value, gap, residual) in of_columns]
    if len(gaps) > first:
        largest = first + int(gaps[first:].argmax())
        words = f"The largest relative gap, {gaps[largest]:.1%}, is after column {largest + 1}"
        said.insert(0, f"{words}: the larger it is, the less noise of the points changes the columns up to it.")
    choices: Any = [(choice, str(value), why) for choice, (value, why) in answer.choices.items()]
    chosen = Section("What was chosen, and why", choices, ("choice", "value", "reason"))
    table = Section("Eigenvalues", [*rows], ("column", "eigenvalue", "relative gap", "residual"))
    return [chosen, table, *([Section("What to know", [(line,) for line in said])] if said else [])]


def picture(answer: Answer, used: Used, labels: Any, name: str) -> bytes:
    """Return a PNG of columns two by two, with thumbnails if points are images, and the eigenvalues."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    y, shape = answer.module.embedding_.numpy(), used.shape
    images: Any = used.x.reshape(len(y), *shape) if len(shape) in (2, 3) else None
    if len(shape) == 3 and shape[0] in CHANNELS and shape[2] not in CHANNELS:
        images = np.moveaxis(images, 1, -1)
    has_images = images is not None and {*images.shape[3:]} <= CHANNELS and min(images.shape[1:3]) >= SMALLEST
    pairs, colours = [(0, 1), (2, 3)] if y.shape[1] > 3 else [(0, min(1, y.shape[1] - 1))], dict.fromkeys(OF_TEXT, GREY)
    with rc_context(colours), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.simplefilter("ignore")  # of signs that the font lacks
        figure = Figure(figsize=(13, 4.8), layout="constrained")
        *clouds, last = figure.subplots(1, len(pairs) + 1, width_ratios=[4] * len(pairs) + [2])
        for pair, axes in zip(pairs, clouds, strict=True):
            drawn = images if has_images and axes is clouds[0] else None
            legend: Any = {"name": name.replace("$", r"\$"), "legend": axes is clouds[-1]}
            plot_embedding(y, labels, columns=pair, images=drawn, axes=axes, **legend)
            axes.set_title(f"columns {pair[0] + 1} and {pair[1] + 1}")
        plot_spectrum([0, *answer.module.eigenvalues_.tolist()], first=0, axes=last)
        last.set(xlabel="column", ylabel="", title="eigenvalues")
        figure.savefig(file := io.BytesIO(), dpi=110, transparent=True)
    return file.getvalue()


def page(title: str, answer: Answer, used: Used, more: dict[str, Any], name: str, png: bytes) -> bytes:
    """Return the report as one HTML file that loads nothing: the mouse shows a point's names, menus choose columns."""
    from bokeh.embed import components
    from bokeh.plotting import ColumnDataSource, figure
    from bokeh.resources import Resources
    from matplotlib.colors import to_hex

    y, index = answer.module.embedding_.numpy(), used.index
    of_points, _, classes, scale = colours_of(next(iter(more.values()), None), len(y), MOST)
    data: dict[str, Any] = {f"column {i + 1}": column for i, column in enumerate(y.T)}
    menu, first = "".join(f"<option>{column}</option>" for column in data), [*data][:2]
    tips = [(str(index.name or "row"), "@index"), *((name if key == "label" else key, f"@{key}") for key in more)]
    plot = figure(height=480, sizing_mode="stretch_width", tooltips=tips, active_scroll="wheel_zoom", name="plot")
    plot.background_fill_color = plot.border_fill_color = plot.outline_line_color = None
    plot.grid.grid_line_alpha = 0.3
    for key, axis, column in ("x", plot.xaxis, first[0]), ("y", plot.yaxis, first[-1]):
        data[key], axis.name, axis.axis_label, axis.axis_label_text_color = data[column], f"axis {key}", column, GREY
        axis.major_label_text_color = axis.axis_line_color = GREY
    data |= {key: [str(label) for label in labels] for key, labels in more.items()}
    data |= {"index": index.astype(str).tolist(), "colour": [to_hex(colour) for colour in of_points]}
    plot.scatter("x", "y", source=ColumnDataSource(data), color="colour", name="points")
    legend = f"<h3>{html.escape(name)}</h3>" if more else ""
    keys = (f'<li><i style="background:{to_hex(colour)}"></i> {html.escape(kind)}' for kind, colour in classes.items())
    legend += f"<ul class=key>{''.join(keys)}</ul>"
    if scale is not None:
        stops, (low, high) = ",".join(to_hex(scale.cmap(i / 8)) for i in range(9)), scale.get_clim()
        legend += f'<div class=bar style="background:linear-gradient(to right,{stops})"></div>{low:.6g} to {high:.6g}'
    before, after = ("".join(s.html() for s in sections) for sections in (of_input(used), of_answer(answer)))
    parts = {"title": html.escape(title), "before": before, "after": after, "columns": menu, "legend": legend}
    parts |= {"library": Resources(mode="inline", components=["bokeh"]).render(), "scatter": "".join(components(plot))}
    filled = Template(PAGE.read_text("utf-8")).substitute(parts, picture=base64.b64encode(png).decode())
    return filled.encode("utf-8", "replace")
