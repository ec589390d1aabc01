"""What each stage did in a measurement, beside what the plan said, and a sentence on where the time goes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ruvrun.frames import Counters
from ruvrun.manifest import Manifest, Placed


def stage_figures(manifest: Manifest, counters: Mapping[str, Counters], streams: int | None = None) -> dict[str, Any]:
    """What every stage of every pipeline did, the idle share of all, and a sentence that names the slow stage.

    Args:
        streams: sequences (or callers) at a time; what was predicted is of these and of steps of as many rows as they
            make, None: of steps as planned.
    """
    stages: list[dict[str, Any]] = []
    for number, pipeline in enumerate(manifest.pipeline):
        for placed in pipeline.stages:
            known = counters.get(placed.node)
            total = known.busy + known.wait if known else 0.0
            stages.append(
                {
                    "pipeline": number,
                    "node": placed.node,
                    "busy": known.busy / total if known and total else None,
                    "wait": known.wait / total if known and total else None,
                    "predicted_ms": predicted_ms(manifest, placed, streams),
                    "measured_ms": known.step_ms if known else None,
                    "own_ms": known.own_ms if known else None,
                    "wire_bytes": known.wire_bytes if known else None,
                    "peak_rss_bytes": known.peak_rss_bytes if known else None,
                    "throttled": None,
                }
            )
    waits = [stage["wait"] for stage in stages if stage["wait"] is not None]
    bubble = statistics.fmean(waits) if waits else None
    promised = manifest.plan.rate(streams) if streams is not None else None
    told = {"id": manifest.id, "predicted_per_s": promised, "stages": stages, "bubble": bubble}
    return {**told, "verdict": verdict(stages)}


def predicted_ms(manifest: Manifest, placed: Placed, streams: int | None) -> float | None:
    """What the plan says of a stage's step with so many sequences on all pipelines; None where it says nothing."""
    expected, planned = manifest.plan.of(placed.node), manifest.plan.stage_ms
    if expected is not None and streams is not None and manifest.program.kind == "decoder":
        share = -(-streams // len(manifest.pipeline))
        return expected.step_ms(-(-share // len(manifest.pipeline[0].stages)))
    return planned[placed.stage] if placed.stage < len(planned) else None


def verdict(stages: Sequence[Mapping[str, Any]]) -> str:
    """One sentence on where the time goes."""
    measured = [(stage["busy"], number) for number, stage in enumerate(stages) if stage["busy"] is not None]
    if not measured:
        return "no stage answered with its counters"
    busy, number = max(measured)
    stage = stages[number]
    beside = f" against {stage['predicted_ms']:.2f} ms predicted" if stage["predicted_ms"] else ""
    pipelines = [each.get("pipeline", 0) for each in stages]
    own = pipelines[number]
    name = f"stage {number - pipelines.index(own)} on {stage['node']}"
    if len(set(pipelines)) > 1:
        name = f"{name} (pipeline {own})"
    what = f"{stage['measured_ms']:.2f} ms a step{beside}, busy {busy:.0%} of the time"
    if len(stages) == 1:
        return f"one stage: {name}, {what}"
    if busy < 0.7:
        return f"no stage is the limit: the busiest, {name}, takes {what}; more streams would fill the pipeline"
    return f"{name} is the slowest: {what}"
