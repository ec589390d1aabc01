"""What is searched: the lattice of a task, or where that is too large, of one whose items are parts of the task's.

The number of downsets multiplies with branches side by side. Where there are more than can be searched, neighbours are
put together, adaptively: only in the blocks that have the most downsets, and no more than is needed there. Blocks
share what room there is so that the small ones stay as they are. Branches that are alike are worked off in turn first
(``alike``), which loses nothing.

Within a block, items stand in an order of computation in which each comes right before its first reader, so that a
branch is one run of the list. Parts are runs of that order, which can never make a circle. A run grows while it stays
below a share of all work and memory, and

1. only by an item that reads from it (a chain with one reader at each step; an element-wise end of a sum), or, where
   that is not enough,
2. by whatever comes next (so whole branches side by side become one);
3. never by an item that other kinds may hold than those that may hold the run, unless nothing else is left.

The share is the smallest that does, found by halving. What is found on a contracted task is a partition of the task,
but a better one may exist; only the bound says how much better. It is taken from the task itself, never from what was
contracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ruvcompile.partition.alike import in_turn
from ruvcompile.partition.arrays import Floats, Ints
from ruvcompile.partition.fields import barred_items, needs_of
from ruvcompile.partition.lattice import Lattice, downset_count, known_lattice, known_waists
from ruvcompile.partition.task import Shared, Task

Inner = tuple[tuple[int, ...], ...]

_FINEST = 14
"""The smallest share of all work that is tried is one of 2 ** 14."""


@dataclass(frozen=True)
class Ground:
    """A task whose items are ``parts`` of the original one's, and its lattice; ``whole``: they are the same."""

    task: Task
    parts: tuple[tuple[int, ...], ...]
    lattice: Lattice
    whole: bool


def ground_of(task: Task, limit: int) -> Ground:
    """The lattice of a task, contracted to at most ``limit`` downsets, which is 2 or more."""
    needs = tuple(map(tuple, needs_of(task)))
    turns = in_turn(task, needs)
    lattice = known_lattice(turns, limit)
    if lattice is not None:
        return Ground(task, tuple((item,) for item in range(len(needs))), lattice, True)
    parts = _parts(task, needs, turns, limit - 1)  # the empty one is nobody's
    lattice = known_lattice(_outer(turns, parts), limit)
    assert lattice is not None, "parts are made until there are few enough downsets"
    return Ground(contracted(task, parts), parts, lattice, False)


def _outer(needs: Sequence[Sequence[int]], parts: Sequence[Sequence[int]]) -> Inner:
    """What each part needs of those before it."""
    owner = {item: number for number, part in enumerate(parts) for item in part}
    outer = ({owner[need] for item in part for need in needs[item]} for part in parts)
    return tuple(tuple(sorted(each for each in own if each < number)) for number, own in enumerate(outer))


def _parts(task: Task, needs: Inner, turns: Inner, limit: int) -> Inner:
    blocks = list(pairwise(known_waists(needs)))
    alike: dict[tuple[Inner, Inner], list[int]] = {}
    for block in blocks:
        alike.setdefault((_within(needs, *block), _within(turns, *block)), []).append(block[0])
    sizes = {both: downset_count(both[1], limit) for both in alike}
    room = _room([size for both, size in sizes.items() for _ in alike[both]], limit)
    weights, places = _weights(task), _places(task)
    runs: dict[int, list[list[int]]] = {}
    for (inner, turning), firsts in alike.items():
        own = [list(range(len(inner)))] if room <= 1 else [[item] for item in range(len(inner))]
        if sizes[inner, turning] > room > 1:
            at = np.array(firsts)[:, None] + np.arange(len(inner))
            own = _runs(inner, turning, weights[at].mean(0), [tuple(column) for column in places[at].T.tolist()], room)
        for first in firsts:
            runs[first] = [[first + item for item in run] for run in own]
    parts = [run for first, _ in blocks for run in runs[first]]
    return tuple(tuple(sorted(part)) for part in _joined(parts, limit))


def _within(needs: Sequence[Sequence[int]], first: int, last: int) -> Inner:
    return tuple(tuple(need - first for need in needs[item] if need >= first) for item in range(first, last))


