"""The picture and the report of an embedding, and its numbers as text."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_lapeig.command.choices import NEARLY_SEPARATE, Answer, Column
from torch_lapeig.command.points import SHOWN, Array
from torch_lapeig.command.tables import InputError
from torch_lapeig.plots import plot_embedding, plot_spectrum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = 4  # maximum parts with a picture of their own


class Drawn(NamedTuple):
    """Labels of the points ``(N,)`` with their name, and the points as images, each if there are any."""

    labels: Array | None
    name: str
    images: Array | None


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


def draw(figure: Figure, title: str, answer: Answer, drawn: Drawn) -> None:
    """Draw the first columns, and the eigenvalues; parts that are embedded on their own have a panel each."""
    columns, tables = answer.columns.cpu().numpy(), _tables(answer)
    chosen = ", ".join(f"{choice.name} {choice.value}" for choice in answer.choices[:3])
    figure.suptitle(f"{title}\n{chosen}", fontsize=10)
    parts = answer.graph.nodes_of_components()[:PANELS] if len(tables) > 1 else []
    pairs = [(0, 1), (2, 3)][: max(1, columns.shape[1] // 2)] if columns.shape[1] > 1 else [(0, 0)]
    count, rows = len(parts) or len(pairs), 1 if drawn.images is None else 2
    figure.set_size_inches(13, 4.8 * rows)
    grid = figure.add_gridspec(rows, count + 1, width_ratios=[2.0] * count + [1.0])
    for row in range(rows):  # points, and below them their images, which would hide them
        images = drawn.images if row else None
        clouds = [figure.add_subplot(grid[row, i]) for i in range(count)]
        more: dict[str, Any] = {"images": images, "name": drawn.name}
        if parts:
            plot_embedding(columns, drawn.labels, parts=parts, axes=clouds, legend=row == 0, **more)
        for cloud, pair in zip(clouds, pairs if not parts else [], strict=False):
            new = None if answer.new is None or row else answer.new.cpu()
            is_last = cloud is clouds[-1] and row == 0
            plot_embedding(columns, drawn.labels, columns=pair, new=new, axes=cloud, legend=is_last, **more)
        for cloud, (heading, _) in zip(clouds, tables if parts else [], strict=False):
            cloud.set_title(heading, fontsize=10)
    spectrum = figure.add_subplot(grid[0, -1])
    for i, (_, values) in enumerate(tables[:PANELS], 1):
        plot_spectrum([0, *(column.value for column in values)], first=0, axes=spectrum, label=f"part {i}")
    spectrum.set(xlabel="column", ylabel="", title="eigenvalues")
    if parts:
        spectrum.legend(fontsize=8, frameon=False)


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
