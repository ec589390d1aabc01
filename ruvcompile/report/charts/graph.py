"""Charts of the graph: what it costs from its beginning to its end, its largest units, its operators."""

from __future__ import annotations

from collections.abc import Sequence

from ruvcompile.report.charts.frame import (
    FAINT,
    INK,
    PAPER,
    STAGES,
    Chart,
    Size,
    Spec,
    beyond,
    colours,
    described,
    framed,
    ms_axis,
    show_ms,
)
from ruvcompile.report.contents import Figures
from ruvcompile.report.graph import Bar, Costed
from ruvcompile.report.stages import name_of


def profile_chart(figures: Figures, bars: Sequence[Bar], layers: bool) -> Chart:
    """The cost along the graph, and where it is cut.

    Args:
        bars: of ``profile``.
        layers: whether their places are layers of a decoder; else units.
    """
    stages = figures.first_pipeline
    names = [name_of(figures, stage) for stage in stages]
    heights: dict[int, float] = {}
    values = []
    for bar in bars:
        below = heights.get(bar.first, 0.0)
        heights[bar.first] = below + bar.ms
        says = f"{bar.label}, {bar.part}, {names[bar.stage]}: {show_ms(bar.ms)} ms"
        values.append(
            {"from": bar.first, "to": bar.last + 1, "below": below, "above": below + bar.ms, "stage": names[bar.stage]}
            | {"says": says}
        )
    most = max(heights.values())
    ends = {stage: max(bar.last + 1 for bar in bars if bar.stage == stage) for stage in {bar.stage for bar in bars}}
    cuts = [
        {"at": _cut_at(bars, stage), "says": f"cut after {names[stage]}", "text": f"cut {stage + 1}"}
        for stage in sorted(ends)[:-1]
    ]
    count = max(bar.last for bar in bars) + 1
    ticks = _layer_ticks(bars) if layers else {}

    def spec(size: Size) -> Spec:
        every = 10 if size.narrow or count > 60 else 5
        shown = {at: text for at, text in ticks.items() if not text.isdigit() or not int(text) % every}
        axis: Spec = {"title": "layer" if layers else "graph units in the order of computation", "grid": False}
        if layers:
            labels = " : ".join(f"datum.value == {at} ? '{text}'" for at, text in shown.items())
            axis |= {"values": list(shown), "labelExpr": f"{labels} : ''"}
        else:
            axis |= {"tickCount": 4 if size.narrow else 10}
        x = {"type": "quantitative", "scale": {"domain": [0, count], "nice": False}, "axis": axis}
        y_axis = {"title": "ms per step" if figures.decoder else "ms per call", "tickCount": 5, "format": ",f"}
        marks: list[Spec] = [
            {
                "data": {"values": values},
                "mark": {"type": "rect", "stroke": PAPER, "strokeWidth": 0.5 if count < 120 else 0.1},
                "encoding": {
                    "x": {"field": "from", **x},
                    "x2": {"field": "to"},
                    "y": {
                        "field": "below",
                        "type": "quantitative",
                        "axis": y_axis,
                        "scale": {"domain": [0, most * 1.12], "nice": False},
                    },
                    "y2": {"field": "above"},
                    "color": {"field": "stage", "type": "nominal", "scale": colours(names, STAGES)},
                    **described(),
                },
            }
        ]
        if cuts:
            marks += [
                {
                    "data": {"values": cuts},
                    "mark": {"type": "rule", "stroke": INK, "strokeWidth": 1.5, "strokeDash": [5, 3]},
                    "encoding": {"x": {"field": "at", "type": "quantitative"}, **described()},
                },
                {
                    "data": {"values": cuts},
                    "mark": {"type": "text", "align": "right", "baseline": "top", "dx": -4, "aria": False},
                    "encoding": {
                        "x": {"field": "at", "type": "quantitative"},
                        "y": {"value": 0},
                        "text": {"field": "text"},
                    },
                },
            ]
        return framed(size, marks, height=200 if size.narrow else 240)

    what = "Each bar is a layer, attention below and MLP above it" if layers else "Each bar is a unit of the graph"
    if not layers and any(bar.last > bar.first for bar in bars):
        what = "Each bar is a group of neighbouring units of the graph"
    says = f"{what}; the dashed lines are the cuts." if cuts else f"{what}."
    return Chart("profile", "Cost along the graph, and the cuts", says, len(values) + len(cuts), spec)


