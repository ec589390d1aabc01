"""What a run of ``ruvrun bench`` says, beside the plan, and whether it is one of this build."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec

from ruvcompile.errors import InputError
from ruvcompile.forecast import Forecast, PipelineForecast
from ruvcompile.plan.pace import Beat, calls_per_second, grouping, per_second, shares
from ruvcompile.report.contents import Figures
from ruvrun.manifest import Manifest

Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class RunStage(msgspec.Struct, frozen=True):
    """What a run says of one stage; None where the node told nothing."""

    node: str
    pipeline: Count = 0
    busy: Share | None = None
    measured_ms: Amount | None = None
    wire_bytes: Count | None = None
    peak_rss_bytes: Count | None = None


class Percentiles(msgspec.Struct, frozen=True):
    """Of what a run timed, in ms."""

    p50: Amount | None = None
    p95: Amount | None = None


class Run(msgspec.Struct, frozen=True):
    """What the report shows of the JSON of ``ruvrun bench``: one run, not a sweep."""

    stages: list[RunStage]
    id: str = ""
    verdict: str = ""
    streams: Annotated[int, msgspec.Meta(ge=1)] = 1
    prompt_tokens: Count | None = None
    tokens_per_s: Amount | None = None
    items_per_s: Amount | None = None
    ttft_ms: Percentiles | None = None
    tpot_ms: Percentiles | None = None
    latency_ms: Percentiles | None = None
    bubble: Share | None = None

    @property
    def per_s(self) -> float | None:
        """Tokens (or items) per second."""
        return self.tokens_per_s if self.tokens_per_s is not None else self.items_per_s


def require_same(path: Path, run: Run, manifest_path: Path, manifest: Manifest) -> None:
    """That the run is one of this build: what it computes, on the nodes it has."""
    graph = manifest.program.kind == "graph"
    placed = [placed.node for pipeline in manifest.pipeline for placed in pipeline.stages]
    if (run.items_per_s if graph else run.tokens_per_s) is None or run.id not in ("", manifest.id):
        what = "another model or another build"
    elif [stage.node for stage in run.stages] != placed:
        what = "other nodes"
    else:
        return
    raise InputError("run-of-another-build", f"{path} is of {what} than {manifest_path}", hint="bench this build")


def rows_of(figures: Figures, run: Run) -> int:
    """Rows of a step in a run: a pipeline's sequences are shared among as many steps as it has stages."""
    if not figures.decoder:
        return 1
    each = math.ceil(run.streams / figures.shape.replicas)
    return max(1, math.ceil(each / figures.shape.stages))


def planned_per_s(figures: Figures, manifest: Manifest, streams: int) -> float:
    """Tokens (or calls) per second that the plan expects of a run with so many streams (or callers).

    As the manifest says; for other numbers, as the forecast says, the pipelines sharing the streams. Of an old build,
    which has neither, it is what was planned for the planned streams.
    """
    promised = manifest.plan.rate(streams)
    if promised is not None:
        return promised
    if figures.forecast is None:
        return figures.per_s
    forecast, total = figures.forecast, 0.0
    pipelines = forecast.pipelines
    for pipeline, share in zip(pipelines, shares(streams, len(pipelines)), strict=True):
        if share:
            stages = len(pipeline.stages)
            rows, steps = grouping(share, stages) if forecast.decoder else (1, share)
            beat = Beat(
                _beat(forecast, pipeline, share / steps).slowest,
                _beat(forecast, pipeline, rows).through,
            )
            total += (per_second if forecast.decoder else calls_per_second)(beat, share, stages)
    return total


def _beat(forecast: Forecast, pipeline: PipelineForecast, rows: float) -> Beat:
    """A step of so many rows in a pipeline: its slowest process or link, and its way there and back."""
    head = forecast.head_ms(rows)
    times = [stage.step_ms(rows) for stage in pipeline.stages]
    beside = [head if stage.node == forecast.head_node else 0.0 for stage in pipeline.stages]
    links = [hop.ms_per_byte * hop.bytes_per_row * rows for hop in pipeline.hops]
    slowest = max(head, *map(sum, zip(times, beside, strict=True)), *links)
    return Beat(slowest, head + sum(times) + sum(hop.ms(rows) for hop in pipeline.hops))


def planned_ms(figures: Figures, stage: int, rows: int) -> float:
    """What the plan says of one step of ``rows`` rows on a stage (index into ``figures.stages``)."""
    placed = figures.stages[stage]
    if rows == figures.rows or figures.forecast is None:
        return placed.predicted_ms
    for pipeline in figures.forecast.pipelines:
        for forecast in pipeline.stages:
            if forecast.node == placed.node:
                return forecast.step_ms(rows)
    return placed.predicted_ms
