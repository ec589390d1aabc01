"""A plan beside what its stages were seen to take, and the rows of the cost table that say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import msgspec

from ruvcompile.measure.staged import Reality
from ruvcompile.passes.units import Unit
from ruvcompile.plan import Facts, Plan
from ruvrun.costs import CostTable, StageCost, merge, stage_key
from ruvrun.profile.provenance import provenance

FIRST, AGAIN = 1, 2
AGREED = 0.03
"""Prediction and measurement agree when they differ by no more than this part."""


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


def shares_cores(plan: Plan, facts: Facts) -> bool:
    """Whether processes of this machine take turns on a core."""
    return sum(member.threads for member in plan.members if member.node.local) > facts.cores


def promised(plan: Plan) -> float:
    """Tokens or items per second that the plan predicts for the streams it is made for."""
    figures = plan.figures
    return float(figures.get("predicted_tokens_per_s", figures.get("predicted_items_per_s")) or 0.0)


def look_up(plan: Plan, facts: Facts, look: int = FIRST) -> Held | None:
    """The plan beside what the cost table knows of its stages; None where it does not know all of them.

    Args:
        look: which of the two looks at a plan: ``FIRST``, or ``AGAIN``, once it was corrected.
    """
    known = {_identity(row): row for row in facts.costs.stage}
    seen = [known.get(_identity(row)) for row in blank(plan, facts, look)]
    rows = [row for row in seen if row is not None]
    return Held(plan, tuple(rows)) if len(rows) == len(seen) else None


def with_reality(plan: Plan, facts: Facts, reality: Reality, look: int = FIRST) -> Facts:
    """The facts, their cost table with a row for every stage of ``plan``; equal stages share the mean of theirs."""
    blanks = blank(plan, facts, look)
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(blanks):
        found.setdefault(_identity(row), []).append(number)
    times = reality.own_ms if shares_cores(plan, facts) else reality.stage_ms
    rows = [_seen(blanks[numbers[0]], reality, times, numbers) for numbers in found.values()]
    first = plan.members[0]
    source = provenance(first.target.backend, facts.program.name, first.threads)
    seen = CostTable(provenance=[source], stage=rows)
    return replace(facts, costs=merge([facts.costs, seen]))


def _seen(row: StageCost, reality: Reality, times: Sequence[float], numbers: Sequence[int]) -> StageCost:
    """``row`` with what the stages of these numbers were seen to take."""
    return msgspec.structs.replace(
        row,
        ms=round(fmean(times[number] for number in numbers), 6),
        peak_rss_bytes=max(reality.peak_bytes[number] or 0 for number in numbers),
        per_s=round(reality.per_s, 4),
    )


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


def blank(plan: Plan, facts: Facts, look: int = FIRST) -> list[StageCost]:
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
            look=look,
            ms=0.0,
            source=0,
        )
        for pipeline in plan.pipelines
        for key, member in zip(keys, pipeline, strict=True)
    ]


def _identity(row: StageCost) -> tuple[Any, ...]:
    return row.key, row.target, row.backend, row.threads, row.beside, row.rows, row.depth, row.streams, row.look
