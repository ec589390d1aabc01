"""What every downset of a task's lattice costs: bytes that cross there, legality, each kind's work and memory.

All are sums over items, handed on from downset to downset, but for one thing: a value that several items read stops
to cross with the last of them, whichever that is. Readers in the last block that has any decide; the few values with
several of those are settled by one comparison of bits each.

A stage from downset I to downset J takes ``ends[t][J] - begins[t][I]`` on kind t, and fits it when
``needs[t][J] - holds[t][I] <= 0``. Both pairs are made so that only differences count, and so that ``needs`` and
``holds`` never fall on the way up, which the search relies on.

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
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ruvcompile.partition.lattice import Ints, Lattice
from ruvcompile.partition.task import Shared, Task

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_TOLD_APART = 256
"""So many shared weights have their readers looked at; the smaller ones are charged to each reader, or not at all."""


@dataclass(frozen=True)
class Limits:
    """Memory of one kind over the lattice, each ``[downsets]``: see the module's text. Never falls on the way up."""

    needs: Ints
    holds: Ints


@dataclass(frozen=True)
class Fields:
    """All of it, ``[downsets]`` each, or ``[kinds][downsets]``.

    Attributes:
        lattice: of the task.
        task: whose costs these are.
        crossing: bytes of what crosses a cut there.
        legal: whether a stage may end there.
        opens: per kind, whether a stage may begin there.
        barred: per kind, the items it may not hold; None: no such item.
        work, begins, ends: per kind, times: see the module's text.
        strict, loose: per kind, memory told too strictly and too loosely, None where it cannot be short; the same
            object where both are true.
    """

    lattice: Lattice
    task: Task
    crossing: Floats
    legal: Bools
    opens: tuple[Bools, ...]
    barred: tuple[Bools | None, ...]
    work: tuple[Floats, ...]
    begins: tuple[Floats, ...]
    ends: tuple[Floats, ...]
    strict: tuple[Limits | None, ...]
    loose: tuple[Limits | None, ...]


def needs_of(task: Task) -> list[list[int]]:
    """For each item, the items whose values it reads."""
    found: list[set[int]] = [set() for _ in task.item_bytes]
    for value in task.values:
        if value.maker >= 0:
            for reader in value.readers:
                if reader < len(found):
                    found[reader].add(value.maker)
    return [sorted(each) for each in found]


def fields_of(task: Task, lattice: Lattice, stages: int) -> Fields:
    """The fields of a task that is to be cut into at least ``stages`` stages."""
    count, kinds = lattice.count, range(len(task.kinds))
    held = {value.kinds for value in task.values} - {None}
    marks = [kind for kind in kinds if any(each is not None and kind not in each for each in held)]
    columns = np.zeros((len(task.values), 2 + len(marks)))
    columns[:, 0] = [value.size for value in task.values]
    columns[:, 1] = [not value.crosses for value in task.values]
    for column, kind in enumerate(marks, 2):
        columns[:, column] = [value.kinds is not None and kind not in value.kinds for value in task.values]
    crossing = _crossing(task, lattice, columns)
    legal = crossing[:, 1] == 0
    legal[[0, count - 1]] = True
    opens = tuple((legal & (crossing[:, 2 + marks.index(kind)] == 0)) if kind in marks else legal for kind in kinds)
    barred = tuple(barred_items(task, kind) for kind in kinds)
    times = np.array([kind.item_ms for kind in task.kinds], np.float64).T.reshape(len(task.item_bytes), len(kinds))
    work = summed(lattice, times)
    moved = [kind.byte_ms * crossing[:, 0] for kind in task.kinds]
    strict, loose = _limits(task, lattice, stages)
    return Fields(
        lattice,
        task,
        np.ascontiguousarray(crossing[:, 0]),
        legal,
        opens,
        barred,
        tuple(np.ascontiguousarray(work[:, kind]) for kind in kinds),
        tuple(work[:, kind] - moved[kind] for kind in kinds),
        tuple(work[:, kind] + moved[kind] + task.kinds[kind].stage_ms for kind in kinds),
        strict,
        loose,
    )


