"""The site that `make docs` has built: its links lead somewhere, and a browser shows it without a network."""

import functools
import http.server
import re
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

import pytest

from problems import chromium, complaints, wait_for

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make docs")
PAGES = ["index.html", "guide.html", "api.html", "theory.html", "weights.html", "auto_gallery/index.html"]
PAGES += ["api/torch_lapeig.LaplacianEigenmaps.html", "glossary.html"]
SEARCHES = [(words, "newpoints") for words in ("Nyström", "semi-supervised", "out of sample", "few labels")]
SEARCHES += [("DDP", "distributed"), ("command line", "command"), ("disconnected", "graphs")]


def files():
    return [file for file in SITE.rglob("*.html") if "_static" not in file.parts]


class Parts(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), {""}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.links |= {given[name] for name in ("href", "src") if given.get(name)}


def test_links_lead_somewhere():
    parts = {file: Parts(file.read_text(encoding="utf-8")) for file in files()}
    lost = []
    for file, found in parts.items():
        for link in (link for link in found.links if not urlsplit(link).scheme):
            path, anchor = urldefrag(urljoin(file.as_uri(), link))
            target = Path(unquote(urlsplit(path).path))
            target = target / "index.html" if target.is_dir() else target
            known = target in parts and unquote(anchor) in parts[target].anchors
            if not (known or (target not in parts and target.exists())):
                lost.append(f"{file.relative_to(SITE)}: {link}")
    assert len(parts) > 100
    assert not lost, "\n".join(lost)


def test_nothing_is_loaded_from_elsewhere():
    for file in files():
        text = file.read_text(encoding="utf-8")
        assert re.search(r'<(?:script|img|iframe)[^>]* src="(?!data:)\w*:', text) is None, file
        assert re.search(r'<link[^>]* href="\w+:', text) is None, file


@pytest.fixture(scope="module")
def address():
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = functools.partial(quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Headless Chromium that can reach nothing but the loopback."""
    with chromium(tmp_path_factory.mktemp("chromium"), reaches="127.0.0.1") as chrome:
        yield chrome


@pytest.mark.parametrize("page", PAGES)
def test_console_is_silent(browser, address, page):
    browser.get(address + page)
    wait_for(browser, "document.readyState === 'complete'")
    assert complaints(browser) == []
    broken = "Array.from(document.images).filter(i => i.loading !== 'lazy' && !(i.complete && i.naturalWidth))"
    assert browser.execute_script(f"return {broken}.map(i => i.src)") == []


@pytest.mark.parametrize("page", ["theory.html", "weights.html", "glossary.html"])
def test_mathematics_is_drawn(browser, address, page):
    browser.get(address + page)
    formulas = browser.execute_script("return document.querySelectorAll('.math').length")
    assert formulas > 0
    wait_for(browser, f"document.querySelectorAll('.math mjx-container svg').length >= {formulas}")
    assert browser.execute_script("return document.querySelectorAll('mjx-merror').length") == 0


@pytest.mark.parametrize(("words", "page"), SEARCHES)
def test_search_finds_the_page(browser, address, words, page):
    browser.get(f"{address}search.html?q={quote(words)}")
    # Results come one by one: the first of them are there before the others.
    links = "Array.from(document.querySelectorAll('#search-results li a')).map(a => a.href)"
    assert wait_for(browser, f"{links}.some(link => link.includes('/{page}.html'))")
    assert complaints(browser) == []


@pytest.mark.parametrize("width", [1200, 390])
def test_front_page_fits_and_its_picture_can_be_read(browser, address, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address)
    wait_for(browser, "document.readyState === 'complete'")
    wide = "Array.from(document.querySelectorAll('html, pre')).filter(e => e.scrollWidth > e.clientWidth)"
    assert browser.execute_script(f"return {wide}.map(e => e.textContent.slice(0, 99))") == []
    image = "document.querySelector('.start img')"
    assert browser.execute_script(f"return 33 * {image}.width / {image}.naturalWidth") > 12  # pixels of its words
