"""Of all partitions whose bottleneck is at most so much, the one with the least latency; of equal ones the first.

The bottleneck is one stage's or one link's time. What the others do is free within it, and there are often many ways:
a stage may end here or there, a fast node come first or last. Near the least bottleneck few downsets are left in
question: those that a trial with that bound reaches, and from which the end can be reached. From the last stage back to
the first, each pair of such downsets is looked at, and for each beginning of a stage the way to the end that takes
least is kept.

Pairs are many where the bottleneck is due to one heavy item and the rest can lie as it likes. There only the most
promising ends of stages are kept, those of the partition already found among them; the result then is a good one within
the bound, not surely the best, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ruvcompile.partition.fields import Bools, Fields, Floats, Limits, summed
from ruvcompile.partition.lattice import Ints
from ruvcompile.partition.trial import Path, Search, State, rounded

_PAIRS = 4_000_000
_AT_ONCE = 1_000_000


@dataclass
class _Rest:
    """For a state, the downsets it may end at, what is left from there, and how it goes on: state and downset."""

    downsets: Ints
    takes: Floats
    state: list[State | None]
    ends: Ints


@dataclass(frozen=True)
class Quick:
    """What was found within a bound.

    Attributes:
        path: the quickest; its value is its own bottleneck. None where nothing is within the bound.
        latency: of ``path``, the ways from the head and back included.
        beyond: with no bound above the one asked for and below this is there anything that is quicker.
        whole: whether every pair was looked at.
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
    wanted: Collection[tuple[int, ...]],
    bound: float,
    known: Path,
    way: Fields | None = None,
    *,
    spare: Spare | None = None,
) -> Quick:
    """The path over any of ``wanted`` with the least latency that has no resource busier than ``bound``.

    Args:
        known: a path over one of ``wanted``; of too many pairs those of its downsets are looked at.
        way: the same with other times, where those and not the search's are what a step takes on its way.
        spare: pairs that may be looked at where there are too many, as long as these last.
    """
    fields = search.fields
    way = way or fields
    task, full = way.task, fields.lattice.count - 1
    trial = search.reach(bound, wanted)
    ends = np.array([last for _, _, last in known.stages])
    rests: dict[State, _Rest] = {}
    for state in search.finals(wanted):
        if trial.ends[state][full]:
            leave = task.leave_ms[state[1]] if task.leave_ms else 0.0
            rests[state] = _Rest(np.array([full]), np.array([leave]), [None], np.array([0]))
    firsts: list[tuple[float, int, State, int]] = []
    barred = [np.zeros(full + 1, np.int64) if b is None else summed(fields.lattice, b * 1) for b in fields.barred]
    beyond = min((search.nearest(trial, nodes) for nodes in wanted), default=math.inf)
    whole = True
    for state in sorted(trial.ends, key=lambda each: (-sum(each[0]), each)):
        if state not in rests:
            continue
        rest, kind = rests[state], state[1]
        pairs = _Pairs(fields, way, kind, search.limits[kind], barred[kind], bound, spare or Spare(0))
        if sum(state[0]) == 1:
            enter = task.enter_ms[kind] if task.enter_ms else 0.0
            takes, first = pairs.shortest(np.array([0]), rest, ends)
            if np.isfinite(takes[0]):
                firsts.append((enter + float(takes[0]), len(firsts), state, int(rest.downsets[first[0]])))
        else:
            for earlier in search.earlier(state):
                hop = task.hop(earlier[1], kind)
                link = fields.crossing * fields.task.hop(earlier[1], kind).ms_per_byte
                open_ = np.flatnonzero(trial.ends[earlier] & fields.opens[kind] & (link <= bound))
                takes, chosen = pairs.shortest(open_, rest, ends)
                there = np.isfinite(takes)
                open_, takes, chosen = open_[there], takes[there], chosen[there]
                takes = takes + hop.ms + way.crossing[open_] * hop.ms_per_byte
                _merge(rests, earlier, _Rest(open_, takes, [state] * len(open_), rest.downsets[chosen]))
        beyond, whole = min(beyond, pairs.beyond), whole and pairs.whole
    if not firsts:
        return Quick(None, math.inf, beyond, whole)
    latency, _, state, downset = min(firsts, key=lambda each: (rounded(each[0]), each[1]))
    stages = tuple(_followed(rests, state, downset))
    return Quick(Path(stages, busiest(fields, Path(stages, bound))), latency, beyond, whole)


def busiest(fields: Fields, path: Path) -> float:
    """The time of the slowest stage or link."""
    times = [fields.ends[kind][last] - fields.begins[kind][first] for kind, first, last in path.stages]
    links = [size * hop.ms_per_byte for hop, size in path.hops(fields)]
    return float(max(times + links))


