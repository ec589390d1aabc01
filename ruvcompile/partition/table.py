"""Every way to cut a task into so many stages, listed where there are few enough.

Several pipelines that share their cuts are chosen from it: the cuts that are best for each of them by itself need not
be the best for all together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ruvcompile.partition.arrays import Bools, Floats, Ints
from ruvcompile.partition.fields import Fields, fields_of, needs_of
from ruvcompile.partition.lattice import Lattice, known_lattice
from ruvcompile.partition.task import Task

_MOST_DOWNSETS = 2_000
"""Every pair of them is looked at."""


@dataclass(frozen=True)
class Table:
    """All ways to cut, ``[ways, stages + 1]`` downsets: the first is empty, the last everything."""

    lattice: Lattice
    cuts: Ints

    def items(self, way: int) -> tuple[tuple[int, ...], ...]:
        """The items of each stage."""
        held = [self.lattice.members(int(downset)) for downset in self.cuts[way]]
        return tuple(tuple(sorted(after - before)) for before, after in pairwise(held))

    def stage_ms(self, task: Task) -> Floats:
        """``[kinds, ways, stages]``: the time of each stage on each kind; infinite where it may not be or not fit."""
        fields, first, last = self._fields(task), self.cuts[:, :-1], self.cuts[:, 1:]
        found = []
        for kind in range(len(task.kinds)):
            times = fields.ends[kind][last] - fields.begins[kind][first]
            times[~(fields.opens[kind][first] & self._held(task, fields, kind))] = np.inf
            found.append(times)
        return np.array(found)

    def crossing(self, task: Task) -> Floats:
        """``[ways, stages + 1]``: bytes that come in, cross each cut, and go out."""
        return self._fields(task).crossing[self.cuts]

    def _fields(self, task: Task) -> Fields:
        return fields_of(task, self.lattice, self.cuts.shape[1] - 1)

    def _held(self, task: Task, fields: Fields, kind: int) -> Bools:
        """Which stages a node of a kind may hold, and has the memory for."""
        held = self._members()
        first, last = self.cuts[:, :-1], self.cuts[:, 1:]

        def within(items: Ints) -> Ints:
            sums = held @ items
            return np.asarray(sums[last] - sums[first])

        own, shared = task.sized(kind)
        need = within(np.array(own, np.int64))
        for each in shared:
            readers = np.zeros(len(own), np.int64)
            readers[list(each.readers)] = 1
            need += each.size * (within(readers) > 0)
        allowed: Bools = need + task.runtime_bytes <= task.kinds[kind].memory
        barred = fields.barred[kind]
        if barred is not None:
            allowed &= within(barred.astype(np.int64)) == 0
        return allowed

    def _members(self) -> Ints:
        """``[downsets, items]``: 1 where a downset has an item."""
        return _members(self.lattice)


def table_of(task: Task, stages: int, most: int) -> Table | None:
    """All ways to cut into ``stages`` stages, in so far as values may cross; None for more than ``most``."""
    needs = tuple(map(tuple, needs_of(task)))
    lattice = known_lattice(needs, _MOST_DOWNSETS)
    if lattice is None:
        return None
    last = lattice.count - 1
    if stages == 1:
        return Table(lattice, np.array([[0, last]]))
    held = _members(lattice).astype(np.float32)
    inside = held @ (1 - held.T) == 0
    np.fill_diagonal(inside, False)
    legal = fields_of(task, lattice, stages).legal.copy()
    legal[[0, last]] = False
    inside[:, ~legal] = False
    return _grown(lattice, inside, stages, most)


def _grown(lattice: Lattice, inside: Bools, stages: int, most: int) -> Table | None:
    """Cut after cut, each behind the one before."""
    last = lattice.count - 1
    ways = np.zeros((1, 1), np.int64)
    for _ in range(stages - 1):
        if inside.sum(1)[ways[:, -1]].sum() > most:
            return None
        at, cut = np.nonzero(inside[ways[:, -1]])
        ways = np.concatenate([ways[at], cut[:, None]], axis=1)
    return Table(lattice, np.concatenate([ways, np.full((len(ways), 1), last)], axis=1))


def _members(lattice: Lattice) -> Ints:
    count = int(lattice.waists[-1])
    found = np.zeros((lattice.count, count), np.int64)
    for downset in range(lattice.count):
        found[downset, list(lattice.members(downset))] = 1
    return found


__all__ = ["Table", "table_of"]
