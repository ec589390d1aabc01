"""The rows of the cost table that say what the stages of a plan took together.

A row is of what its stage computes, on a kind of machine, in a company: so many sequences, so many processes beside it.
Equal stages share one. A build whose table holds all rows of a plan knows what it would see, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import harmonic_mean
from typing import Any

import msgspec

from ruvcompile.measure.staged import Reality, mean_ms
from ruvcompile.plan import Facts, Plan
from ruvcompile.settle.held import Held, by_own_time, units_of
from ruvrun.costs import CostTable, StageCost, merge, stage_key
from ruvrun.profile.provenance import provenance

FIRST, AGAIN = 1, 2
"""The two looks at a plan: as it is, and once it was corrected."""


def counts(plan: Plan) -> tuple[int, ...]:
    """Sequences (or callers) with which a plan is looked at: one, all, and 2, 4, ... and one for each stage of every
    pipeline, since what they wait for each other is no straight line between one and all.
    """
    stages = len(plan.pieces)
    shares = {stages, *(2**power for power in range(1, stages.bit_length()))}
    told = [streams for streams, _ in plan.rates]
    few = {max(streams for streams in told if streams <= share * len(plan.pipelines)) for share in shares}
    return tuple(sorted({1, *few, plan.streams}))


def look_up(plan: Plan, facts: Facts, look: int = FIRST) -> Held | None:
    """The plan beside what the cost table knows of its stages; None where it does not know all of them.

    Args:
        look: which of the two looks at a plan: ``FIRST``, or ``AGAIN``, once it was corrected.
    """
    known = {_identity(row): row for row in facts.costs.stage}
    found = {}
    for streams in counts(plan):
        rows = [known.get(_identity(row)) for row in blank(plan, facts, streams, look)]
        found[streams] = tuple(row for row in rows if row is not None)
        if len(found[streams]) < len(rows):
            return None
    return Held(plan, found)


def mean_of(one: Held, other: Held) -> Held:
    """Two looks at one plan as a single one, in which both count alike: mean times, rates of the mean round."""
    return Held(one.plan, {streams: tuple(map(_mean, rows, other.rows[streams])) for streams, rows in one.rows.items()})


def _mean(one: StageCost, other: StageCost) -> StageCost:
    return msgspec.structs.replace(
        one,
        ms=mean_ms((one.ms, other.ms)),
        clock_ms=mean_ms((one.clock_ms, other.clock_ms)),
        peak_rss_bytes=max(one.peak_rss_bytes, other.peak_rss_bytes),
        per_s=harmonic_mean((one.per_s, other.per_s)),
    )


def with_reality(plan: Plan, facts: Facts, realities: Iterable[Reality], look: int = FIRST) -> Facts:
    """The facts, their cost table with a row for every stage of ``plan``; equal stages share the mean of theirs."""
    rows = []
    for reality in realities:
        blanks = blank(plan, facts, reality.streams, look)
        found: dict[tuple[Any, ...], list[int]] = {}
        for number, row in enumerate(blanks):
            found.setdefault(_identity(row), []).append(number)
        own = reality.own_ms if by_own_time(plan) else ()
        rows += [_seen(blanks[numbers[0]], reality, own, numbers) for numbers in found.values()]
    first = plan.members[0]
    source = provenance(first.target.backend, facts.program.name, first.threads)
    seen = CostTable(provenance=[source], stage=rows)
    return replace(facts, costs=merge([facts.costs, seen]))


def _seen(row: StageCost, reality: Reality, own: Sequence[float], numbers: Sequence[int]) -> StageCost:
    """``row`` with what the stages of these numbers were seen to take; 0 where none of them had anything to do.

    Args:
        own: what the threads of all stages worked; empty where the clock counts.
    """

    def mean(times: Sequence[float]) -> float:
        return round(mean_ms(times[number] for number in numbers), 6)

    clock = mean(reality.stage_ms)
    return msgspec.structs.replace(
        row,
        ms=mean(own) if own else clock,
        clock_ms=clock if own else 0.0,
        peak_rss_bytes=max(reality.peak_bytes[number] or 0 for number in numbers),
        per_s=round(reality.per_s, 4),
    )


def blank(plan: Plan, facts: Facts, streams: int, look: int = FIRST) -> list[StageCost]:
    """A row for each stage of each pipeline, in which nothing is said yet but what it is of.

    Args:
        streams: one of ``counts``.
    """
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
            rows=plan.rows if streams == plan.streams else 1,
            depth=facts.depth if facts.decoder else 0,
            streams=streams,
            look=look,
            ms=0.0,
            source=0,
        )
        for pipeline in plan.pipelines
        for key, member in zip(keys, pipeline, strict=True)
    ]


def _identity(row: StageCost) -> tuple[Any, ...]:
    return row.key, row.target, row.backend, row.threads, row.beside, row.rows, row.depth, row.streams, row.look
