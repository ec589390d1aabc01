"""What may travel between two stages, as the partition sees it: each value with its maker, readers and size."""

from __future__ import annotations

from collections.abc import Sequence

from ruvcompile.partition.task import Value
from ruvcompile.passes.pieces import stays
from ruvcompile.passes.units import refusals
from ruvcompile.plan.facts import Facts
from ruvcompile.plan.groups import Group

LOGITS = "logits"


def values_of(facts: Facts, groups: Sequence[Group]) -> tuple[tuple[str, Value], ...]:
    """What is made by one unit, or comes in, and is read by another or by the end.

    A decoder's state stays where it is, and its logits become a token where they are made.
    """
    stay, end = stays(facts.program), len(facts.units)
    maker = {name: number for number, unit in enumerate(facts.units) for name in unit.outputs}
    readers: dict[str, list[int]] = {name: [] for name in maker}
    for number, unit in enumerate(facts.units):
        for name in unit.inputs:
            readers.setdefault(name, []).append(number)
        for name in (*unit.results, *unit.relays):
            readers.setdefault(name, []).append(end)
    refused, sizes = refusals(facts.units), facts.wire_bytes
    found = []
    for name, numbers in readers.items():
        if name in stay or not numbers:
            continue
        held = facts.held.get(name)
        kinds = None
        if held is not None:
            kinds = frozenset(number for number, group in enumerate(groups) if group.first.name in held)
        crosses = name not in refused and not (facts.decoder and name == LOGITS)
        size = 0 if facts.decoder and name == LOGITS else sizes.get(name, 0)
        made = maker.get(name, -1)
        found.append((name, Value(made, tuple(sorted(set(numbers) - {made})), size, crosses, kinds)))
    return tuple(entry for entry in found if entry[1].readers)
