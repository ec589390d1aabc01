"""From times of kernels to rows of a cost table: what each unit of a decoder takes, at every place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ruvrun.bundle import StageSpec
from ruvrun.costs import NodeCost, Point, UnitCost
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.places import Ground, Place
from ruvrun.profile.sheet import Sheet
from ruvrun.profile.trace import Kernel


def unit_rows(
    spec: StageSpec,
    sheet: Sheet,
    where: Ground,
    shares: Mapping[Place, Mapping[Kernel, float]],
    conditions: Conditions,
    noise: float,
) -> list[UnitCost]:
    """A row for every distinct unit of a decoder's stage; ``source`` is 0.

    Args:
        sheet: which nodes are which unit; units of one key are averaged.
        shares: of each place, the milliseconds of every kernel.
        noise: how far the steps at the usual place spread, as a part of them.
    """
    owner = {name: number for number, unit in enumerate(sheet.unit) for name in unit.nodes}
    members: dict[str, list[int]] = defaultdict(list)
    for number, unit in enumerate(sheet.unit):
        members[unit.key].append(number)
    times = {place: _by_unit(kernels, owner) for place, kernels in shares.items()}
    found = []
    for key, numbers in members.items():
        unit = sheet.unit[numbers[0]]
        ms = {place: sum(units.get(number, 0.0) for number in numbers) / len(numbers) for place, units in times.items()}
        nodes: dict[Kernel, float] = defaultdict(float)
        for (name, op), value in shares[where.usual].items():
            if owner.get(name) in numbers:
                nodes[_generic(name), op] += value / len(numbers)
        found.append(
            UnitCost(
                key=key,
                label=unit.label,
                target=spec.target,
                backend=spec.backend,
                threads=conditions.threads,
                beside=conditions.beside,
                ms=round(ms[where.usual], 6),
                ms_per_token=round(ms[where.chunk] / where.chunk.tokens, 6),
                depth=where.usual.depth,
                chunk=where.chunk.tokens,
                spread=noise,
                curve=[Point(ms=round(ms[p], 6), rows=p.rows, tokens=p.tokens, depth=p.depth) for p in where.places],
                weight_bytes=unit.weight_bytes,
                node=[NodeCost(name=name, op=op, ms=round(value, 6)) for (name, op), value in nodes.items()],
                source=0,
            )
        )
    return found


def _by_unit(kernels: Mapping[Kernel, float], owner: Mapping[str, int]) -> dict[int, float]:
    """Times of the kernels as times of the units; what bears no node's name belongs to the unit that ran before it."""
    found: dict[int, float] = defaultdict(float)
    last = 0
    for (name, _), ms in kernels.items():
        last = owner.get(name, last)
        found[last] += ms
    return found


def _generic(name: str) -> str:
    """A node's name without the number of its layer."""
    first, slash, rest = name.strip("/").partition("/")
    return f"layers.*/{rest}" if first.startswith("layers.") and slash else name.strip("/")
