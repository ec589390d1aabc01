"""Time and memory of each stage, in parts; and of the shapes that were compared, by how much they lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ruvcompile.report.contents import Alternative, Figures, StageFigures
from ruvcompile.report.graph import Costed, own_ms
from ruvcompile.report.run import Run
from ruvrun.costs import CostTable
from ruvrun.manifest import PACKED, Manifest

OWN = "its process"
NODES = "other nodes"
LAST = (NODES, OWN)
MEMORY = ("weights", "key/value", "activations", "runtime")
_SEEN = 1e-3  # of a stage's time: less is rounding, and could not be seen
_DECODER = ("embedding", "attention", "MLP", "output head")
_NAMED = 4  # operators of a graph that are told apart


@dataclass(frozen=True)
class Part:
    """A part of what a stage takes: ``value`` in ms or bytes; ``stage`` is the index in ``figures.stages``."""

    stage: int
    what: str
    value: float


def name_of(figures: Figures, stage: StageFigures) -> str:
    """``stage 1 · pi-1``, with the pipeline where there are several."""
    placed = [each for each in figures.stages if each.pipeline == stage.pipeline]
    number = placed.index(stage)
    pipeline = f"{stage.pipeline}." if figures.shape.replicas > 1 else ""
    return f"stage {pipeline}{number} · {stage.node}"


def times(figures: Figures, costs: CostTable, units: Sequence[Costed]) -> list[Part]:
    """What each stage does in the time of a step: its units, by kind, and what its process takes for itself."""
    order = _told_apart(figures, units)
    found = []
    for index, (stage, held) in enumerate(zip(figures.stages, _held(figures), strict=True)):
        sums: dict[str, float] = {}
        for unit in units:
            if unit.stage == held:
                what = unit.part if unit.part in order else NODES
                sums[what] = sums.get(what, 0.0) + unit.ms
        own, total = own_ms(figures, costs, stage), sum(sums.values())
        # A later pipeline may be of other nodes than the first, whose units these are: its own time is divided alike.
        parts = {what: ms / total * (stage.predicted_ms - own) for what, ms in sums.items()} if total else {}
        parts[OWN] = own
        parts[NODES] = parts.get(NODES, 0.0) + (0.0 if total else stage.predicted_ms - own)
        least = _SEEN * stage.predicted_ms
        found += [Part(index, what, parts[what]) for what in (*order, NODES, OWN) if parts.get(what, 0.0) > least]
    return found


def _told_apart(figures: Figures, units: Sequence[Costed]) -> tuple[str, ...]:
    """The parts that get a colour of their own: of a decoder all, of any other graph the operators that cost most."""
    if figures.decoder:
        return _DECODER
    sums: dict[str, float] = {}
    for unit in units:
        sums[unit.part] = sums.get(unit.part, 0.0) + unit.ms
    return tuple(sorted(sums, key=lambda part: (-sums[part], part))[:_NAMED])


def memory(figures: Figures, manifest: Manifest) -> list[Part]:
    """What the memory of each stage's process holds at its peak.

    Of a build whose manifest does not tell it, the weights are taken as they were reckoned then, and the rest of the
    whole is the runtime's.
    """
    found = []
    for index, stage in enumerate(figures.stages):
        expected = manifest.plan.of(stage.node)
        if expected is not None:
            sizes = (expected.weight_bytes, stage.kv_bytes, expected.working_bytes, expected.runtime_bytes)
        else:
            weights = int(stage.weight_bytes * PACKED)
            sizes = (weights, stage.kv_bytes, 0, max(0, stage.predicted_rss_bytes - weights - stage.kv_bytes))
        found += [Part(index, what, size) for what, size in zip(MEMORY, sizes, strict=True) if size]
    return found


def _held(figures: Figures) -> list[int]:
    """Which piece of the program each of ``figures.stages`` holds: its number within its pipeline."""
    seen: dict[int, int] = {}
    found = []
    for stage in figures.stages:
        found.append(seen.get(stage.pipeline, 0))
        seen[stage.pipeline] = found[-1] + 1
    return found


def in_order(runs: Run, figures: Figures) -> list[int]:
    """For each stage of a run, its index in ``figures.stages``."""
    places = {stage.node: index for index, stage in enumerate(figures.stages)}
    return [places[stage.node] for stage in runs.stages]


@dataclass(frozen=True)
class Choice:
    """A shape with its rates per second, the plan's own (``chosen``) among the others.

    ``lost`` is the share of the plan's rate that it is short of; below zero it is faster than the plan.
    """

    label: str
    chosen: bool
    many: float
    one: float | None
    ttft_ms: float | None
    lost: float


def choices(figures: Figures) -> list[Choice]:
    """The plan first, then the shapes that fit, the fastest first."""
    plan = Choice(
        f"{figures.shape.short} (the plan)", True, figures.per_s, figures.per_s_one, figures.predicted_ttft_ms, 0.0
    )
    others = [
        Choice(_label(other, figures), False, other.per_s, other.per_s_one, other.ttft_ms, 1 - other.per_s / plan.many)
        for other in figures.alternatives
        if other.fits and other.per_s is not None and plan.many
    ]
    return [plan, *sorted(others, key=lambda choice: -choice.many)]


def _label(other: Alternative, figures: Figures) -> str:
    return f"{other.shape.short}, cut elsewhere" if other.shape == figures.shape else other.shape.short
