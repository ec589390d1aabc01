"""The partition with the least round: what a pipeline with several steps under way is to be cut for.

With ``steps`` steps in the ring a round lasts ``max(steps * bottleneck, latency + more)``: the slowest resource has
that many to deal with, and none is back before it has been everywhere (``more`` is what a pass takes besides). The
partition with the least bottleneck need not be the best, nor the one with the least latency: work moved to a faster
node makes the way shorter and that node busier. Where those two are one and the same nothing is left to do, as for
equal nodes and links it nearly always is; else the least round is searched between what they leave open (``narrow``).

What a step takes on its way may be told by other times than what keeps a resource busy (nodes that share cores): there
are two tasks then, alike but for times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from ruvcompile.partition.bound import lower_bound, rows_of
from ruvcompile.partition.contract import Ground, contracted, ground_of
from ruvcompile.partition.fields import fields_of
from ruvcompile.partition.kinds import in_order, listed
from ruvcompile.partition.narrow import Ask, Narrowing, Span
from ruvcompile.partition.relaxed import Prices, Relaxed
from ruvcompile.partition.solve import Answers, renamed, room_for, weighed
from ruvcompile.partition.states import Nodes
from ruvcompile.partition.task import Partition, Task
from ruvcompile.partition.trial import Search
from ruvcompile.partition.weigh import evaluate, objections

_MOST_SETS = 64
_SAME = 1 - 1e-9


@dataclass(frozen=True)
class Round:
    """What was found.

    Attributes:
        best: the partition with the least round, which is its value.
        narrowest: the one with the least bottleneck, which is its value; where its round is as short, the same one.
    """

    best: Partition
    narrowest: Partition


def rounds(task: Task, way: Task, steps: int, asks: Sequence[Ask]) -> list[Round | None]:
    """For each of ``asks`` the partition with the least round, of ``steps`` steps at a time; None where there is none.

    As in ``best``, what is given always fits, and its bound is true.

    Args:
        task: its times make the bottleneck. Its objective does not matter.
        way: the same with the times that make the latency.
    """
    if not any(ask.nodes for ask in asks):
        return [None for _ in asks]
    way, first = in_order(replace(way, objective="latency"))
    task, second = in_order(listed(replace(task, objective="throughput"), first))
    way, places = listed(way, second), tuple(first[place] for place in second)
    turned = [
        replace(ask, nodes=tuple(sorted(tuple(nodes[place] for place in places) for nodes in ask.nodes)))
        for ask in asks
    ]
    found = _Rounds(task, way, steps, turned).answers()
    return [each and Round(renamed(each.best, places), renamed(each.narrowest, places)) for each in found]


class _Rounds:
    """The ground that is searched, with both times of everything."""

    def __init__(self, task: Task, way: Task, steps: int, asks: Sequence[Ask]) -> None:
        self._task, self._way, self._steps, self._asks = task, way, steps, asks
        questions = [ask.nodes for ask in asks]
        fewest = min(sum(nodes) for own in questions for nodes in own)
        self._ground: Ground = ground_of(task, room_for(questions))
        small = way if self._ground.whole else contracted(way, self._ground.parts)
        self._fields = fields_of(self._ground.task, self._ground.lattice, fewest)
        self._ways = fields_of(small, self._ground.lattice, fewest)

    def answers(self) -> list[Round | None]:
        """One for each ask. Memory is told too loosely first, and too strictly where that was not enough."""
        fields, whole = self._fields, self._ground.whole
        spans = [Span(ask, relaxed) for ask, relaxed in zip(self._asks, self._relaxed(), strict=True)]
        self._search(Search(fields, fields.loose), Search(self._ways, self._ways.loose), spans)
        found = [[each for each in self._weighed(span) if self._fits(each)] for span in spans]
        again = [number for number, span in enumerate(spans) if len(found[number]) < len(span.paths)]
        if again:
            others = [Span(spans[number].ask, spans[number].relaxed) for number in again]
            self._search(Search(fields, fields.strict), Search(self._ways, self._ways.strict), others)
            for number, span in zip(again, others, strict=True):
                found[number] += self._weighed(span)
        answers: list[Round | None] = []
        for span, some in zip(spans, found, strict=True):
            if not some:
                answers.append(None)
                continue
            narrowest = min(some, key=lambda each: (each.bottleneck_ms, each.value_ms))
            best = min(some, key=lambda each: each.value_ms)
            if narrowest.value_ms * _SAME <= best.value_ms:
                best = narrowest
            narrow = replace(narrowest, value_ms=narrowest.bottleneck_ms)
            slowest, through = span.relaxed
            answers.append(
                Round(
                    _proven(best, max(self._steps * slowest, through, span.fractions), span.low, whole=whole),
                    _proven(narrow, slowest, span.narrowest, whole=whole),
                )
            )
        return answers

    def _relaxed(self) -> list[tuple[float, float]]:
        """Of each ask, what no bottleneck and no pass is below: without a search."""
        solver = not self._ground.whole
        rows, way_rows = rows_of(self._task), rows_of(self._way)
        found = []
        for ask in self._asks:
            slowest = (lower_bound(self._task, rows, nodes, solver=solver) for nodes in ask.nodes)
            ways = (
                lower_bound(self._way, way_rows, nodes, solver=solver) + _least_hops(self._way, nodes)
                for nodes in ask.nodes
            )
            found.append((min(slowest, default=math.inf), min(ways, default=math.inf) + ask.more_ms))
        return found

    def _weighed(self, span: Span) -> list[Partition]:
        """Partitions whose value is their round."""
        found = []
        for path in span.paths:
            each = weighed(self._task, self._ground, path)
            latency = evaluate(self._way, each.stages).latency_ms
            value = max(self._steps * each.bottleneck_ms, latency + span.ask.more_ms)
            found.append(replace(each, latency_ms=latency, value_ms=value))
        return found

    def _fits(self, answer: Partition) -> bool:
        return "memory" not in objections(self._task, answer.stages)

    def _search(self, search: Search, ways: Search, spans: Sequence[Span]) -> None:
        """Narrow every span as far as it goes."""
        narrowing = Narrowing(search, ways, self._steps)
        slowest = [span.relaxed[0] for span in spans]
        narrow = Answers(search, [span.ask.nodes for span in spans], slowest, ways)
        for span, path, proven in zip(spans, narrow.paths, narrow.proven, strict=True):
            span.narrowest, span.low = proven, max(self._steps * proven, span.relaxed[1])
            narrowing.add(span, path)
        open_ = [span for span in spans if span.paths and not span.closed]
        if open_:
            relaxed = Relaxed(self._task, self._way, self._steps)
            for span in open_:
                prices = self._priced(relaxed, span)
                narrowing.price(span, prices)
                narrowing.narrow(span, (prices, relaxed.none))

    def _priced(self, relaxed: Relaxed, span: Span) -> Prices:
        """What no round is shorter than where items can be divided, if there are few sets of nodes; and its prices."""
        nodes, more = span.ask.nodes, span.ask.more_ms
        found = [relaxed.bound(each, more + _least_hops(self._way, each)) for each in nodes[:_MOST_SETS]]
        fractions, prices = min(found, key=lambda each: each[0])
        if len(nodes) <= _MOST_SETS:
            span.fractions = fractions
            span.low = max(span.low, fractions)
        return prices


def _proven(answer: Partition, relaxed: float, searched: float, *, whole: bool) -> Partition:
    """With both bounds; that of a search over parts is none of the task."""
    proven = answer.proven(max(relaxed, searched) if whole else relaxed, exact=False)
    return replace(proven, exact=whole and not proven.gap, relaxed_ms=relaxed, searched_ms=searched)


def _least_hops(task: Task, nodes: Nodes) -> float:
    """The shortest ways there are between as many nodes, and from the head and back."""
    used = [kind for kind, number in enumerate(nodes) if number]
    pairs = list(product(used, used))
    hops = [task.hop(one, two).ms for one, two in pairs if one != two or nodes[one] > 1]
    return (sum(nodes) - 1) * min(hops, default=0.0) + min(task.ends_ms(one, two) for one, two in pairs)


__all__ = ["Ask", "Round", "rounds"]
