"""Rows of the smaller tables: the ways between nodes, who measured, and a run's figures beside the plan's."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise

from ruvcompile.quantities import show_bytes
from ruvcompile.report.charts.frame import show_ms
from ruvcompile.report.contents import Figures
from ruvcompile.report.run import Run
from ruvrun.costs import CostTable, Provenance

_FOUND = {
    "search": "what the search has proved that no cut beats, and that of a linear program is no more",
    "relaxation": "that of a linear program, and what the search has proved is no more, or not of all cuts",
}
_ROUNDED = 1e-3
"""What the figures of a plan are rounded to, in ms, and somewhat more."""


@dataclass(frozen=True)
class Way:
    """From a node to the next: per message, per second, and what one token (or call) sends and takes."""

    sender: str
    receiver: str
    latency_ms: float
    bandwidth: str
    bytes: int
    ms: float


@dataclass(frozen=True)
class Source:
    """Who measured, when, how many rows, and how much those measurements spread."""

    machine: str
    software: str
    date: str
    rows: int
    median: float
    largest: float


def ways(figures: Figures) -> list[Way]:
    """Every way of every pipeline, from the head and back to it."""
    found = []
    for pipeline in figures.forecast.pipelines if figures.forecast else ():
        head = figures.forecast.head_node if figures.forecast else ""
        ring = [f"head on {head}", *(stage.node for stage in pipeline.stages), f"head on {head}"]
        for (sender, receiver), hop in zip(pairwise(ring), pipeline.hops, strict=True):
            bandwidth = f"{show_bytes(1e3 / hop.ms_per_byte)}/s" if hop.ms_per_byte else "not reckoned"
            found.append(Way(sender, receiver, hop.latency_ms, bandwidth, hop.bytes_per_row, hop.ms(1)))
    return found


def bound_text(figures: Figures) -> str:
    """What the lower bound is the larger of, as a sentence; empty where the plan does not say."""
    told = {name: f"{show_ms(ms)} ms" for name, ms in figures.bounds.items()}
    if not told.keys() >= {"relaxation", "search"}:
        found = _FOUND.get(figures.bound_by)
        return f"The lower bound is the larger of two: it is {found}." if found else ""
    relaxed = f"no cut beats {told['relaxation']}, even if it might divide the parts of the graph (a linear program)"
    if figures.bounds["search"] > figures.lower_bound_ms + _ROUNDED:
        return f"Two bounds: {relaxed}, and none of the cuts that were looked at beats {told['search']}."
    searched = f"the search has proved that none takes less than {told['search']}"
    return f"The lower bound is the larger of two: {relaxed}, and {searched}."


def sources(costs: CostTable) -> list[Source]:
    """The provenance of a cost table, each with the rows it measured."""
    found = []
    for number, source in enumerate(costs.provenance):
        spreads = [
            *(row.spread for row in costs.unit if row.source == number),
            *(row.spread for row in costs.overhead if row.source == number),
            *(row.spread for row in costs.stage if row.source == number),
            *(row.spread for row in costs.link if row.source == number),
        ]
        median, largest = (statistics.median(spreads), max(spreads)) if spreads else (0.0, 0.0)
        entry = Source(_machine(source), _software(source), source.date, len(spreads), median, largest)
        found.append(entry)
    return found


def _machine(source: Provenance) -> str:
    features = f", {' '.join(source.features)}" if source.features else ""
    return f"{source.cpu} ({source.machine}{features})"


def _software(source: Provenance) -> str:
    threads = f", {source.threads} thread{'s' if source.threads > 1 else ''}" if source.threads else ""
    return f"{source.software}{threads}{f'; units of {source.model}' if source.model else ''}"


def beside(figures: Figures, run: Run) -> list[tuple[str, str, str]]:
    """What a run timed, beside what was planned where it was: name, plan, run."""
    found = []
    if run.ttft_ms is not None and run.ttft_ms.p50 is not None:
        prompt = "" if run.prompt_tokens is None else f", prompts of {run.prompt_tokens} tokens"
        found.append((f"time to first token, median{prompt}", "", f"{show_ms(run.ttft_ms.p50)} ms"))
    if run.tpot_ms is not None and run.tpot_ms.p50 is not None:
        found.append(("time per token of one stream, median", "", f"{show_ms(run.tpot_ms.p50)} ms"))
    if run.latency_ms is not None and run.latency_ms.p50 is not None:
        found.append(
            ("latency of a call, median", _ms(figures.predicted_latency_ms), f"{show_ms(run.latency_ms.p50)} ms")
        )
    if run.bubble is not None:
        found.append(("share of the time in which stages waited", "", f"{100 * run.bubble:.0f} %"))
    return found


def _ms(value: float | None) -> str:
    return "" if value is None else f"{show_ms(value)} ms"
