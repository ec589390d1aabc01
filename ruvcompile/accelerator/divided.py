"""Cut a graph into the fewest parts that are wholly of one kind.

Parts take turns: of one kind everything is taken that depends on nothing that is left, then of the other. Taking as
much as can be taken is never worse, whatever comes later: what is taken early only frees more. So of the two orders, by
who begins, the shorter one is the shortest there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ruvcompile.passes.units import Unit


@dataclass(frozen=True)
class Part:
    """Units that follow each other on one side: ``taken`` by the accelerator, or left to the CPU."""

    taken: bool
    units: tuple[int, ...]


def divide(units: Sequence[Unit], able: Sequence[bool], worth: Callable[[int], bool]) -> list[Part]:
    """The parts, in the order of computation.

    Args:
        units: of the graph, in a topological order.
        able: of each unit, whether the accelerator takes it.
        worth: whether a unit is worth the way there; a part of none such stays on the CPU.
    """
    sides = list(able)
    while True:
        parts = min((_turns(units, sides, first) for first in (True, False)), key=len)
        idle = [part for part in parts if part.taken and not any(map(worth, part.units))]
        if not idle:
            return parts
        for number in (number for part in idle for number in part.units):
            sides[number] = False


def _turns(units: Sequence[Unit], sides: Sequence[bool], first: bool) -> list[Part]:
    makers = {name: number for number, unit in enumerate(units) for name in unit.outputs}
    needs = [{makers[name] for name in unit.inputs if name in makers} for unit in units]
    left, parts, side = list(range(len(units))), list[Part](), first
    while left:
        waiting = set(left)
        taken, rest = list[int](), list[int]()
        for number in left:
            if sides[number] is side and waiting.isdisjoint(needs[number]):
                taken.append(number)
                waiting.discard(number)
            else:
                rest.append(number)
        if taken:
            parts.append(Part(side, tuple(taken)))
        left, side = rest, not side
    return parts
