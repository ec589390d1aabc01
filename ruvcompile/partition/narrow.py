"""The least round from both sides: partitions with ever shorter ones, and what no round is shorter than.

With ``steps`` steps in the ring a round lasts ``max(steps * bottleneck, latency + more)``. Of all pairs of the two only
the front matters, and of that one point:

* nothing within a bottleneck of ``T / steps`` has a latency below what ``ties`` finds there; if that is at most T, the
  round is at most T;
* if it is more, no partition within that bottleneck has a smaller round than that, and all others have more than
  ``steps`` times the least time that was refused.

So a trial at T narrows the interval in which the least round lies from one side or the other, always to rounds of
actual partitions, and the ends meet. It starts between what cannot be beaten (``steps`` times the least bottleneck, the
least latency, and the round at the prices of ``relaxed``) and the best of the partitions that are found on the way.

That round at prices is Lagrange's bound over the true lattice, borders, links and memory included: with q[t] for each
ms of a node's time, a partition with round T has ``latency + sum of q[t] ms <= T - more + sum of n[t] q[t] T / steps``,
and the least that the left side can be is one pass for the least latency with other times.

Where to try next: the bound at prices is near, so not far above it. What a refused trial found is as much too long as
its T is too short, about, so a straight line to the best round known comes close; halves make sure. Where it found that
very round, one more trial right below it says that there is none between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ruvcompile.partition.ahead import ahead
from ruvcompile.partition.arrays import Floats
from ruvcompile.partition.path import Path
from ruvcompile.partition.relaxed import Prices
from ruvcompile.partition.states import Nodes, State
from ruvcompile.partition.ties import Spare, quickest
from ruvcompile.partition.trial import Search

_MOST_TRIALS, _FEWEST_TRIALS, _NUMBERS = 100, 4, 20_000_000
"""Trials, and numbers that they may look at: one per downset and state."""
_SPARE_PAIRS = 400_000_000
"""Pairs beyond what a trial looks at anyway, for all trials of an ask: seconds."""
_SAME, _CLOSE = 1 - 1e-9, 1 - 2e-3
"""Where not every pair can be looked at, the second is close enough."""
_ABOUT, _BELOW, _CAREFUL = 1 + 1e-9, 1 - 5e-10, 1 - 1e-12
"""Sums of the same times in another order differ in the last digits."""


@dataclass(frozen=True)
class Ask:
    """Over which sets of nodes, each told as how many of each kind; ``more_ms``: what a pass over any takes besides."""

    nodes: tuple[Nodes, ...]
    more_ms: float = 0.0


@dataclass
class Span:
    """Where the least round of an ask lies, and what ways were found, each with a shorter round than those before.

    Attributes:
        low: no round is shorter.
        narrowest: no bottleneck is less.
        relaxed: both as they are without a search, the bottleneck first.
        fractions: what no round is shorter than where items can be divided; 0 where that was not asked.
    """

    ask: Ask
    relaxed: tuple[float, float]
    fractions: float = 0.0
    low: float = 0.0
    narrowest: float = 0.0
    high: float = math.inf
    paths: list[Path] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        """Whether nothing lies between."""
        return self.low >= self.high * _SAME


class Narrowing:
    """Narrows spans; ``search`` has the times that make the bottleneck, ``ways`` those that make the latency."""

    def __init__(self, search: Search, ways: Search, steps: int) -> None:
        self._search, self._ways, self._steps = search, ways, steps

    def add(self, span: Span, path: Path | None) -> None:
        """Keep a path if its round is the shortest so far."""
        if path is None:
            return
        through = path.through(self._ways.fields) + span.ask.more_ms
        value = max(self._steps * path.busiest(self._search.fields), through)
        if value < span.high * _SAME:
            span.high = value
            span.paths.append(path)

    def price(self, span: Span, prices: Prices) -> None:
        """The round at prices: no round is shorter, and the way that has it may be a good one."""
        busy, way, time = self._search.fields, self._ways.fields, prices.time
        kinds = range(len(time))
        fields = replace(
            way,
            begins=tuple(way.begins[kind] + time[kind] * busy.begins[kind] for kind in kinds),
            ends=tuple(way.ends[kind] + time[kind] * busy.ends[kind] for kind in kinds),
        )
        priced = Search(fields, self._ways.limits)
        trial = priced.least(span.ask.nodes)
        least = math.inf
        for nodes in span.ask.nodes:
            path, took = priced.quickest(trial, [nodes])
            self.add(span, path)
            scarce = sum(number * each for number, each in zip(nodes, time, strict=True))
            least = min(least, (took + span.ask.more_ms) / (1 + scarce / self._steps))
        span.low = max(span.low, min(least * _CAREFUL, span.high))

    def narrow(self, span: Span, prices: Sequence[Prices]) -> None:
        """Trial after trial, until nothing lies between; on large ground no more than there is time for."""
        nodes, more, steps = span.ask.nodes, span.ask.more_ms, self._steps
        states = sum(sum(map(bool, each)) for each in nodes) * sum(nodes[0])
        most = max(_FEWEST_TRIALS, min(_MOST_TRIALS, _NUMBERS // (self._search.fields.lattice.count * states)))
        low, close, spare = span.low, _SAME, Spare(_SPARE_PAIRS)
        left, known = dict[State, Floats](), math.inf
        refused: tuple[float, float] | None = None
        for turn in range(most):
            if low >= span.high * _SAME or span.low >= span.high * close:
                return
            if span.high < known * _CLOSE:
                known = span.high
                left = ahead(self._search, self._ways, nodes, known / steps * _ABOUT, prices)
            target = self._target(turn, low, span, refused)
            if target >= span.high:
                return
            quick = quickest(
                *(self._search, self._ways, nodes, target / steps),
                most=(span.high - more) * _ABOUT,
                left=left,
                spare=spare,
            )
            round_ms = min(quick.latency + more, span.high)
            self.add(span, quick.path)
            refused = None
            if round_ms > target:
                refused = target, round_ms
                low = max(math.nextafter(target, math.inf), min(round_ms, steps * quick.beyond))
                if quick.whole:
                    span.low = max(span.low, min(low, span.high))
                else:
                    close = _CLOSE

    def _target(self, turn: int, low: float, span: Span, refused: tuple[float, float] | None) -> float:
        """A round between ``low`` and the shortest known; ``refused``: the last that was tried, and what was found."""
        width = span.high - low
        if refused is None:
            return low + width / (2 if turn else 4)
        target, found = refused
        if found >= span.high * _SAME:
            return max(low, span.high * _BELOW)
        if turn % 2:
            return low + width / 2
        spared = max(span.high - span.paths[-1].through(self._ways.fields) - span.ask.more_ms, 0.0)
        guess = target + (span.high - target) * (found - target) / (found - target + spared)
        return min(max(guess, low + width / 16), span.high - width / 16)


__all__ = ["Ask", "Narrowing", "Span"]
