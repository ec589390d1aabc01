"""What the page shows, put together: the charts of this build, and the rows of its tables."""

from __future__ import annotations

from dataclasses import dataclass

from ruvcompile.report.charts.choices import choices_chart
from ruvcompile.report.charts.curves import chunks_chart, rows_chart, timeline_chart
from ruvcompile.report.charts.frame import Chart
from ruvcompile.report.charts.graph import largest_chart, operators_chart, profile_chart, scopes_chart
from ruvcompile.report.charts.stages import memory_chart, times_chart
from ruvcompile.report.contents import Figures
from ruvcompile.report.facts import Source, Way, beside, bound_text, sources, ways
from ruvcompile.report.graph import costed, largest, operators, profile, scopes
from ruvcompile.report.run import Run, planned_ms, planned_per_s, rows_of
from ruvcompile.report.stages import Part, choices, in_order, memory, name_of, times
from ruvcompile.simulate import timeline
from ruvrun.costs import CostTable
from ruvrun.manifest import Manifest

MOST_CHOICES = 13
"""Shapes that a chart compares at most, the plan and the fastest others; the table has all."""

LONGEST_TIMELINE = 160
"""Spans that a timeline shows at most: more could not be told apart."""


@dataclass(frozen=True)
class View:
    """All that the template is given beside the manifest and the cost table.

    ``planned_per_s`` is for the streams of the run, ``planned_together`` for the build's own trial, ``planned_alone``
    for one stream; ``inner`` is what the back end of each stage took in that trial. ``charts`` by name; those for which
    a plan or a run knows too little are not there.
    """

    figures: Figures
    run: Run | None
    planned_per_s: float
    planned_together: float
    planned_alone: float
    planned: dict[int, float]
    measured: dict[int, float]
    peaks: dict[int, int]
    names: list[str]
    memory: list[Part]
    ways: list[Way]
    sources: list[Source]
    beside: list[tuple[str, str, str]]
    charts: dict[str, Chart]

    @property
    def bound(self) -> str:
        """What the lower bound is the larger of."""
        return bound_text(self.figures)

    @property
    def inner(self) -> dict[int, float]:
        """What the back end of each stage took when the build ran them together, in ms."""
        together = self.figures.measured
        return dict(enumerate(together.stage_ms[: len(self.figures.stages)])) if together else {}

    @property
    def busy(self) -> dict[int, float | None]:
        """Of a run, the share of the time in which each stage worked."""
        if self.run is None:
            return {}
        places = in_order(self.run, self.figures)
        return {index: stage.busy for index, stage in zip(places, self.run.stages, strict=True)}

    def memory_of(self, index: int, what: str) -> float:
        """A part of the memory of a stage, in bytes."""
        return sum(part.value for part in self.memory if (part.stage, part.what) == (index, what))


def view_of(figures: Figures, costs: CostTable, manifest: Manifest, run: Run | None) -> View:
    """Everything that is shown of a build, and of a run of it."""
    units = costed(figures, costs, manifest)
    most, rest = largest(units)
    ops = operators(units)
    compared = choices(figures)
    time_parts, memory_parts = times(figures, costs, units), memory(figures, manifest)
    rows = rows_of(figures, run) if run else figures.rows
    planned: dict[int, float] = {}
    measured: dict[int, float] = {}
    peaks: dict[int, int] = {}
    if run is None:
        seen = figures.measured.peak_rss_bytes if figures.measured else []
        peaks = {index: peak for index, peak in enumerate(seen[: len(figures.stages)]) if peak}
    else:
        for index, stage in zip(in_order(run, figures), run.stages, strict=True):
            planned[index] = planned_ms(figures, index, rows)
            if stage.measured_ms is not None:
                measured[index] = stage.measured_ms
            if stage.peak_rss_bytes is not None:
                peaks[index] = stage.peak_rss_bytes
    made: list[Chart | None] = [
        times_chart(figures, time_parts, measured, planned),
        memory_chart(figures, memory_parts, peaks),
        choices_chart(compared[:MOST_CHOICES], "tokens" if figures.decoder else "items") if len(compared) > 1 else None,
    ]
    if units:
        layers = any(unit.layer is not None for unit in units)
        made += [profile_chart(figures, profile(units), layers), operators_chart(ops, figures.decoder)]
        if not layers:
            found = scopes(units)
            made += [largest_chart(figures, most, rest), scopes_chart(found) if found else None]
    if figures.forecast is not None:
        made += _foreseen(figures)
    return View(
        figures=figures,
        run=run,
        planned_per_s=planned_per_s(figures, manifest, run.streams) if run else figures.per_s,
        planned_together=planned_per_s(figures, manifest, figures.measured.streams) if figures.measured else 0.0,
        planned_alone=planned_per_s(figures, manifest, 1) if figures.measured else 0.0,
        planned=planned,
        measured=measured,
        peaks=peaks,
        names=[name_of(figures, stage) for stage in figures.stages],
        memory=memory_parts,
        ways=ways(figures),
        sources=sources(costs),
        beside=beside(figures, run) if run else [],
        charts={chart.id: chart for chart in made if chart is not None},
    )


def _foreseen(figures: Figures) -> list[Chart | None]:
    """The charts of the forecast."""
    forecast = figures.forecast
    assert forecast is not None
    first = forecast.pipelines[0]
    found: list[Chart | None] = []
    if forecast.decoder:
        found += [rows_chart(first), chunks_chart(first)]
    stages = sum(len(pipeline.stages) for pipeline in forecast.pipelines)
    streams = max(2, forecast.streams) * len(forecast.pipelines) if forecast.decoder else 2 * stages
    chunk = min(forecast.chunk or 32, forecast.context // 2 or 32)
    round_ms = sum(stage.chunk_ms(chunk) + stage.step_ms(streams) for stage in first.stages)
    spans = timeline(forecast, streams, 4 * round_ms + sum(hop.latency_ms for hop in first.hops) * 4, 32)
    kept = spans[:LONGEST_TIMELINE]
    if kept:
        found.append(timeline_chart(forecast, kept, streams))
    return found
