"""What was seen of a plan, turned into other costs for the next one.

Three times are corrected, one after the other, each by what is left once those before it are: the units, by what their
stages took; the ways between processes, by the round of a single sequence, which is nothing but its stages and its
ways; and what several sequences wait for each other, by the round of all of them. And the memory of a graph's
processes, which no table has: how much a back end takes for what is alive at a time is its own affair.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.settle.held import Held, Ratios, by_own_time, promised, promised_alone, shares_cores, units_of


def corrected(held: Held, facts: Facts) -> Facts:
    """The facts as a plan with the same cuts has to have them to promise what was seen."""
    facts = with_units(held, with_memory(held, facts))
    facts = with_ways(make_plan(facts, held.plan.cuts), held.lone[0].per_s, facts, held.others_ms)
    return with_waits(make_plan(facts, held.plan.cuts), held.seen[0].per_s * held.others, facts)


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


def with_waits(plan: Plan, per_s: float, facts: Facts) -> Facts:
    """The facts, rounds of several sequences as much longer as was seen.

    That they are shorter than their slowest part nothing explains, and nothing is made of it.
    """
    if not per_s or not promised(plan) or plan.streams == 1:
        return facts
    return replace(facts, waits=max(1.0, facts.waits * promised(plan) / per_s))


def with_memory(held: Held, facts: Facts) -> Facts:
    """The facts, the processes of each back end as much larger or smaller as they were seen to be on average.

    Not those of a decoder: a look does not fill its key/value space, and what that takes is known.
    """
    found: dict[str, list[int]] = {}
    stages = zip(held.plan.figures["stages"], held.seen, held.lone, strict=True)
    for stage, *rows in stages if not facts.decoder else ():
        if peak := max(row.peak_rss_bytes for row in rows):
            found.setdefault(stage["backend"], []).append(peak - stage["predicted_rss_bytes"])
    more = {backend: facts.process_bytes.get(backend, 0) + round(fmean(sizes)) for backend, sizes in found.items()}
    return replace(facts, process_bytes={**facts.process_bytes, **more})


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
