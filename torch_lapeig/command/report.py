"""The picture and the report of an embedding, and its numbers as text."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_lapeig.command.choices import NEARLY_SEPARATE, Answer, Column
from torch_lapeig.command.points import CLASSES, SHOWN, Array
from torch_lapeig.command.tables import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = 4  # maximum parts with a picture of their own

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } td, th { padding: .25rem .8rem; text-align: left }
tr { border-bottom: 1px solid #ddd } .number { text-align: right; font-variant-numeric: tabular-nums }
.bar { background: #1f6fb4; height: .7rem; min-width: 1px } img { max-width: 100% }
pre { background: #f4f4f4; padding: 1rem; overflow-x: auto } h1 { font-size: 1.6rem } h2 { font-size: 1.15rem }
"""


def new_figure() -> Figure:
    """Return an empty figure, drawn without a display; raise `InputError` without the libraries of the command."""
    try:
        import pandas  # noqa: F401 (it reads tables)
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("the command needs matplotlib and pandas: pip install 'torch-lapeig[embed]'") from error
    return Figure(figsize=(13, 4.8), layout="constrained")


def summary(title: str, answer: Answer) -> str:
    """Return choices, spectrum and notes for a terminal."""
    lines = [title, ""]
    lines += [f"  {choice.name:19} {choice.value:18} {choice.why}" for choice in answer.choices]
    lines += ["", f"  {_parts(answer)}"]
    tables = _tables(answer)
    for heading, columns in tables[:PANELS]:
        lines += ["", f"  {heading}", f"  {'column':>6} {'eigenvalue':>13} {'relative gap':>13} {'residual':>10}"]
        lines += [f"  {i:6} {value:13.6g} {gap:13.1%} {residual:10.1e}" for i, value, gap, residual in columns]
    if len(tables) > PANELS:
        lines += ["", f"  and {len(tables) - PANELS} parts more, in report.html"]
    lines += ["", *(f"  {line}" for line in advice(answer)), *(f"  note: {note}" for note in answer.notes)]
    return "\n".join(lines)


def _tables(answer: Answer) -> list[tuple[str, list[Column]]]:
    """Return the columns of all points together, or of each part that is embedded on its own, below a heading."""
    spectra, parts = answer.spectra(), answer.graph.nodes_of_components()
    headings = ["eigenvalues"]
    if len(spectra) > 1:
        headings = [f"part {i + 1} ({len(part):,} points)" for i, part in enumerate(parts)]
    return list(zip(headings, spectra, strict=True))


def advice(answer: Answer) -> list[str]:
    """Return sentences about the largest relative gap and about nearly separate parts, of points embedded together."""
    (_, columns), *others = _tables(answer)
    free = columns[len(answer.graph.nodes_of_components()) - 1 :]  # the others only tell parts apart
    if others or not free:
        return []
    largest = max(free, key=lambda column: column.gap)
    said = "no gap between the eigenvalues stands out"
    # A smaller relative gap is not worth a sentence.
    if largest.gap > 0.1:
        times = f"{1 / (1 - largest.gap):.2g} times as large" if largest.gap < 1 else "above zero"
        said = f"the largest relative gap is after column {largest.number}: the next eigenvalue is {times}"
    said += ". The larger the gap after some columns, the less noise of the points changes their span"
    last = max((column.number for column in free if column.gap > 1 - NEARLY_SEPARATE), default=0)
    return [said, *(_nearly_separate(answer, column) for column in free if column.number <= last)]


def _nearly_separate(answer: Answer, column: Column) -> str:
    """Return the points that a column of a small eigenvalue tells from the others, on one side of its widest step."""
    y = answer.columns[:, column.number - 1].cpu().numpy()
    order = np.argsort(y, kind="stable")
    step = int(np.diff(y[order]).argmax()) + 1
    few = np.sort(min(order[:step], order[step:], key=len))
    rows = ", ".join(map(str, few[:SHOWN])) + (", …" if len(few) > SHOWN else "")
    return (
        f"column {column.number} (eigenvalue {column.value:.1e}) tells a nearly separate part of {len(few):,} points "
        f"from the others (rows {rows} of embedding.npy): right for clusters; if not, --standardize, --weighting "
        "self-tuning or more --neighbors join it"
    )


def _parts(answer: Answer) -> str:
    sizes = sorted(map(len, answer.graph.nodes_of_components()), reverse=True)
    shown = ", ".join(f"{size:,}" for size in sizes[:8]) + (f", … ({len(sizes)} in all)" if len(sizes) > 8 else "")
    return f"{answer.graph.edge_index.shape[1] // 2:,} edges; points of each part: {shown}"


