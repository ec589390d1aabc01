"""All downsets of a graph of items, and the steps from one to the next: the ground on which partitions are searched.

A *downset* is a set of items that has all that its members need. One downset *covers* another when it has one item
more; these steps make all downsets a lattice, and every order of computation a path through it from nothing to all.
A cut lies at a downset; a stage is the difference of two of which one contains the other.

1. *Waists.* Where some k items are the only downset of that size, every path passes through it, whatever lies below it
   is inside it, and whatever lies above it contains it. The lattice falls into *blocks* between waists, which know
   nothing of each other: a chain of 50,000 items is 50,000 blocks of one step. The first k items (in any topological
   order) are a waist when each item that could come next reads from each of them that nobody among them reads.
2. *Shapes.* Blocks whose items depend on one another alike have equal lattices, found once: the layers of a decoder.
   ``block`` finds them, level by level.
3. *Rounds.* The k-th levels of all blocks are one round. A quantity that is handed on from downset to downset (a sum,
   a maximum) is computed in as many rounds as the highest block has levels, each a few operations on whole arrays, and
   from block to block by one running sum or maximum over the waists.

Work and memory grow with the steps, not with pairs of downsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from ruvcompile.partition.arrays import Ints
from ruvcompile.partition.block import Round, Shape, shape_of

_WIDEST_WAIST = 16
_MOST_BYTES = 2**28  # for the bits of one block's downsets


@dataclass(frozen=True)
class Lattice:
    """Every downset once: block after block, in each its bottom first; the last one is all items.

    Attributes:
        waists: sizes of the waists, 0 and n included; block b has the items ``waists[b]`` to ``waists[b + 1]``.
        bottoms: number of the downset at each waist.
        block: of each downset, the block it is the bottom or an inner one of; the last one has a block of its own.
        owner: of each item, its block.
        shapes: of each block.
        rounds: into all inner downsets.
        tops: into the waists but the first; its targets count blocks.
    """

    waists: Ints
    bottoms: Ints
    block: Ints
    owner: Ints
    shapes: tuple[Shape, ...]
    rounds: tuple[Round, ...]
    tops: Round

    @property
    def count(self) -> int:
        """How many downsets there are."""
        return len(self.block)

    @cached_property
    def falls(self) -> tuple[Round, ...]:
        """All steps again, downwards: from the highest inner downsets to the bottoms; ``sources`` cover ``targets``."""
        top = np.repeat(self.bottoms[self.tops.targets + 1], _spans(self.tops))
        level = np.zeros(self.count, np.int64)
        for height, step in enumerate(self.rounds, 1):
            level[step.targets] = height
        height_of = level[self.tops.sources]
        found = []
        for height in range(len(self.rounds), -1, -1):
            those = height_of == height
            lower, upper, items = self.tops.sources[those], top[those], self.tops.items[those]
            if height < len(self.rounds):
                step = self.rounds[height]
                lower = np.concatenate([lower, step.sources])
                upper = np.concatenate([upper, np.repeat(step.targets, _spans(step))])
                items = np.concatenate([items, step.items])
            order = np.argsort(lower, kind="stable")
            targets, starts = np.unique(lower[order], return_index=True)
            found.append(Round(targets, upper[order], items[order], starts))
        return tuple(found)

    def members(self, downset: int) -> set[int]:
        """The items of a downset."""
        block = int(self.block[downset])
        first = int(self.waists[block])
        found = set(range(first))
        if downset > self.bottoms[block]:
            row = self.shapes[block].bits[downset - self.bottoms[block]]
            inside = np.unpackbits(row.view(np.uint8), bitorder="little")
            found.update((first + np.flatnonzero(inside)).tolist())
        return found


def lattice_of(needs: Sequence[Sequence[int]], limit: int) -> Lattice | None:
    """The downsets of items of which item i needs ``needs[i]``, all before it; None for more than ``limit``."""
    waists = waists_of(needs)
    known: dict[tuple[tuple[int, ...], ...], Shape | None] = {}
    shapes: list[Shape] = []
    total = 1
    for first, last in pairwise(waists):
        inner = tuple(tuple(need - first for need in needs[item] if need >= first) for item in range(first, last))
        if inner not in known:
            known[inner] = shape_of(inner, min(limit - total, _MOST_BYTES // (1 + len(inner) // 8)))
        shape = known[inner]
        total += len(shape.bits) if shape is not None else limit
        if shape is None or total > limit:
            return None
        shapes.append(shape)
    return _glued(np.array(waists), tuple(shapes))


@lru_cache(maxsize=4)
def known_lattice(needs: tuple[tuple[int, ...], ...], limit: int) -> Lattice | None:
    """``lattice_of``, remembered: a plan asks for the same one for every shape of the fleet."""
    return lattice_of(needs, limit)


@lru_cache(maxsize=4096)
def downset_count(needs: tuple[tuple[int, ...], ...], limit: int) -> int:
    """How many downsets there are, the empty one not counted; ``limit + 1`` for more than that. Remembered."""
    lattice = lattice_of(needs, limit + 1)
    return limit + 1 if lattice is None else lattice.count - 1


@lru_cache(maxsize=4)
def known_waists(needs: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """``waists_of``, remembered."""
    return tuple(waists_of(needs))


def waists_of(needs: Sequence[Sequence[int]]) -> list[int]:
    """The sizes of the waists, 0 and all items included."""
    count = len(needs)
    readers: list[list[int]] = [[] for _ in range(count)]
    for item, own in enumerate(needs):
        for need in own:
            readers[need].append(item)
    missing = [len(own) for own in needs]
    ready = {item for item in range(count) if not missing[item]}
    ends: set[int] = set()
    found = [0]
    for item in range(count):
        ready.discard(item)
        ends.difference_update(needs[item])
        ends.add(item)
        for reader in readers[item]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.add(reader)
        narrow = item == count - 1 or len(ends) <= _WIDEST_WAIST
        if narrow and all(len(ready.intersection(readers[end])) == len(ready) for end in ends):
            found.append(item + 1)
    return found


def _glued(waists: Ints, shapes: tuple[Shape, ...]) -> Lattice:
    sizes = np.array([len(shape.bits) for shape in shapes], np.int64)
    bottoms = np.concatenate([[0], np.cumsum(sizes)])
    block = np.repeat(np.arange(len(shapes) + 1), np.concatenate([sizes, [1]]))
    alike: dict[int, list[int]] = {}
    for number, shape in enumerate(shapes):
        alike.setdefault(id(shape), []).append(number)
    groups = [(shapes[numbers[0]], np.array(numbers)) for numbers in alike.values()]
    rounds = []
    for level in range(max((len(shape.levels) for shape in shapes), default=0)):
        those = [(shape.levels[level], blocks) for shape, blocks in groups if level < len(shape.levels)]
        rounds.append(_joined([_tiled(own, bottoms[blocks], waists[blocks]) for own, blocks in those]))
    tops = []
    for shape, blocks in groups:
        tiled = _tiled(shape.top, bottoms[blocks], waists[blocks])
        tops.append(Round(blocks, tiled.sources, tiled.items, tiled.starts))
    owner = np.repeat(np.arange(len(shapes)), np.diff(waists))
    return Lattice(waists, bottoms, block, owner, shapes, tuple(rounds), _sorted(_joined(tops)))


def _tiled(level: Round, bottoms: Ints, items: Ints) -> Round:
    """A level of a shape, for every block that has that shape."""
    steps = len(level.sources) * np.arange(len(bottoms))
    return Round(
        (bottoms[:, None] + level.targets).ravel(),
        (bottoms[:, None] + level.sources).ravel(),
        (items[:, None] + level.items).ravel(),
        (steps[:, None] + level.starts).ravel(),
    )


def _joined(parts: Sequence[Round]) -> Round:
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.sources) for part in parts[:-1])])
    return Round(
        np.concatenate([part.targets for part in parts]),
        np.concatenate([part.sources for part in parts]),
        np.concatenate([part.items for part in parts]),
        np.concatenate([part.starts + number for part, number in zip(parts, before, strict=True)]),
    )


def _sorted(tops: Round) -> Round:
    sizes = np.diff(np.concatenate([tops.starts, [len(tops.sources)]]))
    owner = np.repeat(tops.targets, sizes)
    steps, order = np.argsort(owner, kind="stable"), np.argsort(tops.targets)
    starts = np.concatenate([[0], np.cumsum(sizes[order])[:-1]])
    return Round(tops.targets[order], tops.sources[steps], tops.items[steps], starts)


def _spans(step: Round) -> Ints:
    """How many steps lead into each target."""
    return np.diff(np.append(step.starts, len(step.sources)))


__all__ = ["Lattice", "Round", "downset_count", "known_lattice", "known_waists", "lattice_of", "waists_of"]