class _Pairs:
    """Stages of one kind, by their first and last downsets; ``beyond`` and ``whole`` as of a ``Quick``."""

    def __init__(
        self, fields: Fields, way: Fields, kind: int, limits: Limits | None, barred: Ints, bound: float, spare: Spare
    ) -> None:
        self._spare = spare
        self._fields, self._kind, self._limits, self._barred, self._bound = fields, kind, limits, barred, bound
        self._way_begins, self._way_ends = way.begins[kind], way.ends[kind]
        self.beyond, self.whole = math.inf, True

    def shortest(self, begins: Ints, rest: _Rest, known: Ints) -> tuple[Floats, Ints]:
        """For each beginning, the least time to the end, infinite for none; and which of ``rest`` comes next."""
        fields, kind = self._fields, self._kind
        takes, chosen = np.full(len(begins), np.inf), np.zeros(len(begins), np.int64)
        order = np.argsort(rest.takes + self._way_ends[rest.downsets], kind="stable")
        early = fields.ends[kind][rest.downsets].min(initial=np.inf) - self._bound
        inside = fields.begins[kind][begins] >= early
        asking = np.flatnonzero(inside)
        if len(asking) < len(begins):
            self.beyond = min(self.beyond, float((early - fields.begins[kind][begins[~inside]]).min()) + self._bound)
        if not len(asking):
            return takes, chosen
        most = max(1, _PAIRS // len(asking))
        if len(order) > most and not self._spare.taken(len(asking) * len(order)):
            self.whole = False
            rank = np.arange(len(order)) + len(order) * ~np.isin(rest.downsets[order], known)
            order = order[np.sort(np.argsort(rank, kind="stable")[:most])]
        ends = rest.downsets[order]
        sums = rest.takes[order] + self._way_ends[ends]
        width = max(1, _AT_ONCE // len(order))
        for at in range(0, len(asking), width):
            those = asking[at : at + width]
            ok = self._allowed(begins[those], ends)
            first = ok.argmax(1)
            good = ok[np.arange(len(those)), first]
            takes[those[good]] = sums[first[good]] - self._way_begins[begins[those[good]]]
            chosen[those[good]] = order[first[good]]
        return takes, chosen

    def _allowed(self, begins: Ints, ends: Ints) -> Bools:
        fields, kind, lattice = self._fields, self._kind, self._fields.lattice
        takes = fields.ends[kind][ends] - fields.begins[kind][begins][:, None]
        ok: Bools = self._barred[begins][:, None] == self._barred[ends]
        if self._limits is not None:
            ok &= self._limits.needs[ends] <= self._limits.holds[begins][:, None]
        first, last = lattice.block[begins], lattice.block[ends]
        ok &= first[:, None] <= last
        for block in np.unique(first[np.isin(first, last)]):
            if block == len(lattice.shapes):
                ok[np.ix_(first == block, last == block)] = False
                continue
            rows, columns = np.flatnonzero(first == block), np.flatnonzero(last == block)
            bits, bottom = lattice.shapes[block].bits, lattice.bottoms[block]
            inner, outer = bits[begins[rows] - bottom], bits[ends[columns] - bottom]
            inside = begins[rows][:, None] != ends[columns]
            for word in range(bits.shape[1]):
                inside &= (inner[:, word][:, None] & ~outer[:, word]) == 0
            ok[np.ix_(rows, columns)] &= inside
        late = takes > self._bound
        self.beyond = min(self.beyond, float(takes[ok & late].min(initial=np.inf)))
        ok &= ~late
        return ok


def _merge(rests: dict[State, _Rest], state: State, new: _Rest) -> None:
    """Keep for each downset the way that takes less; of equal ones the one known before."""
    if not len(new.downsets):
        return
    old = rests.get(state)
    if old is None:
        rests[state] = new
        return
    downsets = np.concatenate([old.downsets, new.downsets])
    takes = np.concatenate([old.takes, new.takes])
    order = np.lexsort((np.arange(len(downsets)), takes, downsets))
    kept = order[np.concatenate([[True], np.diff(downsets[order]) > 0])]
    states = [*old.state, *new.state]
    ends = np.concatenate([old.ends, new.ends])[kept]
    rests[state] = _Rest(downsets[kept], takes[kept], [states[each] for each in kept], ends)


def _followed(rests: dict[State, _Rest], state: State, downset: int) -> list[tuple[int, int, int]]:
    """The stages from the first one's end on."""
    stages = [(state[1], 0, downset)]
    while True:
        rest = rests[state]
        at = int(np.flatnonzero(rest.downsets == downset)[0])
        following = rest.state[at]
        if following is None:
            return stages
        stages.append((following[1], downset, int(rest.ends[at])))
        state, downset = following, int(rest.ends[at])