def barred_items(task: Task, kind: int) -> Bools | None:
    """Items that a kind may not hold, by themselves or for what they make; None: it may hold all."""
    found = np.zeros(len(task.item_bytes), bool)
    found[list(task.kinds[kind].barred)] = True
    for value in task.values:
        if value.maker >= 0 and value.kinds is not None and kind not in value.kinds:
            found[value.maker] = True
    return found if found.any() else None


Amounts = TypeVar("Amounts", np.float64, np.int64)


def summed(lattice: Lattice, amounts: npt.NDArray[Amounts]) -> npt.NDArray[Amounts]:
    """Sums of ``amounts [items, columns]`` over every downset's items."""
    total = np.concatenate([np.zeros((1, *amounts.shape[1:]), amounts.dtype), np.cumsum(amounts, 0)])
    return _handed_on(lattice, amounts, total[lattice.waists])


def _handed_on(
    lattice: Lattice, amounts: npt.NDArray[Amounts], at_waists: npt.NDArray[Amounts]
) -> npt.NDArray[Amounts]:
    found = np.zeros((lattice.count, *amounts.shape[1:]), amounts.dtype)
    found[lattice.bottoms] = at_waists
    for step in lattice.rounds:
        found[step.targets] = found[step.sources[step.starts]] + amounts[step.items[step.starts]]
    return found


def _crossing(task: Task, lattice: Lattice, columns: Floats) -> Floats:
    """Sums of ``columns [values, columns]`` over the values that cross at every downset."""
    count = len(task.item_bytes)
    read = [number for number, value in enumerate(task.values) if value.readers]
    maker = np.array([task.values[number].maker for number in read], np.int64)
    final = np.array([max(task.values[number].readers) for number in read], np.int64)
    amounts = columns[read]
    ending = final < count
    inside, several = _deciding(task, lattice, np.array(read, np.int64)[ending])
    made, last = _added(count, maker[maker >= 0], amounts[maker >= 0]), _added(count, final[ending], amounts[ending])
    single = _added(count, final[ending][inside], amounts[ending][inside])
    entering = amounts[maker < 0].sum(0)
    at_waists = entering + np.concatenate([np.zeros((1, columns.shape[1])), np.cumsum(made - last, 0)])[lattice.waists]
    found = _handed_on(lattice, made - single, at_waists)
    for number, block, deciding in several:
        shape, bottom = lattice.shapes[block], lattice.bottoms[block]
        found[bottom : bottom + len(shape.bits)] -= shape.holds_all(deciding)[:, None] * columns[number]
    return found


def _deciding(task: Task, lattice: Lattice, numbers: Ints) -> tuple[Bools, list[tuple[int, int, list[int]]]]:
    """Of some values, which have one reader in the last block that has any; and block and readers of the others."""
    inside, several = np.ones(len(numbers), bool), []
    for place, number in enumerate(numbers.tolist()):
        readers = task.values[number].readers
        if len(readers) > 1:
            block = int(lattice.owner[max(readers)])
            first = int(lattice.waists[block])
            deciding = sorted({reader - first for reader in readers if reader >= first})
            if len(deciding) > 1:
                inside[place] = False
                several.append((number, block, deciding))
    return inside, several


def _added(count: int, places: Ints, amounts: Floats) -> Floats:
    """Sums of ``amounts`` over equal ``places``."""
    found = np.zeros((count, amounts.shape[1]))
    for column, own in enumerate(amounts.T):
        found[:, column] = np.bincount(places, own, count)
    return found


def _limits(task: Task, lattice: Lattice, stages: int) -> tuple[tuple[Limits | None, ...], tuple[Limits | None, ...]]:
    """Per kind, memory told too strictly and too loosely."""
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


__all__ = ["Bools", "Fields", "Floats", "Ints", "Limits", "barred_items", "fields_of", "needs_of", "summed"]
