"""Reports of real builds in a real browser: nothing goes wrong, every chart is there, and a phone shows all of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ruvcompile import compile as steps
from tests.compiler.builds import build
from tests.models import MODELS, smollm2_path
from tests.system.browser import Browser, browser, installed

pytestmark = [
    pytest.mark.system,
    pytest.mark.model,
    # Where changes are judged a browser must be there: the tests fail without one.
    pytest.mark.skipif(
        not installed() and "CI" not in os.environ, reason="no chromium; tests/system/browser.sh installs it"
    ),
]

WIDTHS = {400: "narrow", 1600: "wide"}
CHARTS = """Object.fromEntries([...document.querySelectorAll('figure')].map(figure => {
  const seen = [...figure.querySelectorAll('svg')].filter(svg => svg.getClientRects().length)
  return [figure.id, seen.map(svg => {
    const marks = [...svg.querySelectorAll('[role=graphics-symbol][aria-label]')].filter(
      mark => mark.tagName != 'g' && mark.getAttribute('aria-roledescription') != 'axis')
    const box = svg.getBoundingClientRect()
    return {marks: marks.length, drawn: marks.filter(mark => mark.getBBox().width + mark.getBBox().height > 0).length,
            titles: svg.querySelectorAll('title').length,
            left: box.left, right: box.right, height: box.height, size: svg.parentElement.className}
  })]
}))"""
# Texts of charts that are not wholly on the page.
CUT = """[...document.querySelectorAll('figure svg text')].filter(text => {
  const box = text.getBoundingClientRect()
  return box.width && (box.left < -0.5 || box.right > document.documentElement.clientWidth + 0.5)
}).map(text => text.textContent)"""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module", params=["decoder", "graph"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of SmolLM2 or of the OCR detector, each in two stages."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "decoder":
        build(smollm2_path(), folder / "dist", stages=2, context=256, streams=2)
    else:
        build(MODELS / "ch_PP-OCRv4_det_infer.onnx", folder / "dist", stages=2)
    return folder / "dist" / "report.html"


def marks_of(page: Path) -> dict[str, int]:
    """How many marks each chart of a page says that it has."""
    found: dict[str, int] = {}

    class Figures(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            told = dict(attrs)
            if tag == "figure":
                found[str(told["id"])] = int(str(told["data-marks"]))

    Figures().feed(page.read_text("utf-8"))
    return found


def test_what_is_wrong_with_a_page_is_seen(window: Browser, tmp_path: Path) -> None:
    """What the other tests find absent is found where it is."""
    (tmp_path / "wrong.html").write_text(
        "<img src='missing.png'><script src='https://example.org/a.js'></script><script>console.error('no')</script>"
        "<figure id='chart'><svg width='900' height='9'><text x='880' y='9'>far away</text></svg></figure>"
    )
    window.open(tmp_path / "wrong.html", 400)
    assert any('"no"' in told for told in window.told)
    assert any("missing.png" in url for url in window.fetched)
    assert any("ERR_INTERNET_DISCONNECTED" in told for told in window.told)
    assert window.ask("document.documentElement.scrollWidth") > 400
    assert window.ask(CUT) == ["far away"]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_is_whole_in_a_window_of(window: Browser, report: Path, width: int) -> None:
    window.open(report, width)
    assert window.told == []
    assert window.fetched == [report.as_uri()]
    assert window.ask("document.documentElement.scrollWidth") <= width
    assert window.ask(CUT) == []
    charts: dict[str, list[dict[str, Any]]] = window.ask(CHARTS)
    expected = marks_of(report)
    assert charts.keys() == expected.keys() >= {"times", "memory", "choices", "profile", "operators"}
    for name, seen in charts.items():
        (chart,) = seen  # one drawing is shown, the other is for other windows
        assert chart["size"] == WIDTHS[width]
        assert chart["marks"] == expected[name] > 0, name
        assert chart["drawn"] > 0.9 * chart["marks"], name  # what takes no time is a line without a length
        assert chart["titles"] >= chart["marks"], name
        assert chart["left"] >= 0
        assert chart["right"] <= width
        assert chart["height"] > 60, name


def test_a_run_is_drawn_beside_the_plan(window: Browser, report: Path, tmp_path: Path) -> None:
    plan = json.loads((report.parent / "plan.json").read_text())
    rate = "tokens_per_s" if "predicted_tokens_per_s" in plan else "items_per_s"
    stages = [
        {"node": stage["node"], "busy": 0.9, "measured_ms": 1.25 * stage["predicted_ms"], "peak_rss_bytes": 10**8}
        for stage in plan["stages"]
    ]
    (tmp_path / "bench.json").write_text(json.dumps({"stages": stages, "streams": 2, rate: 100.0, "verdict": "so"}))
    window.open(report, 1600)
    before = window.ask(CHARTS)
    steps.report(report.parent / "manifest.toml", tmp_path / "bench.json")
    window.open(report, 1600)
    after = window.ask(CHARTS)
    assert window.told == []
    assert after["times"][0]["marks"] == before["times"][0]["marks"] - 1 + len(stages)  # no line for the lower bound
    titles = window.ask("[...document.querySelectorAll('#memory .wide title')].map(title => title.textContent)")
    assert sum("measured peak 95.4 MiB" in title for title in titles) == len(stages)
    steps.report(report.parent / "manifest.toml", None)


def test_texts_stand_out_by_day_and_by_night(window: Browser, report: Path) -> None:
    """Contrast of text on its ground as WCAG 2.1 counts it: at least 4.5."""
    for dark in (False, True):
        window.open(report, 1600, dark=dark)
        ground = luminance(window.ask("getComputedStyle(document.body).backgroundColor"))
        assert (ground < 0.2) == dark
        for what in ("body", "figcaption", "a", "figure svg text"):
            prop = "fill" if "svg" in what else "color"
            told = window.ask(f"getComputedStyle(document.querySelector('{what}')).{prop}")
            bright = luminance(told)
            assert (max(ground, bright) + 0.05) / (min(ground, bright) + 0.05) >= 4.5, (dark, what, told)


def test_on_paper_it_has_its_wide_charts(window: Browser, report: Path) -> None:
    window.open(report, 700, paper=True)
    assert {chart["size"] for (chart,) in window.ask(CHARTS).values()} == {"wide"}


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(r, g, b)``, as WCAG 2.1 defines it."""
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
