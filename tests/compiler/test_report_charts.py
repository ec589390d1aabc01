"""The drawings: as many marks as there are facts, the same bytes every time, and names that stay text."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from xml.etree import ElementTree

import msgspec
import pytest

from ruvcompile.report import draw as drawing
from ruvcompile.report import page as pages
from ruvcompile.report.charts.frame import LONGEST, SIZES, Chart, show_ms, show_rate
from ruvcompile.report.contents import Figures, UnitPlace
from ruvcompile.report.draw import draw
from ruvcompile.report.run import Run, RunStage
from ruvcompile.report.view import LONGEST_TIMELINE, MOST_CHOICES, View, view_of
from tests.compiler.reports import costs, figures, forecast, graph_figures, manifest

OTHERS = [
    {"shape": {"replicas": number, "stages": 2}, "fits": True, "tokens_per_s": 50.0 + number, "tokens_per_s_one": 9.0}
    for number in range(1, 9)
]
AXES = {"axis", "X-axis", "Y-axis", "legend"}


def seen(plan: Figures, run: Run | None = None) -> View:
    table = costs() if plan.decoder else costs(Conv=2.0, Add=0.5)
    return view_of(plan, table, manifest(plan), run)


def foreseen(plan: Figures) -> Figures:
    return msgspec.structs.replace(plan, forecast=forecast(plan))


def marks(svg: str) -> list[ElementTree.Element]:
    """The marks of a drawing that stand for something: what is called something, axes and legends aside."""
    root = ElementTree.fromstring(svg.replace("xlink:href", "href"))
    found = [each for each in root.iter() if each.tag in ("path", "text", "line", "rect") and each.get("aria-label")]
    return [each for each in found if each.get("aria-roledescription") not in AXES]


def drawn(charts: dict[str, Chart]) -> dict[tuple[str, str], str]:
    """By the name of the chart and of the size, every drawing."""
    places = [(name, size) for name in charts for size in SIZES]
    svgs = draw({f"{name}-{size.name}": charts[name].spec(size) for name, size in places})
    return {(name, size.name): svgs[f"{name}-{size.name}"] for name, size in places}


def told(svg: str) -> list[str]:
    """What the marks of a drawing are called."""
    return [mark.get("aria-label") or "" for mark in marks(svg)]


PLANS = {
    "two stages": foreseen(figures(alternatives=OTHERS[:1])),
    "many": foreseen(figures(layers=80, stages=4, replicas=4, alternatives=OTHERS)),
    "whole": foreseen(figures(layers=2, stages=1, alternatives=[])),
    "graph": foreseen(graph_figures(37)),
    "old": msgspec.structs.replace(figures(), units=[], cuts=[]),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_chart_has_the_marks_that_it_says(name: str) -> None:
    charts = seen(PLANS[name]).charts
    assert {"times", "memory"} <= charts.keys()
    for (chart, size), svg in drawn(charts).items():
        found = marks(svg)
        assert len(found) == charts[chart].marks, (chart, size)
        assert all(mark.find("title").text == mark.get("aria-label") for mark in found), chart
        painted = set(re.findall(r'(?:fill|stroke)="([^"]*)"', svg))
        # All colours are the page's, which changes them at night.
        assert {colour for colour in painted if not colour.startswith("var(--")} <= {"none", "transparent"}, chart


def test_which_charts_there_are() -> None:
    decoder = {"times", "memory", "choices", "profile", "operators", "rows", "chunks", "timeline"}
    assert seen(PLANS["two stages"]).charts.keys() == decoder
    assert seen(PLANS["whole"]).charts.keys() == decoder - {"choices"}
    graph = {"times", "memory", "choices", "profile", "operators", "largest", "scopes", "timeline"}
    assert seen(PLANS["graph"]).charts.keys() == graph
    assert seen(PLANS["old"]).charts.keys() == {"times", "memory", "choices"}


def test_a_run_stands_beside_every_stage_it_tells_of() -> None:
    plan = PLANS["two stages"]
    stages = [RunStage("pi-0-0", measured_ms=4.0, peak_rss_bytes=2**27), RunStage("pi-0-1")]
    charts = seen(plan, Run(stages, tokens_per_s=1.0, streams=8)).charts
    svgs = drawn({name: charts[name] for name in ("times", "memory")})
    times = told(svgs["times", "wide"])
    assert [each for each in times if "measured" in each] == ["stage 0 · pi-0-0: 4.00 ms measured"]
    assert not any("lower bound" in each for each in times)
    # A run of 8 streams has steps of 4 rows, for which the forecast says 5 ms on each stage.
    planned = [float(re.search(r"([\d.]+) ms planned", each)[1]) for each in times if "pi-0-1" in each]
    assert sum(planned) == pytest.approx(5.0, rel=0.01)
    assert "stage 0 · pi-0-0: measured peak 128.0 MiB" in told(svgs["memory", "wide"])


def test_the_same_chart_is_the_same_bytes_and_its_names_are_of_the_page() -> None:
    chart = seen(PLANS["graph"]).charts["times"]
    clipped = chart.spec(SIZES[0])
    clipped["layer"][0]["mark"]["clip"] = True  # Vega counts the names of its clips through all it has drawn
    found = draw({"one": clipped, "two": clipped})
    assert 'id="one-0"' in found["one"]
    assert "url(#one-0)" in found["one"]
    assert found["two"] == found["one"].replace("one-", "two-")
    assert draw({"two": clipped})["two"] == found["two"]


def test_a_name_from_a_model_is_text() -> None:
    name = "</title></svg><script>alert('1')</script>&\"\\ \u00e4"
    places = [
        UnitPlace(name if not place.stage else place.name, place.key, place.stage, place.ops)
        for place in graph_figures(8).units
    ]
    plan = msgspec.structs.replace(graph_figures(8), units=places)
    svgs = drawn(seen(plan).charts)
    for svg in svgs.values():
        assert "<script" not in svg
        ElementTree.fromstring(svg.replace("xlink:href", "href"))
    assert any(label.startswith(name) for label in told(svgs["largest", "wide"]))


def test_of_many_stages_and_shapes_charts_show_the_first() -> None:
    others = [
        {"shape": {"replicas": pipelines, "stages": stages}, "fits": True, "tokens_per_s": 10.0 * stages}
        for pipelines in range(1, 6)
        for stages in range(1, 6)
    ]
    plan = figures(layers=64, stages=16, replicas=4, alternatives=others)
    charts = seen(plan).charts
    assert charts["memory"].marks == LONGEST * 4  # weights, key/value, runtime, and what is usable
    assert "the first 48 of 64" in charts["memory"].says
    assert "the first 48 of 64" in charts["times"].says
    assert len(told(drawn({"times": charts["times"]})["times", "narrow"])) == charts["times"].marks
    assert charts["choices"].marks == 2 + (MOST_CHOICES - 1)  # the plan has two rates
    assert pages.page_of(manifest(plan), costs(), seen(plan)).count("5 pipelines of") == 5


def test_the_timeline_is_as_long_as_can_be_read() -> None:
    assert seen(PLANS["many"]).charts["timeline"].marks == LONGEST_TIMELINE
    chart = seen(PLANS["two stages"]).charts["timeline"]
    spans = told(drawn({"timeline": chart})["timeline", "narrow"])
    assert any(each.startswith("stage 1 · pi-0-1: prompt") for each in spans)
    assert any(each.startswith("stage 0 · pi-0-0: one token each") for each in spans)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0"), (0.0004, "< 0.001"), (0.0316, "0.032"), (1.234, "1.23"), (12.34, "12.3"), (12345.6, "12,346")],
)
def test_a_time_has_as_many_digits_as_are_worth_reading(ms: float, text: str) -> None:
    assert show_ms(ms) == text


def test_a_rate_is_a_plain_number() -> None:
    assert (show_rate(3.14159), show_rate(1234.5)) == ("3.1", "1,234")


def without_extra(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(drawing, "_LIBRARY", "no_such_library")
    return "pip install 'ruvcompile[report]'"


def without_address_space(patch: pytest.MonkeyPatch) -> str:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))"
    patch.setattr(drawing, "_PROGRAM", limit + drawing._PROGRAM)
    return "what draws them was ended by SIG"


def without_sense(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(drawing, "_PROGRAM", "raise ValueError('no sense')")
    return "ValueError: no sense"


@pytest.mark.parametrize("missing", [without_extra, without_address_space, without_sense])
def test_where_charts_cannot_be_drawn_there_are_tables_and_the_reason(
    missing: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = PLANS["two stages"]
    reason = missing(monkeypatch)
    bare = html.unescape(pages.page_of(manifest(plan), costs(), seen(plan)))
    assert "<svg" not in bare
    for each in (reason, "has no charts", plan.verdict, "pi-0-1", "cut 0", "Alternatives"):
        assert each in bare


def test_with_all_there_is_every_chart_in_both_sizes() -> None:
    plan = PLANS["two stages"]
    whole = pages.page_of(manifest(plan), costs(), seen(plan))
    assert whole.count("<svg") == 2 * len(seen(plan).charts)
    assert "has no charts" not in whole


def test_what_the_build_saw_stands_beside_what_it_planned() -> None:
    seen_then = {"stage_ms": [3.21, 3.45], "peak_rss_bytes": [2**27, 2**26], "per_s": 99.5, "streams": 8}
    plan = figures(alternatives=OTHERS, measured=seen_then | {"difference": 0.021})
    shown = seen(msgspec.structs.replace(plan, forecast=forecast(plan)))
    page = pages.page_of(manifest(plan), costs(), shown)
    for each in ("99.5 tokens/s with 8", "differ by at most 2.1 %", "3.210", "3.450", "128.0 MiB"):
        assert each in page
    # Rows of 4 take 5 ms on each of two stages, so 8 streams get 8 tokens in 10 ms.
    assert shown.planned_together == pytest.approx(800.0)
    assert shown.charts["memory"].marks == seen(plan).charts["memory"].marks
    assert seen(plan).charts["memory"].marks == seen(figures()).charts["memory"].marks + 2
    off = figures(measured=seen_then | {"difference": 0.0, "uncorrected": 0.31})
    assert "once the costs were corrected by what was seen; before that by 31.0 %" in pages.page_of(
        manifest(off), costs(), seen(off)
    )
    assert "before that by" not in page


def test_a_plan_says_whether_its_search_was_whole() -> None:
    plan = figures()
    assert "left out of the search" not in pages.page_of(manifest(plan), costs(), seen(plan))
    plan = figures(exact=False, bounds={"relaxation": 5.0, "search": 6.0})
    page = pages.page_of(manifest(plan), costs(), seen(plan))
    assert "left out of the search" in page
    assert "The lower bound is the larger of two: no cut beats 5.00 ms" in page


def test_the_bound_of_one_pass_is_no_line_across_the_stages() -> None:
    plan = figures(bound_of={"latency_ms": 8.2})
    assert "<dt>one pass</dt>" in pages.page_of(manifest(plan), costs(), seen(plan))
    assert seen(plan).charts["times"].marks == seen(figures()).charts["times"].marks - 1
