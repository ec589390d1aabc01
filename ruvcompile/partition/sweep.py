"""The heart of the search: for every downset at once, where the best stage that ends there begins.

Let each downset I where a stage of kind t may begin have a rank, greater for better. Wanted is, for every J,

    best(J) = the greatest rank of any I inside J (J itself excepted) such that t may hold all of J without I,
              and these fit its memory; -1 where there is none

without ever looking at pairs. Three facts make it a matter of a few passes:

1. *Cover propagation.* I lies inside J exactly if a path of single items leads from I to J. So ``best(J)`` is the
   greatest, over the downsets J' that J covers, of ``best(J')`` and the rank of J' itself; a step whose item t may not
   hold passes nothing on. Work grows with the steps of the lattice. It is done within each block only.
2. *Between blocks* every downset of an earlier block is inside. What counts of a block is then one number, the greatest
   rank of those from which its top can be reached, and a running maximum over the blocks does the rest.
3. *Memory.* ``holds`` never falls from block to block, so that with all downsets sorted by block and then ``holds``,
   those that may begin a stage ending at J are one interval: a table of range maxima answers. Within a block that fits
   a node as a whole nothing can be too large. Within one that does not, each downset keeps a *front*: the ranks, each
   with its ``holds``, of which none is beaten in both. What is too early for J is too early for all above it, so
   fronts lose members on the way and stay small.
"""

from __future__ import annotations

import numpy as np

from ruvcompile.partition.arrays import Bools, Ints, Ranks
from ruvcompile.partition.fields import Fields
from ruvcompile.partition.lattice import Round
from ruvcompile.partition.limits import Limits
from ruvcompile.partition.sums import summed

_SHIFT, _BITS = 32, 20
_BEYOND, _WHOLE = (1 << _BITS) - 1, (1 << 2 * _BITS) - 1
"""Ranks are smaller than the first: there are never more downsets. The second is two of them side by side."""