def _joined(parts: list[list[int]], limit: int) -> list[list[int]]:
    """Neighbours of a list of parts that is itself too long, put together."""
    width = -(-len(parts) // limit)
    return [[item for part in parts[at : at + width] for item in part] for at in range(0, len(parts), width)]


def _room(sizes: Sequence[int], limit: int) -> int:
    """The most downsets that a block may have so that all have ``limit`` together; smaller blocks leave theirs."""
    left = limit
    for position, size in enumerate(ordered := sorted(sizes)):
        share = left // (len(ordered) - position)
        if size > share:
            return max(1, share)
        left -= size
    return limit


def _runs(inner: Inner, turning: Inner, weights: Floats, places: Sequence[object], room: int) -> list[list[int]]:
    """The finest runs of a block that have at most ``room`` downsets, branches that are alike in turn."""
    order = _late(inner)
    steps = [
        (connected, alike, 2.0**-power)
        for connected, alike in ((True, True), (False, True), (False, False))
        for power in range(_FINEST, -2, -1)
    ]
    low, high = 0, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        if _fits(turning, _grown(inner, order, weights, places, *steps[middle]), room):
            high = middle
        else:
            low = middle + 1
    return _grown(inner, order, weights, places, *steps[low])


def _fits(turning: Inner, runs: Sequence[Sequence[int]], room: int) -> bool:
    return downset_count(_outer(turning, runs), room + 1) <= room


def _grown(
    inner: Inner,
    order: Sequence[int],
    weights: Floats,
    places: Sequence[object],
    connected: bool,
    alike: bool,
    share: float,
) -> list[list[int]]:
    runs: list[list[int]] = []
    held: set[int] = set()
    weight = 0.0
    for item in order:
        joins = (
            bool(runs)
            and weight + weights[item] <= share
            and (not alike or places[item] == places[runs[-1][-1]])
            and (not connected or not held.isdisjoint(inner[item]))
        )
        if joins:
            runs[-1].append(item)
        else:
            runs.append([item])
            held, weight = set(), 0.0
        held.add(item)
        weight += float(weights[item])
    return runs


def _late(inner: Inner) -> list[int]:
    """An order of computation in which what an item needs comes as late as can be."""
    needed = {need for own in inner for need in own}
    done: dict[int, None] = {}
    for end in (item for item in range(len(inner)) if item not in needed):
        stack = [end]
        while stack:
            waiting = [need for need in inner[stack[-1]] if need not in done]
            if waiting:
                stack.append(waiting[0])
            else:
                done[stack.pop()] = None
    return list(done)


def _weights(task: Task) -> Floats:
    """Each item's share of all work, the mean over the kinds, or of all memory, whichever is more."""
    times = np.array([kind.item_ms for kind in task.kinds], np.float64)
    sizes = np.array(task.item_bytes, np.float64)
    work = (times / np.maximum(times.sum(1, keepdims=True), 1e-300)).mean(0)
    shares: Floats = np.maximum(work, sizes / max(float(sizes.sum()), 1.0))
    return shares


def _places(task: Task) -> Ints:
    """For each item a number that tells which kinds may hold it."""
    found = np.zeros(len(task.item_bytes), np.int64)
    for kind in range(len(task.kinds)):
        barred = barred_items(task, kind)
        found = 2 * found + (0 if barred is None else barred)
    return found


def contracted(task: Task, parts: Sequence[Sequence[int]]) -> Task:
    """The task with ``parts`` as items, which are in an order of computation."""
    count = len(parts)
    owner = np.full(len(task.item_bytes) + 1, count, np.int64)
    for number, part in enumerate(parts):
        owner[list(part)] = number
    values = []
    for value in task.values:
        maker = int(owner[value.maker]) if value.maker >= 0 else -1
        readers = tuple(sorted({int(owner[reader]) for reader in value.readers} - {maker}))
        if readers or value.kinds is not None:
            values.append(replace(value, maker=maker, readers=readers))
    shared = tuple(Shared(tuple(sorted({int(owner[r]) for r in each.readers})), each.size) for each in task.shared)
    kinds = tuple(
        replace(
            kind,
            item_ms=tuple(sum(kind.item_ms[item] for item in part) for part in parts),
            barred=frozenset(int(owner[item]) for item in kind.barred),
            item_bytes=_summed(kind.item_bytes, parts),
        )
        for kind in task.kinds
    )
    sizes = _summed(task.item_bytes, parts)
    return replace(task, kinds=kinds, item_bytes=sizes, values=tuple(values), shared=shared)


def _summed(sizes: Sequence[int], parts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The sizes of ``parts``; nothing where no item has one."""
    return tuple(sum(sizes[item] for item in part) for part in parts) if sizes else ()
