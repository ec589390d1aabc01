"""The kinds of a task in an order that does not depend on how they were listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ruvcompile.partition.task import Task


def in_order(task: Task) -> tuple[Task, tuple[int, ...]]:
    """The task with its kinds sorted by what they cost, and where each was before.

    Kinds that are equal by themselves are told apart by their hops to all others and by whom they are the same nodes
    as, and those again by theirs.
    """
    kinds = range(len(task.kinds))
    keys: list[object] = []
    for number, kind in enumerate(task.kinds):
        held = tuple(value.kinds is None or number in value.kinds for value in task.values)
        ends = task.ends_ms(number, number), task.enter_ms[number] if task.enter_ms else 0.0
        keys.append(
            (
                *(kind.memory, kind.stage_ms, kind.byte_ms, kind.count, ends, kind.item_ms, sorted(kind.barred), held),
                *(kind.item_bytes, kind.shared_bytes),
            )
        )
    classes = _classes(keys)
    for _ in kinds:
        refined = []
        for own in kinds:
            ways = sorted((classes[each], _way(task, own, each), _way(task, each, own)) for each in kinds)
            refined.append((classes[own], _way(task, own, own), ways))
        classes = _classes(refined)
    order = tuple(sorted(kinds, key=lambda kind: classes[kind]))
    return listed(task, order), order


def listed(task: Task, order: Sequence[int]) -> Task:
    """The task with its kinds in another order."""
    place = {kind: number for number, kind in enumerate(order)}
    return replace(
        task,
        kinds=tuple(task.kinds[kind] for kind in order),
        hops=tuple(tuple(task.hops[a][b] for b in order) for a in order) if task.hops else (),
        enter_ms=tuple(task.enter_ms[kind] for kind in order) if task.enter_ms else (),
        leave_ms=tuple(task.leave_ms[kind] for kind in order) if task.leave_ms else (),
        values=tuple(
            value if value.kinds is None else replace(value, kinds=frozenset(place[kind] for kind in value.kinds))
            for value in task.values
        ),
        pools=tuple((frozenset(place[kind] for kind in kinds), count) for kinds, count in task.pools),
    )


def _way(task: Task, sender: int, receiver: int) -> tuple[float, float, list[int]]:
    hop = task.hop(sender, receiver)
    return hop.ms, hop.ms_per_byte, sorted(most for kinds, most in task.pools if {sender, receiver} <= kinds)


def _classes(keys: Sequence[object]) -> list[int]:
    """Each key's place among the distinct ones, which must be comparable."""
    distinct: list[object] = []
    for key in sorted(keys):  # type: ignore[type-var]  # tuples of equal form
        if not distinct or distinct[-1] != key:
            distinct.append(key)
    return [distinct.index(key) for key in keys]
