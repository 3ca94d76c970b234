"""Thumbnails of the gallery: one panel of a script's first figure, so that it can be read when it is small."""

from typing import Any

from matplotlib import pyplot
from sphinx_gallery.scrapers import matplotlib_scraper

# Width of the panel at most, so that letters of 10 points can be read in a thumbnail.
INCHES = 4.2


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the panel that the thumbnail shows, then the figures of a block, and return the lines that show these.

    A script names its panel by ``# sphinx_gallery_thumbnail_panel = NUMBER``; it is the first one otherwise.
    Sphinx-Gallery makes the thumbnail of a script's first image, which is the panel.
    """
    images = block_vars["image_path_iterator"]
    if pyplot.get_fignums() and not len(images):
        number = block_vars["file_conf"].get("thumbnail_panel", 0)
        save_panel(pyplot.figure(pyplot.get_fignums()[0]), number, next(images))
    return str(matplotlib_scraper(block, block_vars, gallery_conf))


def save_panel(figure: Any, number: int, path: str) -> None:
    """Save one panel of a figure, without the figure's own legends, which lie beside the panels."""
    panel, size, legends = figure.axes[number], figure.get_size_inches(), figure.legends
    figure.legends = []
    figure.set_size_inches(size * min(1, INCHES / _place(panel).width))
    figure.savefig(path, bbox_inches=_place(panel).padded(0.05), dpi=200)
    figure.legends = legends
    figure.set_size_inches(size)


def _place(panel: Any) -> Any:
    """Return the box of a panel with its labels, in inches."""
    panel.figure.canvas.draw()
    return panel.get_tightbbox().transformed(panel.figure.dpi_scale_trans.inverted())
