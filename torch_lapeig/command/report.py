"""The picture and the report of an embedding, and its numbers as text."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_lapeig.command.choices import Answer, sizes_of_parts
from torch_lapeig.command.reading import Array, InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = 20  # maximum labels with a colour each

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } td, th { padding: .25rem .8rem; text-align: left }
tr { border-bottom: 1px solid #ddd } .number { text-align: right; font-variant-numeric: tabular-nums }
.bar { background: #1f6fb4; height: .7rem; min-width: 1px } img { max-width: 100% }
pre { background: #f4f4f4; padding: 1rem; overflow-x: auto } h1 { font-size: 1.6rem } h2 { font-size: 1.15rem }
"""


def new_figure() -> Figure:
    """Return an empty figure, drawn without a display; raise `InputError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("the picture is drawn by matplotlib: pip install 'torch-lapeig[embed]'") from error
    return Figure(figsize=(13, 4.8), layout="constrained")


def summary(title: str, answer: Answer) -> str:
    """Return choices, spectrum and notes for a terminal."""
    lines = [title, ""]
    lines += [f"  {choice.name:19} {choice.value:18} {choice.why}" for choice in answer.choices]
    lines += ["", f"  {_parts(answer)}", ""]
    lines += [f"  {'column':>6} {'eigenvalue':>13} {'gap to the next':>16} {'residual':>10}"]
    lines += [f"  {i:6} {value:13.6g} {gap:16.6g} {residual:10.1e}" for i, value, gap, residual in answer.spectrum()]
    lines += ["", f"  {advice(answer)}", *(f"  note: {note}" for note in answer.notes)]
    return "\n".join(lines)


def advice(answer: Answer) -> str:
    """Return where the eigenvalues have their largest gap, beginning with the gap after the constant column's 0."""
    spectrum = answer.spectrum()
    gaps = [spectrum[0][1], *(gap for _, _, gap, _ in spectrum)]
    largest = int(np.argmax(gaps))
    return (
        f"the largest gap is after column {largest}. The larger the gap after some columns, the less noise of the "
        "points changes their span; j separate clusters make j - 1 eigenvalues nearly 0"
    )


def _parts(answer: Answer) -> str:
    sizes = sizes_of_parts(answer.graph)
    shown = ", ".join(f"{size:,}" for size in sizes[:8]) + (f", … ({len(sizes)} in all)" if len(sizes) > 8 else "")
    return f"{answer.graph.edge_index.shape[1] // 2:,} edges; points of each part: {shown}"


def draw(figure: Figure, answer: Answer, labels: Array | None, name: str) -> None:
    """Draw the first columns in pairs, coloured by labels ``(N,)``, with new points; and the eigenvalues."""
    columns = answer.columns.cpu().numpy()
    new = None if answer.new is None else answer.new.cpu().numpy()
    pairs = [(0, 1), (2, 3)][: max(1, columns.shape[1] // 2)]
    *clouds, spectrum = figure.subplots(1, len(pairs) + 1, width_ratios=[2.0] * len(pairs) + [1.0])
    size = float(np.clip(6000 / len(columns), 1.5, 40))
    for axes, pair in zip(clouds, pairs, strict=True):
        if new is not None:
            axes.scatter(*_plane(new, pair).T, s=size + 14, c="none", edgecolors="black", lw=0.5, label="new points")
        _scatter(figure, axes, _plane(columns, pair), labels, name, size)
        names = [f"column {i + 1}" for i in pair] if columns.shape[1] > 1 else ["column 1", "all at one height"]
        axes.set(xlabel=names[0], ylabel=names[1], xticks=[], yticks=[])
    if clouds[0].get_legend_handles_labels()[0]:
        clouds[0].legend(fontsize=8, markerscale=max(1.0, 4 / size**0.5), framealpha=0.7)
    values = [0.0, *(value for _, value, _, _ in answer.spectrum())]
    spectrum.stem(range(len(values)), values, basefmt=" ")
    spectrum.xaxis.get_major_locator().set_params(integer=True)
    spectrum.set(xlabel="column (0: the constant one)", title="eigenvalues")
    spectrum.spines[["top", "right"]].set_visible(False)


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
    elif labels.dtype.kind in "biuf":
        drawn = axes.scatter(*plane.T, s=size, c=labels.astype(np.float64), cmap="viridis", lw=0)
        figure.colorbar(drawn, ax=axes, label=name, shrink=0.8)
    else:
        raise InputError(f"labels must be numbers, or at most {CLASSES} different words, got {len(classes)} in {name}")


def page(title: str, answer: Answer, picture: Path, code: str) -> str:
    """Return the report as one HTML file, with the picture inside."""
    safe = html.escape
    choices = "".join(
        f"<tr><td>{safe(choice.name)}</td><td><b>{safe(choice.value)}</b></td><td>{safe(choice.why)}</td></tr>"
        for choice in answer.choices
    )
    rows = answer.spectrum()
    widest = max((gap for *_, gap, _ in rows), default=0) or 1
    spectrum = "".join(
        f'<tr><td class="number">{i}</td><td class="number">{value:.6g}</td><td class="number">{gap:.3g}</td>'
        f'<td style="width:12rem"><div class="bar" style="width:{max(gap, 0) / widest:.1%}"></div></td>'
        f'<td class="number">{residual:.1e}</td></tr>'
        for i, value, gap, residual in rows
    )
    notes = "".join(f"<li>{safe(note)}</li>" for note in answer.notes) or "<li>none</li>"
    image = base64.b64encode(picture.read_bytes()).decode()
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{safe(title)}</title><style>{STYLE}</style>'
        f'<h1>{safe(title)}</h1><img alt="the first columns, and the eigenvalues" '
        f'src="data:image/png;base64,{image}"><h2>What was chosen, and why</h2><table>{choices}</table>'
        f"<h2>The graph</h2><p>{_parts(answer)}.</p>"
        f"<h2>Eigenvalues</h2><p>{safe(advice(answer))}.</p><table><tr><th>column</th><th>eigenvalue</th>"
        f"<th>gap to the next</th><th></th><th>residual</th></tr>{spectrum}</table>"
        f"<h2>Notes</h2><ul>{notes}</ul><h2>New points, later</h2><pre>{safe(code)}</pre></html>\n"
    )
