"""What was seen of a plan, turned into other costs for the next one.

Three times are corrected, one after the other, each by what is left once those before it are: the units, by what their
stages took; the ways between processes, by the round of a single sequence, which is nothing but its stages and its
ways; and what several sequences wait for each other, by the round of all of them. And the memory of a graph's
processes, which no table has: how much a back end takes for what is alive at a time is its own affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, linear_regression

from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.settle.held import Held, Ratios, by_own_time, promised, promised_alone, shares_cores, units_of

_TELLS_APART = 16 << 20
"""Bytes: processes of equal weights differ by some MiB from run to run."""


def corrected(held: Held, facts: Facts) -> Facts:
    """The facts as a plan with the same cuts has to have them to promise what was seen."""
    facts = with_units(held, with_memory(held, facts))
    facts = with_ways(make_plan(facts, held.plan.cuts), held.lone[0].per_s, facts, held.others_ms)
    seen = {streams: per_s * held.others for streams, per_s in held.rates.items()}
    return with_waits(make_plan(facts, held.plan.cuts), seen, facts)


def with_units(held: Held, facts: Facts) -> Facts:
    """The facts, units corrected by what their stage took: by the mean of the pipelines that have it."""
    return replace(
        facts,
        corrections=_factors(held.plan, held.ratios, facts.corrections, facts),
        alone=_factors(held.plan, held.lone_ratios, facts.alone, facts),
    )


def with_ways(plan: Plan, per_s: float, facts: Facts, others_ms: float = 0.0) -> Facts:
    """The facts, the ways between processes corrected by what is left of a single sequence's round.

    Waking up takes longer or less than a table says: from one hour to the next, and as the core sleeps or works.

    Args:
        others_ms: of the round, that is neither stages nor ways.
    """
    if not per_s or not promised_alone(plan) or facts.options.fleet.default_link is not None:
        return facts
    left = 1e3 / per_s - others_ms - 1e3 / promised_alone(plan)
    return replace(facts, hop_ms=facts.hop_ms + left / (len(plan.pieces) + 1))


def with_waits(plan: Plan, seen: Mapping[int, float], facts: Facts) -> Facts:
    """The facts, rounds of several sequences as much longer as was seen.

    That those of all are shorter than their slowest part nothing explains, and nothing is made of it. Those of a few
    have steps of fewer rows than the ones that the units were corrected by.

    Args:
        seen: per second, by the number of sequences.
    """
    found = {}
    for streams, per_s in seen.items():
        share = -(-streams // len(plan.pipelines))
        if share > 1 and per_s:
            longer = facts.waiting(share) * promised(plan, streams) / per_s
            found[share] = max(1.0, longer) if streams == plan.streams else longer
    return replace(facts, waits=tuple(sorted(found.items()))) if found else facts


def with_memory(held: Held, facts: Facts) -> Facts:
    """The facts, the processes of each back end as much larger or smaller as they were seen to be: by what grows with
    their weights, of which some back ends keep the file and a packed copy, and by what does not.

    Not those of a decoder: a look does not fill its key/value space, and what that takes is known.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    stages = zip(held.plan.figures["stages"], held.plan.expected, *held.rows.values(), strict=True)
    for stage, expected, *rows in stages if not facts.decoder else ():
        if peak := max(row.peak_rss_bytes for row in rows):
            seen = (expected.weight_bytes, peak - stage["predicted_rss_bytes"])
            found.setdefault(stage["backend"], []).append(seen)
    packed, more = dict(facts.packed), dict(facts.process_bytes)
    for backend, pairs in found.items():
        each = _per_byte(pairs)
        packed[backend] = packed.get(backend, 1.0) * (1 + each)
        more[backend] = more.get(backend, 0) + round(fmean(off - each * weights for weights, off in pairs))
    return replace(facts, packed=packed, process_bytes=more)


def _per_byte(pairs: Sequence[tuple[int, int]]) -> float:
    """By how much each byte of weights was seen to take more: the slope of what was off over the weights, 0 where they
    hardly differ. Never less: weights that are not there yet are no reason to plan with less.
    """
    weights, off = zip(*pairs, strict=True)
    if max(weights) - min(weights) < _TELLS_APART:
        return 0.0
    return max(0.0, linear_regression(weights, off).slope)


def tells_apart(plan: Plan, facts: Facts) -> bool:
    """Whether a look at the stages says what each of them takes itself, also where they take turns on a core."""
    return by_own_time(plan) or not shares_cores(plan, facts)


def _factors(plan: Plan, ratios: Ratios, before: tuple[float, ...], facts: Facts) -> tuple[float, ...]:
    """By how much each unit's times are to be multiplied, those of a stage that was not seen as ``before``."""
    stages = len(plan.pieces)
    factors = list(before or (1.0,) * len(facts.units))
    places = {unit.nodes[0]: number for number, unit in enumerate(facts.units)}
    for place, units in enumerate(units_of(plan)):
        known = [ratio for ratio in ratios[place::stages] if ratio is not None]
        for unit in units if known else ():
            factors[places[unit.nodes[0]]] *= fmean(known)
    return tuple(factors)
