"""Charts of the forecast: steps over rows, chunks over tokens, and the first moments of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from ruvcompile.forecast import Curve, Forecast, PipelineForecast
from ruvcompile.report.charts.frame import (
    FAINT,
    INK,
    LINE,
    PAPER,
    STAGES,
    Chart,
    Size,
    Spec,
    colours,
    described,
    framed,
    show_ms,
)
from ruvcompile.simulate import HEAD, Span

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


def rows_chart(pipeline: PipelineForecast) -> Chart | None:
    """A step of each stage over the sequences in it."""
    found = [(f"stage {number} · {stage.node}", stage.step_ms) for number, stage in enumerate(pipeline.stages)]
    says = "What a step costs when several sequences share it: the flatter the line, the more they gain."
    return _lines("rows", "A step of more rows", says, "rows (sequences in one step)", found)


def chunks_chart(pipeline: PipelineForecast) -> Chart | None:
    """A piece of a prompt on each stage over its tokens."""
    found = [(f"stage {number} · {stage.node}", stage.chunk_ms) for number, stage in enumerate(pipeline.stages)]
    return _lines("chunks", "A piece of a prompt", "What a piece of one prompt costs.", "tokens of the prompt", found)


def _lines(name: str, title: str, says: str, across: str, curves: Sequence[tuple[str, Curve]]) -> Chart | None:
    values = [
        {"stage": stage, "x": x, "ms": ms, "says": f"{stage}: {x:g} {across.split()[0]}, {show_ms(ms)} ms"}
        for stage, curve in curves
        for x, ms in curve.points
    ]
    if len({value["x"] for value in values}) < 2:
        return None
    names = [stage for stage, _ in curves]

    def spec(size: Size) -> Spec:
        shades = colours(names, STAGES)
        encoding = {
            "x": {
                "field": "x",
                "type": "quantitative",
                "axis": {"title": across, "tickCount": 5 if size.narrow else 10},
                "scale": {"zero": True, "nice": False},
            },
            "y": {"field": "ms", "type": "quantitative", "axis": {"title": "ms", "tickCount": 5, "format": ",f"}},
            "color": {"field": "stage", "type": "nominal", "scale": shades, "legend": {"symbolStrokeWidth": 2}},
        }
        shape = {
            "field": "stage",
            "type": "nominal",
            "scale": {"domain": names, "range": [_SHAPES[number % len(_SHAPES)] for number in range(len(names))]},
        }
        return framed(
            size,
            [
                {"mark": {"type": "line", "aria": False, "strokeWidth": 2}, "encoding": encoding},
                {
                    "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                    "encoding": {**encoding, "shape": shape, **described()},
                },
            ],
            data={"values": values},
            height=200 if size.narrow else 240,
        )

    return Chart(name, title, says, len(values), spec)


def timeline_chart(forecast: Forecast, spans: Sequence[Span], streams: int) -> Chart:
    """Who works when, in the first moments."""
    names: list[str] = [f"head · {forecast.head_node}"]
    several = len(forecast.pipelines) > 1
    for number, pipeline in enumerate(forecast.pipelines):
        for index, stage in enumerate(pipeline.stages):
            place = f"{number}.{index}" if several else f"{index}"
            names += [f"link to stage {place}", f"stage {place} · {stage.node}"]
        names.append(f"link to head{f' from {number}' if several else ''}")
    offsets = [1]
    for pipeline in forecast.pipelines:
        offsets.append(offsets[-1] + 2 * len(pipeline.stages) + 1)
    words = {"head": "head", "link": "on the way", "prompt": "prompt", "decode": "one token each", "call": "call"}
    values = []
    for span in spans:
        row = 0 if span.stage == HEAD else offsets[span.pipeline] + 2 * span.stage + (span.what != "link")
        what = words[span.what]
        rows = "" if span.what in ("head", "call") else f", {span.rows} token{'s' if span.rows > 1 else ''}"
        says = f"{names[row]}: {what}{rows}, {show_ms(span.start_ms)} to {show_ms(span.end_ms)} ms"
        values.append({"who": names[row], "what": what, "from": span.start_ms, "to": span.end_ms, "says": says})
    used = {value["who"] for value in values}
    shown = [name for name in names if name in used]
    whats = [what for what in words.values() if any(value["what"] == what for value in values)]
    shades = {"head": INK, "on the way": FAINT, "prompt": STAGES[1], "one token each": STAGES[0], "call": STAGES[0]}
    most = max(span.end_ms for span in spans)

    brief = [words["head"], words["link"]]
    colour = {
        "field": "what",
        "type": "nominal",
        "scale": {"domain": whats, "range": [shades[what] for what in whats]},
    }

    def spec(size: Size) -> Spec:
        encoding = {
            "y": {
                "field": "who",
                "type": "nominal",
                "sort": shown,
                "title": None,
                "scale": {"domain": shown, "paddingInner": 0.2},
            },
            "x": {
                "field": "from",
                "type": "quantitative",
                "axis": {"title": "ms since all began", "tickCount": 5 if size.narrow else 10},
                "scale": {"domain": [0, most], "nice": False},
            },
            "x2": {"field": "to"},
            "color": colour,
            **described(),
        }
        return framed(
            size,
            [
                # What works for long has an edge, so that one can be told from the next; the head and the links, which
                # mostly take less than a pixel, have one of their own colour, so that they are seen at all.
                {
                    "transform": [{"filter": f"indexof({brief}, datum.what) < 0"}],
                    "mark": {"type": "rect", "stroke": PAPER, "strokeWidth": 0.6},
                    "encoding": encoding,
                },
                *(
                    {
                        "transform": [{"filter": {"field": "what", "equal": what}}],
                        "mark": {"type": "rect", "stroke": shades[what], "strokeWidth": 0.8},
                        "encoding": encoding,
                    }
                    for what in brief
                ),
            ],
            data={"values": values},
            height={"step": 24},
        )

    callers = "sequences" if forecast.decoder else "callers"
    says = (
        f"A simulation of the planned pipeline from the moment at which {streams} {callers} begin together. "
        "Gaps are time in which a stage waits."
    )
    return Chart("timeline", "The first moments, simulated", says, len(values), spec)


__all__ = ["LINE", "chunks_chart", "rows_chart", "timeline_chart"]
