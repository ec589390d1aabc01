"""Branches that are alike are worked off in turn: the same partitions for fewer downsets.

Where a block (``lattice``) falls into branches that have nothing to do with each other, two of them may be equal item
by item: what items take on every kind, what they need of memory, what they read and make. Whichever of the two is
further on makes no difference then. Let a cut have D done of the first and E of the second. With the union of both done
of the first, and what both have in common of the second, at all cuts alike,

* cuts still follow each other, and every stage has as many items of each sort as before, in one branch or the other: it
  takes as long, needs as much memory, and its node may hold it;
* what crosses a cut is no more than before, for what is read by then in both is read by then in the second, and
  what is made in the first and not yet read, or the other way round, was so in one of them.

So nothing is lost if an item of the second branch comes only after its like in the first. ``m`` equal chains of ``k``
items have ``(k + 1) ** m`` downsets, and in turn as many as there are ways to choose k out of m + k.

Items that read a weight which several share are like no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from ruvcompile.partition.lattice import known_waists
from ruvcompile.partition.task import Task, Value

Needs = tuple[tuple[int, ...], ...]


def in_turn(task: Task, needs: Needs) -> Needs:
    """What each item needs, and of its likes in equal branches the one before."""
    wide = [(first, last) for first, last in pairwise(known_waists(needs)) if last - first > 1]
    looks, more = _Looks(task), dict[int, set[int]]()
    for first, last in wide:
        before: dict[object, list[int]] = {}
        for branch in _branches(needs, first, last):
            look = looks.of(branch, needs)
            pairs = list(zip(before.get(look, []), branch, strict=False))
            if all(one < other for one, other in pairs):
                more |= {other: {*needs[other], one} for one, other in pairs}
            before[look] = branch
    return (
        tuple(tuple(sorted(more[item])) if item in more else own for item, own in enumerate(needs)) if more else needs
    )


def _branches(needs: Sequence[Sequence[int]], first: int, last: int) -> list[list[int]]:
    """The items of a block, those together of which one needs another, or that both have to do with a third."""
    joined = list(range(last - first))

    def end(item: int) -> int:
        while joined[item] != item:
            joined[item] = joined[joined[item]]
            item = joined[item]
        return item

    for item in range(first, last):
        for need in needs[item]:
            if need >= first:
                joined[end(need - first)] = end(item - first)
    found: dict[int, list[int]] = defaultdict(list)
    for item in range(first, last):
        found[end(item - first)].append(item)
    return list(found.values())


class _Looks:
    """All that counts of an item here, told so that it is the same for its likes in other branches."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def of(self, branch: Sequence[int], needs: Sequence[Sequence[int]]) -> object:
        """Of all items of a branch, in their order."""
        place = {item: number for number, item in enumerate(branch)}
        return tuple(
            (self._cost(item), tuple(place.get(need, -1) for need in needs[item]), self._values(item, place))
            for item in branch
        )

    @cached_property
    def _touched(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for number, value in enumerate(self._task.values):
            for item in {value.maker, *value.readers}:
                found[item].append(number)
        return found

    @cached_property
    def _sharing(self) -> frozenset[int]:
        return frozenset(item for each in self._task.shared for item in each.readers)

    def _cost(self, item: int) -> object:
        own = tuple(
            (kind.item_ms[item], item in kind.barred, kind.item_bytes[item] if kind.item_bytes else 0)
            for kind in self._task.kinds
        )
        return own, self._task.item_bytes[item], item if item in self._sharing else -1

    def _values(self, item: int, place: dict[int, int]) -> object:
        return tuple(sorted(self._value(number, place) for number in self._touched[item]))

    def _value(self, number: int, place: dict[int, int]) -> tuple[object, ...]:
        """Makers and readers in the branch by their places in it; a value that others read too by itself."""
        value: Value = self._task.values[number]
        inside = tuple(sorted(place[reader] for reader in value.readers if reader in place))
        others = tuple(sorted(reader for reader in value.readers if reader not in place))
        kinds = tuple(sorted(value.kinds)) if value.kinds is not None else (-1,)
        what = (inside, value.size, value.crosses, kinds)
        if value.maker in place:
            return (True, place[value.maker], others, *what)
        return (False, value.maker, (number,) if others else (), *what)


__all__ = ["in_turn"]
