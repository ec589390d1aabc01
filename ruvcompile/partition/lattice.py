"""All downsets of a graph of items, and the steps from one to the next: the ground on which partitions are searched.

A *downset* is a set of items that has all that its members need. One downset *covers* another when it has one item
more; these steps make all downsets a lattice, and every order of computation a path through it from nothing to all.
A cut lies at a downset; a stage is the difference of two of which one contains the other.

1. *Waists.* Where some k items are the only downset of that size, every path passes through it, whatever lies below it
   is inside it, and whatever lies above it contains it. The lattice falls into *blocks* between waists, which know
   nothing of each other: a chain of 50,000 items is 50,000 blocks of one step. The first k items (in any topological
   order) are a waist when each item that could come next reads from each of them that nobody among them reads.
2. *Shapes.* Blocks whose items depend on one another alike have equal lattices, found once: the layers of a decoder.
   A shape is found level by level: all downsets of k items, from those of k - 1 by one more item each. Equal ones meet
   by a sum of random numbers, one per item; that equal sums are equal sets is then checked, bit by bit.
3. *Rounds.* The k-th levels of all blocks are one round. A quantity that is handed on from downset to downset (a sum,
   a maximum) is computed in as many rounds as the highest block has levels, each a few operations on whole arrays, and
   from block to block by one running sum or maximum over the waists.

Work and memory grow with the steps, not with pairs of downsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]

_WIDEST_WAIST = 16
_MOST_BYTES = 2**28  # for the bits of one block's downsets
LONGEST = 4096
"""Rounds that a search has the time for; each costs tens of microseconds whatever its size."""


@dataclass(frozen=True)
class Round:
    """Steps into ``targets``: those into the i-th are ``sources`` and ``items`` from ``starts[i]`` to the next."""

    targets: Ints
    sources: Ints
    items: Ints
    starts: Ints


@dataclass(frozen=True)
class Shape:
    """The lattice of one block by itself: downset 0 is its bottom, then its inner ones; the top is not among them.

    ``bits[j]`` are the block's items in downset j, 64 to a word. ``levels`` lead into the inner ones, ``top`` into the
    top, whose number is ``len(bits)``.
    """

    bits: Bits
    levels: tuple[Round, ...]
    top: Round

    def holds_all(self, items: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Of each downset, whether it has all of ``items`` (numbers within the block)."""
        mask = _mask(items, self.bits.shape[1])
        found: npt.NDArray[np.bool_] = np.all((self.bits & mask) == mask, axis=1)
        return found

    def holds_any(self, items: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Of each downset, whether it has any of ``items`` (numbers within the block)."""
        found: npt.NDArray[np.bool_] = np.any(self.bits & _mask(items, self.bits.shape[1]) != 0, axis=1)
        return found


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
            known[inner] = _shape(inner, min(limit - total, _MOST_BYTES // (1 + len(inner) // 8)))
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


def _shape(needs: tuple[tuple[int, ...], ...], limit: int) -> Shape | None:
    """The lattice of a block by itself; None when it has more than ``limit`` downsets, or too many levels."""
    if len(needs) > LONGEST:
        return None
    if len(needs) == 1:
        zero = np.zeros(1, np.int64)
        return Shape(np.zeros((1, 1), np.uint64), (), Round(np.ones(1, np.int64), zero, zero, zero))
    for seed in range(1, 100):
        found, clash = _levels(needs, limit, seed)
        if not clash:
            return found
    raise AssertionError("one hundred draws of random numbers gave equal sums of unequal sets")


def _levels(needs: tuple[tuple[int, ...], ...], limit: int, seed: int) -> tuple[Shape | None, bool]:
    """Find the downsets level by level; the second result tells that two unequal ones had equal sums."""
    count, words = len(needs), (len(needs) + 63) // 64
    drawn = np.random.default_rng(seed).integers(1, 2**63, count, dtype=np.uint64)
    wanted = np.array([_mask(own, words) for own in needs])
    readers: list[list[int]] = [[] for _ in needs]
    for item, own in enumerate(needs):
        for need in own:
            readers[need].append(item)
    reader_sizes = np.array([len(each) for each in readers])
    reader_starts = np.concatenate([[0], np.cumsum(reader_sizes)[:-1]])
    reader_list = np.array([reader for each in readers for reader in each], np.int64)
    single = np.array([_mask([item], words) for item in range(count)])

    bits, sums, base, following = np.zeros((1, words), np.uint64), np.zeros(1, np.uint64), 0, 1
    owner = np.zeros(sum(not own for own in needs), np.int64)
    items = np.array([item for item, own in enumerate(needs) if not own], np.int64)
    kept, levels = [bits], list[Round]()
    for level in range(1, count + 1):
        # 1. One more item each; equal sets meet. Items that may come next one without the other double the downsets.
        if np.bincount(owner).max() > limit.bit_length():
            return None, False
        made = sums[owner] + drawn[items]
        sums, first, target = np.unique(made, return_index=True, return_inverse=True)
        below, bits = bits, bits[owner[first]] | single[items[first]]
        if ((below[owner] | single[items]) != bits[target]).any():
            return None, True
        # 2. The steps, in the order of their targets.
        order = np.argsort(target, kind="stable")
        starts = np.searchsorted(target[order], np.arange(len(sums)))
        numbers = np.arange(following, following + len(sums))
        step = Round(numbers, base + owner[order], items[order], starts)
        if level == count:
            return Shape(np.concatenate(kept), tuple(levels), step), False
        levels.append(step)
        kept.append(bits)
        base, following = following, following + len(sums)
        if following > limit:
            return None, False
        # 3. What can come next: what could before and was not taken, and readers whose needs are met now.
        sizes = np.bincount(owner, minlength=len(below))
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        parent, taken = owner[first], items[first]
        child, place = _spread(begins[parent], sizes[parent])
        old = items[place] != taken[child]
        after, spot = _spread(reader_starts[taken], reader_sizes[taken])
        reader = reader_list[spot]
        ready = ((bits[after] & wanted[reader]) == wanted[reader]).all(1)
        owner = np.concatenate([child[old], after[ready]])
        items = np.concatenate([items[place][old], reader[ready]])
        order = np.argsort(owner, kind="stable")
        owner, items = owner[order], items[order]
    raise AssertionError("the last level is the top")


def _spread(starts: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """For spans of a list: of every place in them, whose it is, and where it lies."""
    whose = np.repeat(np.arange(len(sizes)), sizes)
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return whose, np.arange(len(whose)) - before[whose] + starts[whose]


def _mask(items: Sequence[int], words: int) -> Bits:
    found = np.zeros(words, np.uint64)
    for item in items:
        found[item // 64] |= np.uint64(1) << np.uint64(item % 64)
    return found