class Sweep:
    """What does not change between sweeps of one kind, and the sweep itself."""

    def __init__(self, fields: Fields, kind: int, limits: Limits | None) -> None:
        lattice = fields.lattice
        self._lattice = lattice
        barred = fields.barred[kind]
        self._barred = barred
        count = np.zeros(lattice.count, np.int64) if barred is None else summed(lattice, barred.astype(np.int64))
        self._count = count
        at_waist = count[lattice.bottoms]
        self._passable = at_waist[1:] == at_waist[:-1]
        """Blocks that t may hold as a whole."""
        self._open = count == at_waist[lattice.block]
        """Downsets that t can reach from the bottom of their block."""
        inner = lattice.block[:-1]
        self._leaves = np.append(count[:-1] == at_waist[inner + 1], True)
        """Downsets from which t can reach the top of their block."""
        self._levels = np.zeros(lattice.count, np.int64)
        """How many items above the bottom of its block each downset is."""
        for level, step in enumerate(lattice.rounds, 1):
            self._levels[step.targets] = level
        self._limits = limits
        if limits is not None:
            self._prepare(limits)

    def best(self, ranks: Ranks) -> Ranks:
        """The greatest rank that a stage ending at each downset may begin with.

        ``ranks`` and the result are ``[downsets, columns]``, -1 where no stage may begin.
        """
        lattice = self._lattice
        found, tops = self._within(ranks)
        if self._limits is None:
            passed = _carried(tops, self._passable)[lattice.block]
            passed[~self._open] = -1
        else:
            passed = self._from_earlier(ranks)
            if len(self._tight):
                self._fronts(ranks, found)
        np.maximum(found, passed, out=found)
        return found

    def best_first(self, ranks: Ranks) -> Ranks:
        """The same where stages begin with nothing done before."""
        found = np.full_like(ranks, -1)
        there = self._count == 0
        if self._limits is not None:
            there &= self._limits.needs <= self._limits.holds[0]
        there[0] = False
        found[there] = ranks[0]
        return found

    def best_last(self, ranks: Ranks) -> Ranks:
        """The same for stages that end with everything done; -1 at all other downsets."""
        found = np.full_like(ranks, -1)
        there = self._count == self._count[-1]
        if self._limits is not None:
            there &= self._limits.holds >= self._limits.needs[-1]
        there[-1] = False
        found[-1] = ranks[there].max(0, initial=-1)
        return found

    def above(self, ranks: Ranks) -> Ranks:
        """The greatest rank that a stage beginning at each downset may end with, memory left out; -1 for none."""
        lattice, own, found = self._lattice, ranks.copy(), np.full_like(ranks, -1)
        *inner, bottoms = lattice.falls
        for step in inner:
            arriving = self._arriving(own, step)
            found[step.targets] = arriving
            own[step.targets] = np.maximum(arriving, ranks[step.targets])
        passed = _carried(self._arriving(own, bottoms)[::-1], self._passable[::-1])[::-1]
        found[self._leaves] = np.maximum(found, passed[np.minimum(lattice.block + 1, len(passed) - 1)])[self._leaves]
        found[lattice.bottoms] = passed
        return found

    def _within(self, ranks: Ranks) -> tuple[Ranks, Ranks]:
        """The best of the own block: at the inner downsets (-1 at the waists), and at each block's top."""
        own, found = ranks.copy(), np.full_like(ranks, -1)
        begun = (ranks >= 0).any(1)
        first = int(self._levels[begun].min(initial=len(self._lattice.rounds)))
        for step in self._lattice.rounds[first:]:
            arriving = self._arriving(own, step)
            found[step.targets] = arriving
            own[step.targets] = np.maximum(arriving, ranks[step.targets])
        return found, self._arriving(own, self._lattice.tops)

    def _arriving(self, own: Ranks, step: Round) -> Ranks:
        handed = own[step.sources]
        if self._barred is not None:
            handed[self._barred[step.items]] = -1
        return np.maximum.reduceat(handed, step.starts, axis=0) if len(step.starts) else handed

    def _prepare(self, limits: Limits) -> None:
        """Of the intervals of fact 3, first and last member; and the blocks that do not fit a node."""
        lattice = self._lattice
        self._sorted = np.lexsort((np.arange(lattice.count), limits.holds, lattice.block))
        first = np.searchsorted(limits.holds[self._sorted], limits.needs, "left")
        walls = np.maximum.accumulate(np.where(self._passable, 0, np.arange(len(self._passable))))
        walls = np.concatenate([[0], walls])
        first = np.maximum(first, lattice.bottoms[walls[lattice.block]])
        last = lattice.bottoms[lattice.block]
        first = np.where(self._open, np.minimum(first, last), last)
        self._asking = np.flatnonzero(first < last)
        self._first, self._last = first[self._asking], last[self._asking]
        self._level = np.frexp(self._last - self._first)[1] - 1
        full = limits.needs[lattice.bottoms[1:]] - limits.holds[lattice.bottoms[:-1]] > 0
        self._tight = np.flatnonzero(full & (np.diff(lattice.bottoms) > 1))
        if len(self._tight):
            self._held = np.unique(limits.holds, return_inverse=True)
            self._tight_rounds = [
                _only(step, np.isin(lattice.block[step.targets], self._tight)) for step in lattice.rounds
            ]
            self._tight_goals = [_owners(step) for step in self._tight_rounds]
            self._tight_inner = np.isin(lattice.block, self._tight)

    def _from_earlier(self, ranks: Ranks) -> Ranks:
        """The best of all blocks before that leave the stage small enough."""
        found = np.full_like(ranks, -1)
        row = np.where(self._leaves[:, None], ranks, np.int32(-1))[self._sorted]
        for level in range(int(self._level.max(initial=-1)) + 1):
            those = self._level == level
            first, last = self._first[those], self._last[those] - (1 << level)
            found[self._asking[those]] = np.maximum(row[first], row[last])
            row = np.maximum(row[: -(1 << level)], row[1 << level :])
        return found

    def _fronts(self, ranks: Ranks, found: Ranks) -> None:
        """Set ``found`` anew within the blocks that do not fit a node as a whole; all columns in one pass."""
        assert self._limits is not None
        found[self._tight_inner] = -1
        sizes, held = self._held
        enough = np.searchsorted(sizes, self._limits.needs, "left")
        own = np.ascontiguousarray(ranks.T)
        first, number = np.zeros(own.shape, np.int64), np.zeros(own.shape, np.int64)
        waists = self._lattice.bottoms[self._tight]
        column, at = np.nonzero(own[:, waists] >= 0)
        first[column, waists[at]], number[column, waists[at]] = np.arange(len(at)), 1
        # A rank with its ``holds`` is one number, and in a front the greatest comes first.
        pair = (own[column, waists[at]].astype(np.int64) << _BITS) + held[waists[at]]
        live = np.zeros(len(own), bool)
        live[column] = True
        opens = np.zeros((len(self._tight_rounds) + 1, len(own)), bool)
        at, column = np.nonzero((ranks >= 0) & self._tight_inner[:, None])
        opens[self._levels[at], column] = True
        for step, goals, joining in zip(self._tight_rounds, self._tight_goals, opens[1:], strict=True):
            width = len(step.targets)
            live |= joining
            (active,) = live.nonzero()
            if not len(active):
                continue
            # 1. All that arrives, and is not too large. Groups are the targets, column by column.
            cells = active[:, None], step.sources
            passing = number[cells]
            if self._barred is not None:
                passing[:, self._barred[step.items]] = 0
            passing = passing.ravel()
            group = np.repeat((np.arange(len(active))[:, None] * width + goals).ravel(), passing)
            place = np.repeat(first[cells].ravel() - (np.cumsum(passing) - passing), passing) + np.arange(len(group))
            pair = pair[place]
            alive = (pair & _BEYOND) >= enough[step.targets[group % width]]
            group, pair = group[alive], pair[alive]
            if len(group):
                starts = np.concatenate([[0], (group[1:] != group[:-1]).nonzero()[0] + 1])
                reached = group[starts]
                best = np.maximum.reduceat(pair, starts) >> _BITS
                found[step.targets[reached % width], active[reached // width]] = best
            # 2. What begins here joins, and what is beaten in both goes.
            if joining.any():
                row, new = (own[active[:, None], step.targets] >= 0).nonzero()
                group = np.concatenate([group, row * width + new])
                joined = (own[active[row], step.targets[new]].astype(np.int64) << _BITS) + held[step.targets[new]]
                pair = np.concatenate([pair, joined])
            # What arrives comes in sorted runs, which a stable sort merges: ten times as fast as one from scratch.
            sorted_ = np.sort((group << 2 * _BITS) + (_WHOLE - pair), kind="stable")
            running = _BEYOND - (sorted_ & _BEYOND) + (sorted_ >> 2 * _BITS << _SHIFT)
            kept = np.ones(len(group), bool)
            kept[1:] = running[1:] > np.maximum.accumulate(running)[:-1]
            sorted_ = sorted_[kept]
            group, pair = sorted_ >> 2 * _BITS, _WHOLE - (sorted_ & _WHOLE)
            many = np.bincount(group, minlength=len(active) * width)
            cells = active[:, None], step.targets
            number[cells] = many.reshape(len(active), width)
            first[cells] = (np.cumsum(many) - many).reshape(len(active), width)
            live[:] = False
            live[active[group // width]] = True


def _carried(arriving: Ranks, passable: Bools) -> Ranks:
    """At each waist, the best of all blocks before; nothing comes through a block that t may not hold whole."""
    walls = (np.cumsum(~passable).astype(np.int64) << _SHIFT)[:, None]
    running = np.maximum.accumulate(arriving + 1 + walls, axis=0) - walls - 1
    return np.concatenate([np.full((1, arriving.shape[1]), -1), running]).astype(np.int32)


def _owners(step: Round) -> Ints:
    """For each step of a round, which target it leads into."""
    return np.repeat(np.arange(len(step.targets)), np.diff(np.append(step.starts, len(step.sources))))


def _only(step: Round, kept: Bools) -> Round:
    """The part of a round that leads into some of its targets."""
    spans = np.diff(np.append(step.starts, len(step.sources)))
    steps = np.repeat(kept, spans)
    starts = np.cumsum(spans[kept]) - spans[kept]
    return Round(step.targets[kept], step.sources[steps], step.items[steps], starts)


__all__ = ["Sweep"]
