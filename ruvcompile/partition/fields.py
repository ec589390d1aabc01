"""What every downset of a task's lattice costs: bytes that cross there, legality, each kind's work and memory.

All are sums over items, handed on from downset to downset, but for one thing: a value that several items read stops
to cross with the last of them, whichever that is. Readers in the last block that has any decide; the few values with
several of those are settled by one comparison of bits each.

A stage from downset I to downset J takes ``ends[t][J] - begins[t][I]`` on kind t, and fits it when
``needs[t][J] - holds[t][I] <= 0``. Both pairs are made so that only differences count, and so that ``needs`` and
``holds`` never fall on the way up, which the search relies on. Memory is told by ``limits``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ruvcompile.partition.arrays import Bools, Floats, Ints
from ruvcompile.partition.lattice import Lattice
from ruvcompile.partition.limits import Limits, limits_of
from ruvcompile.partition.sums import handed_on, summed
from ruvcompile.partition.task import Task


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
    strict, loose = limits_of(task, lattice, stages)
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
    found = handed_on(lattice, made - single, at_waists)
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
