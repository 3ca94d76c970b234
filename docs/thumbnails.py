"""Thumbnails of the gallery: one panel of a script's first figure, so that it can be read when it is small.

`make docs` makes them; after it `python docs/thumbnails.py` writes small copies into the repository, and the page
of the gallery that a code host shows, docs/gallery.md.
"""

import ast
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from PIL import Image, ImageOps
from sphinx_gallery.scrapers import matplotlib_scraper

DOCS = Path(__file__).resolve().parent
GALLERY, PAGE = DOCS / "gallery", DOCS / "gallery.md"

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


def page() -> str:
    """Return the page that lists the programs of the gallery, by section, with their thumbnails."""
    parts = [
        "# Gallery\n\nShort programs, each on one page. `make docs` builds the site, which shows what they print.\n"
    ]
    for header in sorted(GALLERY.glob("*/GALLERY_HEADER.rst")):
        title, _, _, *text = header.read_text(encoding="utf-8").splitlines()
        parts.append(f"\n## {title}\n" + "\n".join(text) + "\n\n| | |\n|---|---|\n")
        for script in sorted(header.parent.glob("plot_*.py")):
            said = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
            name, _, *rest = (said or "").split("\n\n")[0].splitlines()
            sentence = " ".join(
                rest or (said or "").split("\n\n")[1].splitlines()
            ).replace("``", "`")
            path = script.relative_to(DOCS)
            picture = f"![{name}](images/gallery/{script.stem}.png)"
            parts.append(f"| {picture} | [{name}]({path}): {sentence} |\n")
    return "".join(parts)


def main() -> None:
    """Write the small pictures and the page."""
    folder = DOCS / "images" / "gallery"
    folder.mkdir(exist_ok=True)
    for file in (DOCS / "auto_gallery").glob("*/images/thumb/*.png"):
        image = Image.open(file).convert("RGB")
        image.thumbnail((240, 180))
        name = file.name.removeprefix("sphx_glr_").replace("_thumb", "")
        image = ImageOps.expand(image, 3, "white")  # Sphinx-Gallery trims all white
        image.quantize(64).save(folder / name, optimize=True)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
