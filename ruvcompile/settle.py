"""Hold a plan against what its stages take when they run together, and plan again until the two agree.

The plan adds up units that were measured one by one. A lowered stage may take longer, since the others work beside it,
or less, since units that meet in one stage share something. So once there are stages they are run in their pipeline
(``measure.staged``), each becomes a row of the cost table (``StageCost``), and where a stage took longer or less than
its units should have, these are corrected by the ratio. Where the next plan moves the cut, and promises more than the
one that was seen (``WORTH``), it is lowered and held against the truth again, until no stage and not the whole differs
by more than ``AGREED``, or ``ROUNDS`` times; then the plan says by how much it is still off.

A build whose table holds those rows goes the same way without running anything, so it ends at the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from ruvcompile.fleet import HOST
from ruvcompile.measure.staged import SECONDS, TOKENS, NotMeasuredError, Reality, measure_staged, prompt_tokens
from ruvcompile.passes.units import Unit
from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.progress import Progress
from ruvcompile.stages import Lowered
from ruvrun.costs import CostTable, StageCost, merge, stage_key
from ruvrun.executors import Array
from ruvrun.profile.provenance import provenance

AGREED = 0.03
"""Prediction and measurement agree when they differ by no more than this part."""

ROUNDS = 3
WORTH = 1.02
"""Other cuts must promise so much more, or the ones that were seen are kept: what a run takes varies as much."""

LONGEST_S = 30.0
"""Whoever builds a model that takes longer to try than this is not made to wait."""


@dataclass(frozen=True)
class Held:
    """A plan beside what was seen of it: of each stage, pipeline by pipeline, its row."""

    plan: Plan
    seen: tuple[StageCost, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Of each stage, what its units took over what they should have."""
        pairs = zip(self.seen, self.plan.inner_ms, strict=True)
        return tuple(row.ms / ms if row.ms and ms else 1.0 for row, ms in pairs)

    @property
    def rate_ratio(self) -> float:
        """What all pipelines together did over what they should have."""
        wanted, done = promised(self.plan), self.seen[0].per_s
        return done / wanted if wanted and done else 1.0

    @property
    def difference(self) -> float:
        """The largest difference of any stage, or of the whole, as a part of what was predicted."""
        return max(abs(ratio - 1) for ratio in (*self.ratios, self.rate_ratio))

    @property
    def agrees(self) -> bool:
        """Whether the plan's promise holds."""
        return self.difference <= AGREED

    @property
    def figures(self) -> dict[str, Any]:
        """For the JSON of the plan."""
        return {
            "stage_ms": [round(row.ms, 4) for row in self.seen],
            "peak_rss_bytes": [row.peak_rss_bytes for row in self.seen],
            "per_s": round(self.seen[0].per_s, 2),
            "streams": self.seen[0].streams,
            "difference": round(self.difference, 4),
        }

    def __str__(self) -> str:
        what = "tokens" if self.plan.space is not None else "items"
        rates = f"{self.seen[0].per_s:.1f} {what}/s where {promised(self.plan):.1f} were predicted"
        stages = ", ".join(f"{100 * (ratio - 1):+.1f} %" for ratio in self.ratios)
        verdict = "they agree" if self.agrees else f"they differ by up to {100 * self.difference:.1f} %"
        return f"stages measured together: {rates}; stages {stages}; {verdict}"


@dataclass(frozen=True)
class Settled:
    """A plan that was held against the truth as far as that could be had.

    Attributes:
        plan: its figures say ``measured`` what was seen, where anything was.
        costs: with what was seen.
        lowered: its stages, where they were made.
    """

    plan: Plan
    costs: CostTable
    lowered: Lowered | None


def settle(
    facts: Facts,
    samples: Mapping[str, Array],
    make: Callable[[Plan], tuple[Lowered, Path]] | None,
    progress: Progress,
) -> Settled:
    """Plan, and plan again until prediction and measurement agree.

    Args:
        facts: with the cost table as far as it is known.
        samples: inputs of a graph; of a decoder none.
        make: lowers the stages of a plan and writes a build of them, whose manifest it names; None where nothing is to
            be run.
        progress: told how far apart they are.

    Raises:
        FitError, UsageError: as ``make_plan``.
    """
    plan, lowered, held = make_plan(facts), None, None
    first: float | None = None
    for turn in range(ROUNDS):
        held = look_up(plan, facts)
        if held is None:
            if make is None or not can_run_here(plan):
                break
            if (long := seconds(plan, facts)) > LONGEST_S:
                progress.note(f"the stages are not measured together, which would take about {long:.0f} s")
                break
            lowered, manifest = make(plan)
            try:
                with progress.step("run together"):
                    reality = measure_staged(manifest, plan.streams, depth=facts.depth, samples=samples)
            except NotMeasuredError as error:
                progress.note(f"the stages could not be measured together here: {error.message}")
                break
            facts = with_reality(plan, facts, reality)
            held = look_up(plan, facts)
            assert held is not None, "every stage has a row now"
        progress.note(str(held))
        first = held.difference if first is None else first
        if held.agrees or turn + 1 == ROUNDS:
            break
        facts = corrected(held, facts)
        facts = with_ways(make_plan(facts, plan.cuts), held.seen[0], facts)
        again, kept = make_plan(facts), make_plan(facts, plan.cuts)
        if same_stages(plan, again) or promised(again) < WORTH * promised(kept):
            lowered = lowered if same_stages(plan, kept) else None
            plan, held = kept, look_up(kept, facts)
            break
        plan, lowered = again, None
    if held is not None:
        # What a plan was corrected by it agrees with; how far off it was before is what says how good its costs are.
        plan = replace(
            plan, figures={**plan.figures, "measured": {**held.figures, "uncorrected": round(first or 0.0, 4)}}
        )
    return Settled(plan, facts.costs, lowered)


