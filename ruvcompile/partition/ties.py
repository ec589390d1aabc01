"""Of all partitions whose bottleneck is at most so much, the one with the least latency; of equal ones the first.

The bottleneck is one stage's or one link's time. What the others do is free within it, and there are often many ways:
a stage may end here or there, a fast node come first or last. As for the least latency alone, one pass over all sets of
nodes finds for every downset where the stage that ends there had best begin. Mostly that stage is within the bound, and
nothing is left to ask. Where it is too long it must begin later, which is worse: then, of the downsets where it might,

* those before the bound allows it are no good,
* nor are those so bad that the way would take longer than ``most``, which is known to be possible, even if all that
  is left (``ahead``) took no longer than it must,

and what lies between is a narrow strip that is looked at pair by pair. Where even that is too much only its best part
is looked at; the result then is a good one within the bound, not surely the best, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ruvcompile.partition.arrays import Bools, Floats, Ints
from ruvcompile.partition.path import Path
from ruvcompile.partition.states import Nodes, State, rising
from ruvcompile.partition.sums import summed
from ruvcompile.partition.trial import Search, Trial

_PAIRS = 4_000_000
"""Of a kind and as many nodes: so many are looked at in any case."""
_FEW = 200_000
"""So many are looked at one and all, to know which bound would allow more."""
_AT_ONCE = 1_000_000
_WIDTH = 256


@dataclass(frozen=True)
class Quick:
    """What was found within a bound.

    Attributes:
        path: the quickest; its value is its own bottleneck. None where nothing is within the bound, and ``most``.
        latency: of ``path``, the ways from the head and back included.
        beyond: with no bound above the one asked for and below this is there anything that is quicker.
        whole: whether every pair was looked at that may matter.
    """

    path: Path | None
    latency: float
    beyond: float
    whole: bool


@dataclass
class Spare:
    """Pairs that may be looked at, all told."""

    left: int

    def taken(self, pairs: int) -> bool:
        """Take so many, if there are."""
        if pairs > self.left:
            return False
        self.left -= pairs
        return True


def quickest(
    search: Search,
    ways: Search,
    wanted: Sequence[Nodes],
    bound: float,
    *,
    most: float = math.inf,
    left: Mapping[State, Floats] | None = None,
    spare: Spare | None = None,
) -> Quick:
    """The path over any of ``wanted`` with the least latency that has no resource busier than ``bound``.

    Args:
        ways: the same as ``search`` with the times that a step takes on its way.
        most: nobody asks for a latency above that.
        left: what is left at least, per state and downset (``ahead``), of a way with no resource busier than any
            bound that ``beyond`` is to be true for.
        spare: pairs that may be looked at where there are too many, as long as these last.
    """
    reached, trial, goals = search.reach(bound, wanted), Trial(bound), np.array(sorted(wanted))
    beyond, whole = min((search.nearest(reached, nodes) for nodes in wanted), default=math.inf), True
    for kind, states in rising(wanted):
        took, begun, scores = ways.shortest(trial, kind, states, goals)
        pairs = _Pairs(search, kind, bound, spare or Spare(0))
        stage = search.fields.ends[kind][:, None] - search.fields.begins[kind][begun]
        for column, state in enumerate(states):
            own, first = took[:, column], begun[:, column]
            rest = left[state] if left is not None else np.zeros(len(own))
            there = reached.ends[state] & np.isfinite(own) & np.isfinite(rest) & (own + rest <= most)
            late = np.flatnonzero(there & (stage[:, column] > bound))
            own[~there] = math.inf
            if len(late):
                passing = ways.fields.ends[kind][late]
                best, first[late] = pairs.best(
                    late, scores[:, column], passing + rest[late] - most, reached.begun[state]
                )
                own[late] = passing - best
                late = late[~(own[late] + rest[late] <= most)]
                own[late] = math.inf
            trial.took[state], trial.begun[state], trial.ends[state] = own, first, np.isfinite(own)
        beyond, whole = min(beyond, pairs.beyond), whole and pairs.whole
    path, latency = ways.quickest(trial, wanted)
    return Quick(path and Path(path.stages, path.busiest(search.fields)), latency, beyond, whole)


class _Pairs:
    """Stages of one kind, by their first and last downsets; ``beyond`` and ``whole`` as of a ``Quick``."""

    def __init__(self, search: Search, kind: int, bound: float, spare: Spare) -> None:
        fields = search.fields
        self._fields, self._limits, self._bound, self._spare = fields, search.limits[kind], bound, spare
        self._begins, self._ends, self._work = fields.begins[kind], fields.ends[kind], fields.work[kind]
        barred = fields.barred[kind]
        self._barred = None if barred is None else summed(fields.lattice, barred * 1)
        self._left = _PAIRS
        self.beyond, self.whole = math.inf, True

    def best(self, ends: Ints, scores: Floats, floors: Floats, known: Ints) -> tuple[Floats, Ints]:
        """For each end of a stage the greatest score of any beginning that the bound allows, and which that is.

        Args:
            scores: of each downset; minus infinity where no stage may begin.
            floors: of each end, below which no score is worth anything.
            known: where a stage within the bound begins, by its end; for want of anything better.
        """
        found, begun = np.full(len(ends), -math.inf), np.full(len(ends), -1)
        open_ = np.flatnonzero(np.isfinite(scores))
        open_ = open_[np.argsort(-scores[open_], kind="stable")]
        early = self._ends[ends] - self._bound
        if len(open_) * len(ends) <= _FEW:
            return self._looked(ends, open_, scores, floors)
        self._passed_over(ends, early, open_)
        turn = np.argsort(early, kind="stable")
        for at in range(0, len(turn), _WIDTH):
            those = turn[at : at + _WIDTH]
            strip = (self._begins[open_] >= early[those].min()) & (scores[open_] >= floors[those].min())
            some = open_[strip & (self._work[open_] <= self._work[ends[those]].max())]
            most = len(some)
            if not self._taken(len(those) * len(some)):
                self.whole, most = False, max(1, _AT_ONCE // (4 * len(those)))
            found[those], begun[those] = self._first(ends[those], some[:most], scores)
            if most < len(some):
                fallback = scores[known[ends[those]]]
                better = fallback > found[those]
                found[those[better]], begun[those[better]] = fallback[better], known[ends[those[better]]]
        return found, begun

    def _taken(self, pairs: int) -> bool:
        if pairs <= self._left:
            self._left -= pairs
            return True
        return self._spare.taken(pairs)

    def _passed_over(self, ends: Ints, early: Floats, begins: Ints) -> None:
        """A bound that allows more is at least one that some stage needs to begin at the next downset before."""
        times = np.sort(self._begins[begins])
        before = np.searchsorted(times, early, "left") - 1
        needed = (self._ends[ends] - times[before])[before >= 0]
        self.beyond = min(self.beyond, float(needed.min(initial=math.inf)))

    def _looked(self, ends: Ints, begins: Ints, scores: Floats, floors: Floats) -> tuple[Floats, Ints]:
        """All pairs, and which bound would allow what is better than the best."""
        found, begun = self._first(ends, begins, scores)
        takes = self._ends[ends][:, None] - self._begins[begins]
        better = (scores[begins] > found[:, None]) & (scores[begins] >= floors[:, None]) & (takes > self._bound)
        if better.any():
            better &= self._allowed(ends, begins)
            self.beyond = min(self.beyond, float(takes[better].min(initial=math.inf)))
        return found, begun

    def _first(self, ends: Ints, begins: Ints, scores: Floats) -> tuple[Floats, Ints]:
        """Of ``begins``, the best ones first, the first that is allowed."""
        found, begun = np.full(len(ends), -math.inf), np.full(len(ends), -1)
        width = max(1, _AT_ONCE // max(len(begins), 1))
        for at in range(0, len(ends) if len(begins) else 0, width):
            those = ends[at : at + width]
            ok = self._ends[those][:, None] - self._begins[begins] <= self._bound
            ok &= self._allowed(those, begins)
            first = ok.argmax(1)
            good = ok[np.arange(len(those)), first]
            place = at + np.flatnonzero(good)
            begun[place] = begins[first[good]]
            found[place] = scores[begun[place]]
        return found, begun

    def _allowed(self, ends: Ints, begins: Ints) -> Bools:
        """``[ends, begins]``: whether there is a stage between them that a node of the kind may hold."""
        lattice = self._fields.lattice
        first, last = lattice.block[begins], lattice.block[ends]
        ok: Bools = first < last[:, None]
        several = np.diff(lattice.bottoms, append=lattice.count) > 1
        for block in np.unique(first[several[first] & np.isin(first, last)]):
            rows, columns = np.flatnonzero(last == block), np.flatnonzero(first == block)
            bits, bottom = lattice.shapes[block].bits, lattice.bottoms[block]
            outer, inner = bits[ends[rows] - bottom], bits[begins[columns] - bottom]
            inside = ends[rows][:, None] != begins[columns]
            for word in range(bits.shape[1]):
                inside &= (inner[:, word] & ~outer[:, word][:, None]) == 0
            ok[np.ix_(rows, columns)] = inside
        if self._barred is not None:
            ok &= self._barred[begins] == self._barred[ends][:, None]
        if self._limits is not None:
            ok &= self._limits.needs[ends][:, None] <= self._limits.holds[begins]
        return ok


__all__ = ["Quick", "Spare", "quickest"]
