"""What was seen of a plan, turned into other costs for the next one."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.settle.held import Held, promised, shares_cores, units_of
from ruvrun.costs import StageCost


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


def tells_apart(plan: Plan, facts: Facts) -> bool:
    """Whether a look at the stages says what each of them takes itself.

    Where they take turns on a core their CPU time does, if one thread is all that works.
    """
    return not shares_cores(plan, facts) or all(member.threads == 1 for member in plan.members)