def same_stages(one: Plan, two: Plan) -> bool:
    """Whether two plans have the same stages on the same nodes, whatever they expect of them."""
    return one.pipelines == two.pipelines and one.pieces == two.pieces


def promised(plan: Plan) -> float:
    """Tokens or items per second that the plan predicts for the streams it is made for."""
    figures = plan.figures
    return float(figures.get("predicted_tokens_per_s", figures.get("predicted_items_per_s")) or 0.0)


def can_run_here(plan: Plan) -> bool:
    """Whether every stage would be a process of this machine, and of its own kind."""
    return all(member.node.local and member.target.name == HOST for member in plan.members)


def seconds(plan: Plan, facts: Facts) -> float:
    """How long one look at the stages together takes, about: all prompts, and the tokens after them."""
    if not facts.decoder:
        return SECONDS + 2 * facts.streams(1) / max(promised(plan), 1e-9)
    pipeline = plan.forecast.pipelines[0]
    tokens = prompt_tokens(facts.depth) * plan.streams / len(plan.forecast.pipelines)
    chunk = plan.forecast.chunk
    prompts = max(stage.chunk_ms(chunk) for stage in pipeline.stages) / chunk * tokens / 1e3
    return prompts + TOKENS * plan.streams / max(promised(plan), 1e-9)


def look_up(plan: Plan, facts: Facts) -> Held | None:
    """The plan beside what the cost table knows of its stages; None where it does not know all of them."""
    known = {_identity(row): row for row in facts.costs.stage}
    seen = [known.get(_identity(row)) for row in blank(plan, facts)]
    rows = [row for row in seen if row is not None]
    return Held(plan, tuple(rows)) if len(rows) == len(seen) else None


def with_reality(plan: Plan, facts: Facts, reality: Reality) -> Facts:
    """The facts, their cost table with a row for every stage of ``plan``; equal stages share the mean of theirs."""
    blanks = blank(plan, facts)
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(blanks):
        found.setdefault(_identity(row), []).append(number)
    rows = [_seen(blanks[numbers[0]], reality, numbers) for numbers in found.values()]
    first = plan.members[0]
    source = provenance(first.target.backend, facts.program.name, first.threads)
    seen = CostTable(provenance=[source], stage=rows)
    return replace(facts, costs=merge([facts.costs, seen]))


def _seen(row: StageCost, reality: Reality, numbers: Sequence[int]) -> StageCost:
    """``row`` with what the stages of these numbers were seen to take."""
    return msgspec.structs.replace(
        row,
        ms=round(fmean(reality.stage_ms[number] for number in numbers), 6),
        peak_rss_bytes=max(reality.peak_bytes[number] or 0 for number in numbers),
        per_s=round(reality.per_s, 4),
    )


def corrected(held: Held, facts: Facts) -> Facts:
    """The facts, units corrected by what their stage took: by the mean of the pipelines that have it."""
    plan, ratios = held.plan, held.ratios
    stages = len(plan.pieces)
    factors = list(facts.corrections or (1.0,) * len(facts.units))
    places = {unit.nodes[0]: number for number, unit in enumerate(facts.units)}
    for place, units in enumerate(units_of(plan)):
        ratio = fmean(ratios[place::stages])
        for unit in units:
            factors[places[unit.nodes[0]]] *= ratio
    return replace(facts, corrections=tuple(factors))


def with_ways(plan: Plan, seen: StageCost, facts: Facts) -> Facts:
    """The facts, the ways between processes corrected by what is left of a round once the stages are.

    Waking up takes longer or less than a table says from one hour to the next. A round that is as long as its slowest
    stage tells nothing of the ways: where correcting them does not change what is promised, they stay as they are.
    """
    if not seen.per_s or not promised(plan) or facts.options.fleet.default_link is not None:
        return facts
    pipelines, stages = len(plan.pipelines), len(plan.pieces)
    share = 1e3 * seen.streams / pipelines
    left = share / (seen.per_s / pipelines) - share / (promised(plan) / pipelines)
    found = replace(facts, hop_ms=facts.hop_ms + left / (stages + 1))
    return found if promised(make_plan(found, plan.cuts)) != promised(plan) else facts


def units_of(plan: Plan) -> list[tuple[Unit, ...]]:
    """The units of each stage."""
    found, at = [], 0
    for piece in plan.pieces:
        held, inside = [], set(piece.nodes)
        while at < len(plan.units) and plan.units[at].nodes[0] in inside:
            held.append(plan.units[at])
            at += 1
        found.append(tuple(held))
    return found


def blank(plan: Plan, facts: Facts) -> list[StageCost]:
    """A row for each stage of each pipeline, in which nothing is said yet but what it is of."""
    counts = [len(units) for units in units_of(plan)]
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    keys = [stage_key(plan.keys[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    local = sum(member.node.local for member in plan.members)
    return [
        StageCost(
            key=key,
            target=member.target.name,
            backend=member.target.backend,
            threads=member.threads,
            beside=local,
            rows=plan.rows,
            depth=facts.depth if facts.decoder else 0,
            streams=plan.streams,
            ms=0.0,
            source=0,
        )
        for pipeline in plan.pipelines
        for key, member in zip(keys, pipeline, strict=True)
    ]


def _identity(row: StageCost) -> tuple[Any, ...]:
    return row.key, row.target, row.backend, row.threads, row.beside, row.rows, row.depth, row.streams
