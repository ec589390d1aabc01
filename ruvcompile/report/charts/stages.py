"""Charts of whole stages: time of a step, memory, and the shapes that were compared."""

from __future__ import annotations

from collections.abc import Sequence

from ruvcompile.quantities import show_bytes
from ruvcompile.report.charts.frame import (
    INK,
    LINE,
    LONGEST,
    PAPER,
    PARTS,
    Chart,
    Size,
    Spec,
    beyond,
    colours,
    described,
    framed,
    ms_axis,
    quantity_axis,
    show_ms,
)
from ruvcompile.report.contents import Figures
from ruvcompile.report.stages import LAST, MEMORY, Part, name_of

MEASURED = "measured"
_ROW = 30


def times_chart(
    figures: Figures, parts: Sequence[Part], measured: dict[int, float], planned: dict[int, float]
) -> Chart:
    """Time of one step on each stage: what it is made of, the slowest, and what the best cut could not go below.

    Args:
        measured: of a run, the median step of stages (by index); empty without a run.
        planned: the plan's for the rows of that run, by which the parts are stretched.
    """
    shown = figures.stages[:LONGEST]
    names = [name_of(figures, stage) for stage in shown]
    parts = [part for part in parts if part.stage < LONGEST]
    measured = {index: ms for index, ms in measured.items() if index < LONGEST}
    whats = list(dict.fromkeys(part.what for part in parts))
    whats = [what for what in whats if what not in LAST] + [what for what in LAST if what in whats]
    whats += [MEASURED] if measured else []
    bars: list[Spec] = []
    for part in parts:
        stage = figures.stages[part.stage]
        ms = part.value * planned.get(part.stage, stage.predicted_ms) / stage.predicted_ms
        says = f"{names[part.stage]}: {part.what} {show_ms(ms)} ms planned"
        bars.append({"stage": names[part.stage], "side": "plan", "what": part.what, "ms": ms, "says": says})
    for index, ms in measured.items():
        says = f"{names[index]}: {show_ms(ms)} ms measured"
        bars.append({"stage": names[index], "side": "run", "what": MEASURED, "ms": ms, "says": says})
    sums: dict[tuple[str, str], float] = {}
    for bar in bars:
        key = (str(bar["stage"]), str(bar["side"]))
        sums[key] = sums.get(key, 0.0) + bar["ms"]
    # Figures stand behind the line of the lower bound where that is near, not on it.
    bound = 0.0 if figures.bound_of else figures.lower_bound_ms  # that of one pass is not a stage's
    ends: list[Spec] = [
        {
            "stage": stage,
            "side": side,
            "ms": bound if not measured and 0.85 * bound < ms < bound else ms,
            "text": f"{show_ms(ms)} ms",
        }
        for (stage, side), ms in sums.items()
    ]

    bounded = not measured and bound > 0

    def spec(size: Size) -> Spec:
        ends_at = [(end["ms"], len(end["text"])) for end in ends]
        axis = ms_axis("time of a step", size, beyond(size, size.label, names, ends_at))
        y = {"field": "stage", "type": "nominal", "sort": names, "title": None}
        offset = {"yOffset": {"field": "side", "type": "nominal", "sort": ["plan", "run"]}} if measured else {}
        shades = [*PARTS[: len(whats) - bool(measured)], *([LINE] if measured else [])]
        layers: list[Spec] = [
            {
                "data": {"values": bars},
                "mark": {"type": "bar", "stroke": PAPER, "strokeWidth": 1},
                "encoding": {
                    "y": y,
                    **offset,
                    "x": {"field": "ms", "type": "quantitative", **axis},
                    "color": {"field": "what", "type": "nominal", "scale": colours(whats, shades)},
                    "order": {"field": "order", "type": "quantitative"},
                    **described(),
                },
                "transform": [{"calculate": f"indexof({whats}, datum.what)", "as": "order"}],
            },
            {
                "data": {"values": ends},
                "mark": {"type": "text", "align": "left", "dx": 5, "aria": False},
                "encoding": {"y": y, **offset, "x": {"field": "ms", "type": "quantitative"}, "text": {"field": "text"}},
            },
        ]
        if bounded:
            rules = [{"ms": bound, "says": f"lower bound: {show_ms(bound)} ms"}]
            layers.append(
                {
                    "data": {"values": rules},
                    "mark": {"type": "rule", "strokeDash": [4, 3], "stroke": INK},
                    "encoding": {"x": {"field": "ms", "type": "quantitative"}, **described()},
                }
            )
        return framed(size, layers, height={"step": _ROW if not measured else 22})

    beside = "" if not measured else " Under each plan is the median step of the run."
    what = (
        f"Time of one step of {figures.rows} row{'s' if figures.rows > 1 else ''}" if not measured else "Time of a step"
    )
    limit = (
        "" if not bounded else " The dashed line is the lower bound: no cut makes the slowest stage faster than that."
    )
    return Chart(
        "times",
        "Time per stage",
        f"{what} on each stage{_some(figures)}, and what it is spent on.{beside}{limit}",
        len(bars) + bounded,
        spec,
    )


