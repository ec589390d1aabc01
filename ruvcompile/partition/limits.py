"""What stages need of a kind's memory, told over the lattice so that each end of a stage has a number of its own.

A stage from downset I to downset J fits kind t when ``needs[t][J] - holds[t][I] <= 0``.

*Shared weights* are not sums. Of a weight's readers, those that no stage of the kind can hold together (what lies
between them fills its memory, or leaves too few items for the other stages) need a copy each. Within what remains, a
stage from I to J holds the weight if it holds a reader. Let ``seen`` tell that a downset has any of the readers and
``done`` that it has all of them: ``seen(J) - seen(I)`` charges only the stage with the first reader, which is never
too much, and ``seen(J) - done(I)`` also each later stage that begins before the last one, which is never too little,
and too much only for a stage that lies between two readers and has none. So the memory of a task with such weights is
told twice, and what the two searches find is between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ruvcompile.partition.arrays import Bools, Ints
from ruvcompile.partition.lattice import Lattice
from ruvcompile.partition.sums import summed
from ruvcompile.partition.task import Shared, Task

_TOLD_APART = 256
"""So many shared weights have their readers looked at; the smaller ones are charged to each reader, or not at all."""


@dataclass(frozen=True)
class Limits:
    """Memory of one kind over the lattice, each ``[downsets]``: see the module's text. Never falls on the way up."""

    needs: Ints
    holds: Ints


def limits_of(task: Task, lattice: Lattice, stages: int) -> tuple[tuple[Limits | None, ...], tuple[Limits | None, ...]]:
    """Per kind, memory told too strictly and too loosely; None where it cannot be short."""
    known: dict[object, tuple[Limits, Limits] | None] = {}
    both: list[tuple[Limits, Limits] | None] = []
    for number, kind in enumerate(task.kinds):
        own, shared = sizes = task.sized(number)
        room = kind.memory - task.runtime_bytes
        if room >= sum(own) + sum(each.size for each in shared):
            both.append(None)
            continue
        if (room, sizes) not in known:
            known[room, sizes] = _limits_in(replace(task, item_bytes=own, shared=shared), lattice, stages, room)
        both.append(known[room, sizes])
    return tuple(each and each[0] for each in both), tuple(each and each[1] for each in both)


def _limits_in(task: Task, lattice: Lattice, stages: int, room: int) -> tuple[Limits, Limits]:
    plain = np.array(task.item_bytes, np.int64)
    each_reader, once = plain.copy(), np.zeros(len(plain), np.int64)
    clusters, tiny = _clusters(task, lattice, stages, room)
    for each in tiny:
        once[list(each.readers)] += each.size
    seen, done = np.zeros(lattice.count, np.int64), np.zeros(lattice.count, np.int64)
    for each in clusters:
        if len(each.readers) == 1:
            each_reader[each.readers[0]] += each.size
        else:
            any_of, all_of = _met(lattice, each.readers)
            seen += each.size * any_of
            done += each.size * all_of
    base = summed(lattice, each_reader)
    strict_base = base + summed(lattice, once) if tiny else base
    strict = Limits(strict_base + seen - room, strict_base + done)
    if not tiny and (seen == done).all():
        return strict, strict
    return strict, Limits(base + seen - room, base + seen)


def _clusters(task: Task, lattice: Lattice, stages: int, room: int) -> tuple[list[Shared], list[Shared]]:
    """Shared weights with only those readers together that one stage may hold; and those not worth looking at.

    A stage that has items of two blocks has all blocks between them.
    """
    sizes: dict[tuple[int, ...], int] = {}
    for each in task.shared:
        readers = tuple(sorted(set(each.readers)))
        if readers:
            sizes[readers] = sizes.get(readers, 0) + each.size
    order = sorted(sizes, key=lambda readers: (-sizes[readers] * (len(readers) - 1), readers))
    spread = [readers for readers in order if len(readers) > 1]
    found = [Shared(readers, sizes[readers]) for readers in order if len(readers) == 1]
    bytes_before = np.concatenate([[0], np.cumsum(task.item_bytes, dtype=np.int64)])
    for readers in spread[:_TOLD_APART]:
        groups = [[readers[0]]]
        for first, second in pairwise(readers):
            start, stop = lattice.waists[lattice.owner[first] + 1], lattice.waists[lattice.owner[second]]
            outside = len(task.item_bytes) - max(0, int(stop - start)) - 2
            between = int(bytes_before[max(start, stop)] - bytes_before[start])
            # Of one block any two may be together without a third: only what lies between two blocks tells them apart.
            apart = lattice.owner[first] != lattice.owner[second]
            if apart and (outside < stages - 1 or between + sizes[readers] > room):
                groups.append([second])
            else:
                groups[-1].append(second)
        found.extend(Shared(tuple(group), sizes[readers]) for group in groups)
    return found, [Shared(readers, sizes[readers]) for readers in spread[_TOLD_APART:]]


def _met(lattice: Lattice, readers: Sequence[int]) -> tuple[Bools, Bools]:
    """Of each downset, whether it has any of ``readers``, and whether it has all of them."""
    owners = lattice.owner[list(readers)]
    found = []
    for block, all_of in ((int(owners[0]), False), (int(owners[-1]), True)):
        met = lattice.block > block
        shape, bottom = lattice.shapes[block], lattice.bottoms[block]
        own = [int(reader - lattice.waists[block]) for reader in readers if lattice.owner[reader] == block]
        inside = shape.holds_all(own) if all_of else shape.holds_any(own)
        met[bottom : bottom + len(inside)] = inside
        found.append(met)
    return found[0], found[1]
