"""The lattice of one block by itself: all downsets of a few items that depend on one another, level by level.

All downsets of k items come from those of k - 1 by one more item each. Equal ones meet by a sum of random numbers, one
per item; that equal sums are equal sets is then checked, bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ruvcompile.partition.arrays import Bits, Bools, Ints

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

    def holds_all(self, items: Sequence[int]) -> Bools:
        """Of each downset, whether it has all of ``items`` (numbers within the block)."""
        mask = _mask(items, self.bits.shape[1])
        found: Bools = np.all((self.bits & mask) == mask, axis=1)
        return found

    def holds_any(self, items: Sequence[int]) -> Bools:
        """Of each downset, whether it has any of ``items`` (numbers within the block)."""
        found: Bools = np.any(self.bits & _mask(items, self.bits.shape[1]) != 0, axis=1)
        return found


def shape_of(needs: tuple[tuple[int, ...], ...], limit: int) -> Shape | None:
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


__all__ = ["LONGEST", "Round", "Shape", "shape_of"]