def _some(figures: Figures) -> str:
    """That a chart does not show all of the stages, where it does not."""
    return f" (the first {LONGEST} of {len(figures.stages)})" if len(figures.stages) > LONGEST else ""


def memory_chart(figures: Figures, parts: Sequence[Part], peaks: dict[int, int]) -> Chart:
    """Memory of each stage's process in parts, what the node has usable, and what a run's peak was."""
    shown = figures.stages[:LONGEST]
    names = [name_of(figures, stage) for stage in shown]
    parts = [part for part in parts if part.stage < LONGEST]
    peaks = {index: peak for index, peak in peaks.items() if index < LONGEST}
    most = max([*(stage.predicted_rss_bytes for stage in shown), *peaks.values()])
    near = [stage.usable_bytes for stage in shown if stage.usable_bytes and stage.usable_bytes <= 4 * most]
    most = max([most, *near])
    width, unit = (2**30, "GiB") if most >= 2**30 else (2**20, "MiB")
    whats = [what for what in MEMORY if any(part.what == what for part in parts)]
    bars = [
        {
            "stage": names[part.stage],
            "what": part.what,
            "size": part.value / width,
            "order": MEMORY.index(part.what),
            "says": f"{names[part.stage]}: {part.what} {show_bytes(part.value)}",
        }
        for part in parts
    ]
    ends: list[Spec] = [
        {
            "stage": name,
            "size": max(stage.predicted_rss_bytes, stage.usable_bytes if stage.usable_bytes in near else 0) / width,
            "text": show_bytes(stage.predicted_rss_bytes)
            + (f" of {show_bytes(stage.usable_bytes)}" if stage.usable_bytes else ""),
        }
        for name, stage in zip(names, shown, strict=True)
    ]
    limits = [
        {
            "stage": name,
            "size": stage.usable_bytes / width,
            "says": f"{name}: usable {show_bytes(stage.usable_bytes)}",
        }
        for name, stage in zip(names, shown, strict=True)
        if stage.usable_bytes in near
    ]
    seen = [
        {"stage": names[index], "size": peak / width, "says": f"{names[index]}: measured peak {show_bytes(peak)}"}
        for index, peak in peaks.items()
    ]

    def spec(size: Size) -> Spec:
        y = {"field": "stage", "type": "nominal", "sort": names, "title": None}
        x = {"field": "size", "type": "quantitative"}
        ends_at = [(end["size"], len(end["text"])) for end in ends]
        axis = quantity_axis(f"memory, {unit}", size, beyond(size, size.label, names, ends_at))
        layers: list[Spec] = [
            {
                "data": {"values": bars},
                "mark": {"type": "bar", "stroke": PAPER, "strokeWidth": 1},
                "encoding": {
                    "y": y,
                    "x": {**x, **axis},
                    "color": {"field": "what", "type": "nominal", "scale": colours(whats, PARTS)},
                    "order": {"field": "order", "type": "quantitative"},
                    **described(),
                },
            },
            {
                "data": {"values": ends},
                "mark": {"type": "text", "align": "left", "dx": 5, "aria": False},
                "encoding": {"y": y, "x": x, "text": {"field": "text"}},
            },
        ]
        limit = {"type": "tick", "color": INK, "thickness": 2, "size": 24}
        peak = {"type": "point", "shape": "diamond", "size": 130, "filled": True, "opacity": 1}
        peak |= {"fill": LINE, "stroke": PAPER, "strokeWidth": 1.5}
        for values, mark in ((limits, limit), (seen, peak)):
            if values:
                layers.append({"data": {"values": values}, "mark": mark, "encoding": {"y": y, "x": x, **described()}})
        return framed(size, layers, height={"step": _ROW})

    says = f"Memory of each stage's process at its peak{_some(figures)}."
    if limits:
        says += " The line behind it is what the node has usable."
    if seen:
        says += " The diamond is the peak that was measured"
        says += ", with key/value space as far as it had been written by then." if figures.decoder else "."
    return Chart("memory", "Memory per stage", says, len(bars) + len(limits) + len(seen), spec)
