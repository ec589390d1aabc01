"""What the other back ends of a stage's node would take, where it has several: how much the pick is worth.

The pick itself is the partition's: a back end is one of the kinds that a node may be (``groups``).
"""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.partition import Stage
from ruvcompile.plan.shapes import Solution
from ruvcompile.plan.tasks import Desk
from ruvcompile.plan.times import stage_times


def by_backend(desk: Desk, solution: Solution, stages: tuple[Stage, ...], place: int, rows: int) -> dict[str, float]:
    """Milliseconds of a step of so many rows of a stage, on each back end of its node that can run it.

    Empty where the node has one alone. All compute the same program: the same quantised weights, activations of the
    same width, keys and values of the same type.
    """
    groups, stage = desk.room.groups, stages[place]
    pool = desk.room.pools[groups[stage.kind].pool]
    found = {}
    for number in pool:
        member = groups[number].first
        if desk.room.prices.missing(member).isdisjoint(stage.items):
            other = (*stages[:place], replace(stage, kind=number), *stages[place + 1 :])
            found[member.target.backend] = round(stage_times(desk, solution, other, rows)[place], 4)
    return found if len(pool) > 1 else {}