def draw(figure: Figure, title: str, answer: Answer, labels: Array | None, name: str) -> None:
    """Draw the first columns, coloured by labels ``(N,)``, with new points; and the eigenvalues.

    Parts that are embedded on their own have a panel each.
    """
    columns, tables = answer.columns.cpu().numpy(), _tables(answer)
    panels: list[tuple[str, Any, tuple[int, int]]]
    panels = [("", slice(None), pair) for pair in [(0, 1), (2, 3)][: max(1, columns.shape[1] // 2)]]
    if len(tables) > 1:
        parts = answer.graph.nodes_of_components()[:PANELS]
        panels = [(tables[i][0], part.cpu().numpy(), (0, 1)) for i, part in enumerate(parts)]
    chosen = ", ".join(f"{choice.name} {choice.value}" for choice in answer.choices[:3])
    figure.suptitle(f"{title}; {chosen}", fontsize=10)
    *clouds, spectrum = figure.subplots(1, len(panels) + 1, width_ratios=[2.0] * len(panels) + [1.0])
    size = float(np.clip(6000 / len(columns), 1.5, 40))
    labels = None if labels is None else _with_other(labels)
    for axes, (heading, nodes, pair) in zip(clouds, panels, strict=True):
        if answer.new is not None and len(tables) == 1:  # rings below the points hide none
            new = _plane(answer.new.cpu().numpy(), pair)
            axes.scatter(*new.T, s=size + 14, c="none", edgecolors="grey", lw=0.4, label="new points")
        _scatter(figure, axes, _plane(columns[nodes], pair), None if labels is None else labels[nodes], name, size)
        names = [f"column {i + 1}" for i in pair] if columns.shape[1] > 1 else ["column 1", "all at one height"]
        axes.set(xlabel=names[0], ylabel=names[1], xticks=[], yticks=[], title=heading)
    handles, texts = clouds[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, texts, fontsize=9, markerscale=max(1.0, 5 / size**0.5), loc="outside right center")
    for _, values in tables[:PANELS]:
        spectrum.plot(
            [0, *(column.number for column in values)], [0, *(column.value for column in values)], "o-", lw=0.5
        )
    spectrum.xaxis.get_major_locator().set_params(integer=True)
    spectrum.set(xlabel="column (0: the constant one)", title="eigenvalues")
    spectrum.spines[["top", "right"]].set_visible(False)


def _with_other(labels: Array) -> Array:
    """Return labels of which the most frequent words have a colour each and the rest one."""
    classes, counts = np.unique(labels, return_counts=True)
    if labels.dtype.kind in "biuf" or len(classes) <= CLASSES:
        return labels
    frequent = classes[np.argsort(-counts, kind="stable")[: CLASSES - 1]]
    return np.where(np.isin(labels, frequent), labels, "other")


def _plane(columns: Array, pair: tuple[int, int]) -> Array:
    """Return two columns; a single column is paired with zeros."""
    return columns[:, list(pair)] if columns.shape[1] > 1 else np.stack([columns[:, 0], 0 * columns[:, 0]], 1)


def _scatter(figure: Figure, axes: Any, plane: Array, labels: Array | None, name: str, size: float) -> None:
    if labels is None:
        axes.scatter(*plane.T, s=size, c="#1f6fb4", lw=0)
        return
    classes = np.unique(labels)
    if len(classes) <= CLASSES:
        from matplotlib import colormaps

        colors = colormaps["tab10" if len(classes) <= 10 else "tab20"]
        for i, label in enumerate(classes):
            axes.scatter(*plane[labels == label].T, s=size, color=colors(i), lw=0, label=str(label))
    else:
        drawn = axes.scatter(*plane.T, s=size, c=labels.astype(np.float64), cmap="viridis", lw=0)
        figure.colorbar(drawn, ax=axes, label=name, shrink=0.8)


def page(title: str, answer: Answer, picture: Path, code: str) -> str:
    """Return the report as one HTML file, with the picture inside."""
    safe = html.escape
    choices = "".join(
        f"<tr><td>{safe(choice.name)}</td><td><b>{safe(choice.value)}</b></td><td>{safe(choice.why)}</td></tr>"
        for choice in answer.choices
    )
    spectra = "".join(
        f"<p>{safe(heading)}</p><table><tr><th>column</th><th>eigenvalue</th><th>relative gap</th><th></th>"
        f"<th>residual</th></tr>{''.join(map(_row, columns))}</table>"
        for heading, columns in _tables(answer)
    )
    said = "".join(f"<p>{safe(line)}.</p>" for line in advice(answer))
    later = f"<h2>New points, later</h2><pre>{safe(code)}</pre>" if code else ""
    notes = "".join(f"<li>{safe(note)}</li>" for note in answer.notes) or "<li>none</li>"
    image = base64.b64encode(picture.read_bytes()).decode()
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{safe(title)}</title><style>{STYLE}</style>'
        f'<h1>{safe(title)}</h1><img alt="the first columns, and the eigenvalues" '
        f'src="data:image/png;base64,{image}"><h2>What was chosen, and why</h2><table>{choices}</table>'
        f"<h2>The graph</h2><p>{_parts(answer)}.</p>"
        f"<h2>Eigenvalues</h2>{said}{spectra}<h2>Notes</h2><ul>{notes}</ul>{later}</html>\n"
    )


def _row(column: Column) -> str:
    return (
        f'<tr><td class="number">{column.number}</td><td class="number">{column.value:.6g}</td>'
        f'<td class="number">{column.gap:.1%}</td><td style="width:12rem"><div class="bar" '
        f'style="width:{max(column.gap, 0):.1%}"></div></td><td class="number">{column.residual:.1e}</td></tr>'
    )