def _cut_at(bars: Sequence[Bar], stage: int) -> float:
    """Where the cut after a stage is drawn: between two places, or amid a layer of which both have parts."""
    last = max(bar.last for bar in bars if bar.stage == stage)
    following = min(bar.first for bar in bars if bar.stage > stage)
    return last + 0.5 if following <= last else last + 1


def _layer_ticks(bars: Sequence[Bar]) -> dict[float, str]:
    """The number of each layer at the middle of its place."""
    return {bar.first + 0.5: bar.label.removeprefix("layer ") for bar in bars if bar.label.startswith("layer ")}


def largest_chart(figures: Figures, most: Sequence[Costed], rest: Sequence[Costed]) -> Chart:
    """The units that cost most, and all others in one bar."""
    names = [name_of(figures, stage) for stage in figures.first_pipeline]
    values = [
        {"unit": unit.name, "ms": unit.ms, "stage": names[unit.stage], "text": show_ms(unit.ms)}
        | {"says": f"{unit.name}, {unit.part}, {names[unit.stage]}: {show_ms(unit.ms)} ms"}
        for unit in most
    ]
    order = [unit.name for unit in most]
    says = f"The {len(most)} units that cost most, in ms per call."
    if rest:
        says = f"{says[:-1]}; the other {len(rest)} take {show_ms(sum(unit.ms for unit in rest))} ms together."

    def spec(size: Size) -> Spec:
        return _ranked(size, values, "unit", order, "ms per call", ("stage", colours(names, STAGES)))

    return Chart("largest", "The largest units", says, len(values), spec)


def operators_chart(found: Sequence[tuple[str, int, float]], decoder: bool) -> Chart:
    """What each operator costs in the whole graph."""
    total = sum(ms for _, _, ms in found)
    values = [
        {"op": op, "ms": ms, "text": f"{show_ms(ms)} ({ms / total:.0%})" if total else show_ms(ms)}
        | {"says": f"{op}, {times} times: {show_ms(ms)} ms"}
        for op, times, ms in found
    ]
    what = "ms per step" if decoder else "ms per call"

    def spec(size: Size) -> Spec:
        return _ranked(size, values, "op", [op for op, _, _ in found], what, None)

    says = f"All nodes of a kind together, in {what}, and their share of the whole graph."
    return Chart("operators", "Cost per operator", says, len(values), spec)


def scopes_chart(found: Sequence[tuple[str, int, float]]) -> Chart:
    """What each layer of a graph costs, in the order of computation."""
    total = sum(ms for _, _, ms in found)
    values = [
        {"scope": scope, "ms": ms, "text": f"{show_ms(ms)} ({ms / total:.0%})" if total else show_ms(ms)}
        | {"says": f"{scope}, {count} units: {show_ms(ms)} ms"}
        for scope, count, ms in found
    ]

    def spec(size: Size) -> Spec:
        order = [scope for scope, _, _ in found]
        return _ranked(size, values, "scope", order, "ms per call", None)

    says = "The graph's layers, as its names tell them, in the order of computation."
    return Chart("scopes", "Cost per layer", says, len(values), spec)


def _ranked(
    size: Size,
    values: Sequence[Spec],
    field: str,
    order: Sequence[str],
    title: str,
    colour: tuple[str, Spec] | None,
) -> Spec:
    """Bars below each other, in this order, with their figures at their ends."""
    y = {"field": field, "type": "nominal", "sort": list(order), "title": None}
    limit = 150 if size.narrow else size.label  # names are what this chart is about
    named = y | {"axis": {"labelLimit": limit}}
    x = {"field": "ms", "type": "quantitative"}
    ends = [(float(value["ms"]), len(value["text"])) for value in values]
    axis = ms_axis(title.removeprefix("ms "), size, beyond(size, limit, order, ends))
    axis["axis"]["title"] = title
    paint: Spec = {"value": FAINT}
    if colour is not None:
        paint = {"field": colour[0], "type": "nominal", "scale": colour[1]}
        if size.narrow:  # it begins where the bars do, far to the right: two names side by side may not fit
            paint["legend"] = {"columns": 1}
    return framed(
        size,
        [
            {"mark": {"type": "bar"}, "encoding": {"y": named, "x": {**x, **axis}, "color": paint, **described()}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 11, "aria": False},
                "encoding": {"y": y, "x": x, "text": {"field": "text"}},
            },
        ],
        data={"values": list(values)},
        height={"step": 20},
    )
