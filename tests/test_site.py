"""The documentation site: it builds without a warning, needs no network, and has a page for every machine.

What a reader sees is tested in a headless browser, where Playwright and a Chromium are there.
"""

from __future__ import annotations

import csv
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit
from xml.etree import ElementTree

import facts
import page
import pytest
from machine_sorts import LIKE_OTHERS

import blinksim as bs

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PHONE, DESK = (390, 844), (1280, 900)
HEADINGS = (
    "How fast can it be, at best?",
    "Which GPUs should I ask for?",
    "How long does it take?",
    "What was measured?",
    "Where do the numbers come from?",
)


def by_hand() -> dict[str, float]:
    """The allgather bound of every machine, GB/s, by hand arithmetic on what makers publish.

    A machine of one GPU has a page for two nodes of it, where the cable carries half of what a node receives.
    """
    rows = csv.DictReader((ROOT / "tests" / "golden" / "machine_figures.csv").read_text().splitlines())
    return {row["machine"]: float(Fraction(row["allgather_GBps"] or 2 * int(row["node_GBps"]))) for row in rows}


@pytest.mark.slow
def test_the_page_of_a_machine_says_what_its_answers_say() -> None:
    found = facts.facts("dgx1-p100")
    text = page.page(found, drawn=True)
    assert [one for one in HEADINGS if f"## {one}" not in text] == []
    assert f"| allgather | {by_hand()['dgx1-p100']:.4g} |" in text
    # One of four NVLinks less at every GPU's cut leaves three quarters of the bound, and no GPU is cut off.
    lost = re.findall(r"^\| gpu\d-gpu\d \(nvlink\) \| (\d+) \| ([\d.]+) \|", text, re.MULTILINE)
    assert sum(int(like) for like, _ in lost) == 16  # the wires of a hybrid cube mesh
    assert {float(rate) for _, rate in lost} == {round(float(one.after) / 1e9, 2) for one in bs.losses("dgx1-p100")}
    # Four GPUs of one quad, fully joined, go before all others.
    assert re.search(r"^\| 4 \| 0, 1, 2, 3 \|", text, re.MULTILINE)


def test_the_index_has_a_row_for_every_machine_given() -> None:
    found = facts.facts("k2200-ntb")
    table = page.index([found, {**found, "name": "other", "also": ["alias"]}])
    assert re.findall(r'<a href="([\w.-]+)\.html">', table) == ["k2200-ntb", "other"]
    assert "alias" in table


# --- the built site -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def names(request: pytest.FixtureRequest) -> list[str]:
    """The machines that pages are made of: one of each sort, all of them in `make test-every`."""
    some = "not alike" in request.config.getoption("markexpr")
    return [name for name in bs.catalogue() if not (some and name in LIKE_OTHERS)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> Path:
    """The site, built once for all processes."""
    pytest.importorskip("mkdocs")
    shared = tmp_path_factory.getbasetemp()
    shared = shared if shared.parent.name.startswith("pytest-of") else shared.parent
    where = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not where.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(where)]
            env = {**os.environ, "MACHINE_PAGES": ",".join(names)}
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
            assert done.returncode == 0, done.stdout + done.stderr
    return where


