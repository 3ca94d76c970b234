"""The site: `make docs` builds it from these pages, the docstrings and the gallery, without a network."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import tomllib
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS)]

import notebooks  # noqa: E402
import torch_lapeig  # noqa: E402

HOOKS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"][
    "metadata"
]["hooks"]
ADDRESS = HOOKS["custom"][
    "address"
]  # of the public repository; empty until there is one

project = "torch_lapeig"
author = "The torch_lapeig developers"
copyright = author
version = release = torch_lapeig.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
root_doc = "index"
exclude_patterns = ["_build", "gallery", "gallery.md", "api/_names.rst"]
nitpicky = True

# Markdown. Headings get the anchors that code forges give them, so that links work there as here.
myst_enable_extensions = [
    "attrs_block",
    "attrs_inline",
    "colon_fence",
    "deflist",
    "dollarmath",
]
myst_heading_anchors = 4

# API pages: `api.md` lists the names in tables, autosummary makes one page of each. It looks for names in files, of
# which api.md has none of its own: they are written to one.
default_role = "py:obj"
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_use_rtype = False
templates_path = ["_templates"]


def guides() -> dict[str, str]:
    """Return the guide page of each public name: the first page that its section of `api.md` links to."""
    found = {}
    for section in re.split(r"^## ", (DOCS / "api.md").read_text(), flags=re.MULTILINE)[
        1:-1
    ]:  # the last one lists modules
        page = re.search(r"\]\((\w+)\.md[)#]", section)
        assert page, (
            f"no guide page in the section {section.splitlines()[0]!r} of api.md"
        )
        found |= dict.fromkeys(
            re.findall(r"^\| `(torch_lapeig\.[\w.]+)`", section, re.MULTILINE), page[1]
        )
    return found


def listed(names: list[str], folder: str) -> str:
    """Return the directive that lists names, with their pages in a folder."""
    return f".. autosummary::\n   :toctree: {folder}\n   :nosignatures:\n\n" + "".join(
        f"   ~{name}\n" for name in names
    )


GUIDES = guides()
(DOCS / "api").mkdir(exist_ok=True)
(DOCS / "api" / "_names.rst").write_text(listed(list(GUIDES), "."))
autosummary_generate = ["api/_names.rst"]
autosummary_context = {"guides": GUIDES}
# Where files' names do not differ by case, `Eigenpairs` and `eigenpairs` would be one.
autosummary_filename_map = {
    name: f"{name}-function" for name in GUIDES if name.split(".")[-1].islower()
}

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "backreferences_dir": "auto_gallery/backreferences",
    "doc_module": ("torch_lapeig",),
    "reference_url": {"torch_lapeig": None},
    "image_scrapers": ("thumbnails.scrape",),
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 5,
}

html_title = "torch_lapeig"
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "logo": {"text": "torch_lapeig"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        "auto_gallery/index": [],
        "index": [],
    },
    "footer_start": ["copyright"],
    "footer_end": [],
    **({"github_url": ADDRESS} if ADDRESS else {}),
}
html_context = {"default_mode": "auto"}
html_sidebars = {"index": [], "theory": [], "experiments": []}
html_show_sourcelink = False
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
# One file of MathJax, with its fonts as outlines, from the package that carries it.
mathjax = importlib.util.find_spec("sphinx-mathjax-offline")
assert mathjax and mathjax.origin  # noqa: PT018
html_static_path = [
    "_static",
    str(Path(mathjax.origin).parent / "static" / "mathjax" / "tex-svg-full.js"),
]
mathjax_path = "tex-svg-full.js"

# Pages that are files of the repository.
FILES = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "results": "benchmarks/RESULTS.md",
}
PAGES = {ROOT / file: f"{page}.md" for page, file in FILES.items()}


def reference(table: re.Match[str]) -> str:
    """Return the directives that show a table of names, or of modules, with links to their pages."""
    names = re.findall(r"^\| `([\w.]+)`", table[0], re.MULTILINE)
    lines = listed(names, "api")
    if table[1] == "module":
        lines = "".join(
            f".. automodule:: {name}\n   :no-members:\n\n" for name in names
        )
    return f"```{{eval-rst}}\n{lines}```\n"


def read(app: Sphinx, page: str, content: list[str]) -> None:
    """Put the files of the repository in the place of their pages, and make links between files links between pages.

    Pages are Markdown that a code host shows as well. What only the site has stands in comments: `<!--site ... -->` is
    replaced by its content, and the tables of api.md by directives. Other comments go: they mark numbers that a script fills in, and Markdown takes a line that begins with one for HTML.
    """
    source = DOCS / f"{page}.md"
    if page in FILES:
        source = ROOT / FILES[page]
        app.env.note_dependency(str(source))
        content[0] = source.read_text()
    if app.env.doc2path(page).suffix != ".md":
        return

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match.groups(default="")
        path = (source.parent / target).resolve()
        if path == DOCS / "gallery.md":  # which code hosts show
            path = DOCS / "auto_gallery" / "index.rst"
        if path in PAGES:
            path = DOCS / PAGES[path]
        if path.is_relative_to(DOCS):
            return f"[{label}]({os.path.relpath(path, (DOCS / page).parent)}{anchor})"
        if not path.is_relative_to(ROOT) or not path.exists():
            return match[0]
        return (
            f"[{label}]({ADDRESS}/blob/main/{path.relative_to(ROOT)}{anchor})"
            if ADDRESS
            else label
        )

    text = re.sub(r"<!-- (?:value: |results: |end).*?-->", "", content[0])
    text = re.sub(r"<!--site\n(.*?)-->", r"\1", text, flags=re.DOTALL)
    if page.startswith("paths/"):
        file = f"../_build/notebooks/{Path(page).name}.ipynb"
        text += f"\n{{download}}`This page as a notebook <{file}>`\n"
    if page == "api":
        text = re.sub(
            r"^\| (name|module) \|.*?(?=^$|\Z)", reference, text, flags=re.M | re.S
        )
    content[0] = re.sub(
        r"\[([^\]\[]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)", link, text
    )


def escape(
    app: Sphinx, kind: str, name: str, what: object, options: object, lines: list[str]
) -> None:
    """Escape docstrings, which are plain text: a trailing underscore is part of a name there, and a bar is a bar.

    "Raises (``fit``):" is a section as "Raises:" is.
    """
    in_example = False
    for number, line in enumerate(lines):
        line = re.sub(r"^(\s*Raises) \(.*\):$", r"\1:", line)
        in_example = bool(line.strip()) and (
            in_example or line.lstrip().startswith(">>>")
        )
        if not in_example:
            parts = re.split(r"(``.*?``|`.*?`)", line)
            parts[::2] = [
                re.sub(r"(?<=\w)_(?!\w)|\|", r"\\\g<0>", part) for part in parts[::2]
            ]
            line = "".join(parts)
        lines[number] = line
    if kind in ("property", "attribute"):
        PLAIN[name] = list(lines)
        lines.clear()


PLAIN: dict[
    str, list[str]
] = {}  # docstrings of properties: Napoleon would take what stands before a colon for a type


def restore(
    app: Sphinx, kind: str, name: str, what: object, options: object, lines: list[str]
) -> None:
    """Bring back what Napoleon should not see."""
    lines.extend(PLAIN.pop(name, []))


def skip(
    app: Sphinx, kind: str, name: str, what: object, skipped: bool, options: object
) -> bool | None:
    """Leave out what classes inherit from other libraries."""
    function = what.fget if isinstance(what, property) else what
    module = getattr(function, "__module__", None) or "torch_lapeig"
    return None if str(module).startswith("torch_lapeig") else True


FOREIGN = (
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "pytorch_lightning",
    "lightning",
    "collections",
    "typing",
)
OTHERS = (
    "DeviceMesh",
    "DistributedDataParallel",
    "DTensor",
    "StorageReader",
    "NotFittedError",
)


def resolve(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.TextElement
) -> nodes.reference | nodes.TextElement | None:
    """Find public names by what their path ends with: modules that a name passes through are no part of it.

    Types of annotations without a page are words, and so are names of other libraries: their lists are on the network.
    """
    if node.get("refdomain") != "py":
        return None
    objects, parts = (
        env.domains.python_domain.objects,
        node.get("reftarget", "").removesuffix("()").split("."),
    )
    tails = [".".join(parts[start:]) for start in range(len(parts))]
    for tail in [
        *tails,
        *parts[-2:-1],
    ]:  # an attribute without an entry of its own is on the page of its class
        known = objects if "." in tail else GUIDES
        if found := [
            name for name in known if name in objects and name.endswith(f".{tail}")
        ]:
            name = min(found, key=len)
            uri = (
                app.builder.get_relative_uri(node["refdoc"], objects[name].docname)
                + f"#{objects[name].node_id}"
            )
            return nodes.reference(
                "", "", content, internal=True, refuri=uri, reftitle=name
            )
    return (
        content
        if parts[0] in FOREIGN or parts[-1] in OTHERS or node.get("reftype") == "class"
        else None
    )


WIDTH = 88  # columns of code that a page shows without a scroll bar


def check_width(app: Sphinx, document: nodes.document) -> None:
    """Warn of code, printed output and examples with lines that a page would cut off."""
    for node in document.findall(
        lambda node: isinstance(node, (nodes.literal_block, nodes.doctest_block))
    ):
        wide = [line for line in node.astext().splitlines() if len(line) > WIDTH]
        if wide:
            logging.getLogger(__name__).warning(
                "wider than %d columns:\n%s", WIDTH, "\n".join(wide), location=node
            )


def setup(app: Sphinx) -> None:
    """Connect the hooks."""
    app.connect("builder-inited", lambda app: notebooks.write())
    app.connect("source-read", read)
    app.connect(
        "autodoc-process-docstring", escape, priority=400
    )  # before Napoleon makes fields of sections
    app.connect("autodoc-process-docstring", restore, priority=600)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", resolve)
    app.connect("doctree-read", check_width)