class References(HTMLParser):
    """Collects what a page links to and loads, its anchors, and whether it is made for narrow screens."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.viewport = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical" and "href" in given:
            self.loads.append(given["href"])
        elif tag in ("img", "script", "iframe") and "src" in given:
            self.loads.append(given["src"])
        elif tag == "meta" and given.get("name") == "viewport":
            self.viewport = given.get("content", "")


@pytest.mark.slow
def test_the_site_searches_without_a_server_and_documents_the_interface(site: Path) -> None:
    # Search works in a page opened as a file: its index is a script.
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = ")
    assert '<script src="javascripts/iframe-worker.js"' in (site / "index.html").read_text()
    reference = (site / "api.html").read_text()
    assert "blinksim.answers.sweep.sweep" in reference
    assert "Time a collective at every combination of the axes" in reference
    assert not list(site.rglob("*.py"))


@pytest.mark.slow
def test_no_page_has_a_broken_link_or_loads_from_elsewhere(site: Path, names: list[str]) -> None:
    not_made = {site / "machines" / name for name in set(bs.catalogue()) - set(names)}
    pages = {path: References(path) for path in site.rglob("*.html") if path.name != "404.html"}
    broken = []
    for path, found in pages.items():
        assert "width=device-width" in found.viewport, path
        assert [one for one in found.loads if urlsplit(one).scheme or one.startswith("//")] == []
        for link in (*found.links, *found.loads):
            if urlsplit(link).scheme:
                continue
            file, anchor = urldefrag(link)
            target = (path.parent / unquote(file)).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].anchors if target in pages else {anchor}
            if target.with_suffix("") in not_made:
                continue
            if not target.is_file() or (anchor and unquote(anchor) not in known and not anchor.startswith("__")):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


@pytest.mark.slow
def test_every_machine_has_a_page_with_pictures_that_are_whole_and_light(site: Path, names: list[str]) -> None:
    table = (site / "machines" / "index.html").read_text()
    assert sorted(re.findall(r'<a href="([\w.-]+)\.html">', table)) == sorted(names)
    allgather = by_hand()
    for name in names:
        text = (site / "machines" / f"{name}.html").read_text()
        assert [one for one in HEADINGS if one not in text] == [], name
        # What makers publish is noted for most.
        assert name not in allgather or f">{allgather[name]:.4g}" in text, name
        for picture in (site / "machines").glob(f"{name}-*.svg"):
            root = ElementTree.parse(picture).getroot()
            _, _, width, height = map(float, root.attrib["viewBox"].split())
            assert width > 100, picture
            assert height > 50, picture
            assert picture.stat().st_size < 300_000, picture
        assert len(text) < 150_000, name


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium found")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.slow
@pytest.mark.parametrize("screen", [PHONE, DESK], ids=["phone", "desk"])
def test_pages_open_in_a_browser_without_clipped_pictures(
    site: Path, browser: Any, names: list[str], screen: tuple[int, int]
) -> None:
    view = browser.new_page(viewport={"width": screen[0], "height": screen[1]})
    faults: list[str] = []
    view.on("pageerror", lambda error: faults.append(str(error)))
    view.on("requestfailed", lambda request: faults.append(request.url))
    view.on("request", lambda request: None if request.url.startswith("file:") else faults.append(request.url))
    for name in ("index", *names):
        view.goto((site / "machines" / f"{name}.html").as_uri())
        # The page is as wide as the screen; only tables are moved aside.
        assert view.evaluate("document.documentElement.scrollWidth") <= screen[0], name
        for picture in view.query_selector_all(".machine-picture img"):
            box = picture.bounding_box()
            assert picture.evaluate("image => image.complete && image.naturalWidth > 0"), name
            assert box["x"] >= 0, name
            assert box["x"] + box["width"] <= screen[0], name
            assert box["width"] >= min(300, 0.8 * screen[0]), name
        assert view.evaluate("parseFloat(getComputedStyle(document.querySelector('article p')).fontSize)") >= 14
    assert faults == []
    view.close()


@pytest.mark.slow
def test_the_table_of_machines_is_searched_and_sorted(site: Path, browser: Any, names: list[str]) -> None:
    view = browser.new_page()
    view.goto((site / "machines" / "index.html").as_uri())

    def shown() -> list[str]:
        return [
            row.inner_text() for row in view.query_selector_all("#machines tbody tr:not([hidden]) td:first-child a")
        ]

    assert sorted(shown()) == sorted(names)
    view.fill(".machine-search input", "amazon 2023")
    assert shown() == [name for name in names if name in ("p5.48xlarge",)]
    assert view.inner_text(".machine-search output") == f"1 of {len(names)}"
    view.fill(".machine-search input", "v100")
    assert "dgx1-v100" in shown()
    view.fill(".machine-search input", "")
    view.click("#machines th:nth-child(4) button")
    assert shown()[:2] == [name for name in shown() if name in ("gb200-nvl72", "gb300-nvl72")]
    view.click("#machines th:nth-child(3) button")
    view.click("#machines th:nth-child(3) button")
    years = [
        int(one.inner_text()) for one in view.query_selector_all("#machines tbody td:nth-child(3)") if one.inner_text()
    ]
    assert years == sorted(years)
    assert view.get_attribute("#machines th:nth-child(3)", "aria-sort") == "ascending"
    view.close()
