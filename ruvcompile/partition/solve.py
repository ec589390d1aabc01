"""The best partition of a task, exactly where that can be had, and how good it is where it cannot.

The least bottleneck is found by trials (``trial``). A bound that leads to the end is replaced by what the partition
found really takes; one that does not, by the least that would have led anywhere new. So both ends of the interval are
times of actual stages or links, and when they meet nothing lies between: the result is exact, not close. A trial
narrows the interval by half or more, in practice a dozen of them are enough. Several questions (the best for each set
of nodes) share their trials. For latency one pass answers everything.

Memory is told too loosely first (``limits`` says why): a partition found so that truly fits is the best. Where it does
not fit, memory is told too strictly, and the first answer stays as the bound.

Neither the order in which kinds are listed nor their names matter: they are sorted by what they cost first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ruvcompile.partition.bound import lower_bound, rows_of
from ruvcompile.partition.contract import Ground, ground_of
from ruvcompile.partition.fields import fields_of
from ruvcompile.partition.kinds import in_order
from ruvcompile.partition.path import Path
from ruvcompile.partition.states import Nodes, finals
from ruvcompile.partition.task import Partition, Stage, Task
from ruvcompile.partition.ties import quickest
from ruvcompile.partition.trial import Search
from ruvcompile.partition.weigh import evaluate, objections

_ABOUT, _EQUAL = 1 + 1e-9, 1 + 1e-12
"""Sums of the same times in another order differ in the last digits, so that equal ones are not."""
_MOST, _FEWEST, _NUMBERS = 100_000, 2_000, 40_000_000
"""Downsets that are searched, at most and at least; and numbers that a trial may keep: one per downset and state."""


def best(task: Task, stages: int | None = None) -> Partition | None:
    """The best partition into ``stages`` stages (None: into any number); None where none was found.

    Of equal bottlenecks it is the one with the least latency. With weights that are held once
    (``limits``), a partition that just fits may be missed; what is given always fits, and its bound is true.
    """
    return best_each(task, [sets_of(task, stages)])[0]


def frontier(task: Task, stages: int) -> Mapping[Nodes, Partition]:
    """The best partition over every choice of ``stages`` nodes, by how many of each kind it takes; those there are."""
    wanted = sets_of(task, stages)
    found = best_each(task, [[nodes] for nodes in wanted])
    return {nodes: each for nodes, each in zip(wanted, found, strict=True) if each is not None}


def sets_of(task: Task, stages: int | None = None) -> list[Nodes]:
    """All choices of so many nodes; no more than there are items."""
    most = len(task.item_bytes)
    choices = product(*(range(min(kind.count, most if stages is None else stages) + 1) for kind in task.kinds))
    there = (nodes for nodes in choices if task.there_are(nodes))
    if stages is None:
        return [nodes for nodes in there if 0 < sum(nodes) <= most]
    return [nodes for nodes in there if sum(nodes) == stages <= most and stages > 0]


def best_each(task: Task, questions: Sequence[Sequence[Nodes]]) -> list[Partition | None]:
    """Answers each question: the best over any of its sets of nodes, told as how many of each kind."""
    if not any(questions):
        return [None for _ in questions]
    sorted_task, places = in_order(task)
    asked = [sorted(tuple(nodes[place] for place in places) for nodes in question) for question in questions]
    answers = _answered(sorted_task, asked)
    return [answer and renamed(answer, places) for answer in answers]


def renamed(answer: Partition, places: Sequence[int]) -> Partition:
    """The answer to a task whose kinds were put in another order."""
    return replace(answer, stages=tuple(replace(stage, kind=places[stage.kind]) for stage in answer.stages))


def _answered(task: Task, questions: Sequence[Sequence[Nodes]]) -> list[Partition | None]:
    fewest = min(sum(nodes) for question in questions for nodes in question)
    ground = ground_of(task, room_for(questions))
    fields = fields_of(ground.task, ground.lattice, fewest)
    rows = rows_of(task)
    bounds = {
        nodes: lower_bound(task, rows, nodes, solver=not ground.whole) for question in questions for nodes in question
    }
    simple = [min(bounds[nodes] for nodes in question) for question in questions]
    loose = Answers(Search(fields, fields.loose), questions, simple)
    answers: list[Partition | None] = []
    again: list[int] = []
    for number, path in enumerate(loose.paths):
        bound = max(simple[number], loose.proven[number]) if ground.whole else simple[number]
        answer = None if path is None else weighed(task, ground, path).proven(bound, exact=ground.whole)
        if answer is not None:
            answer = replace(answer, relaxed_ms=simple[number], searched_ms=loose.proven[number])
        if answer is not None and "memory" in objections(task, answer.stages):
            again.append(number)
        answers.append(answer)
    if again:
        strict = Answers(
            Search(fields, fields.strict), [questions[number] for number in again], [simple[number] for number in again]
        )
        for number, path in zip(again, strict.paths, strict=True):
            known = answers[number]
            assert known is not None
            held = None if path is None else weighed(task, ground, path).proven(known.bound_ms, exact=False)
            answers[number] = held and replace(
                held,
                exact=ground.whole and not held.gap,
                relaxed_ms=known.relaxed_ms,
                searched_ms=known.searched_ms,
            )
    return answers


def room_for(questions: Sequence[Sequence[Nodes]]) -> int:
    """How many downsets there may be: the more states, the fewer."""
    parts = {part for question in questions for nodes in question for part in product(*(range(n + 1) for n in nodes))}
    states = sum(sum(number > 0 for number in part) for part in parts)
    return max(_FEWEST, min(_MOST, _NUMBERS // max(states, 1)))


def weighed(task: Task, ground: Ground, path: Path) -> Partition:
    """A path's stages of the task's own items, and what they cost."""
    lattice, before, stages = ground.lattice, set[int](), []
    for kind, _, downset in path.stages:
        now = lattice.members(downset)
        items = sorted(item for part in now - before for item in ground.parts[part])
        stages.append(Stage(kind, tuple(items)))
        before = now
    return evaluate(task, stages)


@dataclass
class _Interval:
    """Where an answer lies: none is below ``low``; ``path`` has ``high``."""

    nodes: Sequence[Nodes]
    low: float
    high: float = math.inf
    path: Path | None = None


class Answers:
    """The answers to several questions from one search: a path each, and a bound that the search has proved.

    ``ways`` has the times by which of equal bottlenecks one is quicker, where those are others (``quickest``).
    """

    def __init__(
        self,
        search: Search,
        questions: Sequence[Sequence[Nodes]],
        simple: Sequence[float],
        ways: Search | None = None,
    ) -> None:
        self._search = search
        if search.fields.task.objective == "latency":
            self.paths = self._least(questions)
            self.proven = [math.inf if path is None else path.value for path in self.paths]
            return
        spans = [_Interval(nodes, low) for nodes, low in zip(questions, simple, strict=True)]
        self._try(math.inf, [span for span in spans if span.low < math.inf])
        spans_open = [span for span in spans if span.path is not None]
        while spans_open := [span for span in spans_open if span.low < span.high]:
            span = min(spans_open, key=lambda each: each.low)
            self._try(_between(span), spans_open)
        self.proven = [span.high for span in spans]
        self.paths = [span.path and _quickest(search, span, ways or search) for span in spans]

    def _try(self, bound: float, spans: Sequence[_Interval]) -> None:
        """Narrow every interval that ``bound`` says something about."""
        open_ = [span for span in spans if span.low <= bound and (span.path is None or bound < span.high)]
        trial = self._search.reach(bound, {nodes for span in open_ for nodes in span.nodes})
        for span in open_:
            ends = [state for state in finals(span.nodes) if trial.ends[state][-1]]
            if not ends:
                nearest = min(self._search.nearest(trial, nodes) for nodes in span.nodes)
                span.low = max(nearest, math.nextafter(bound, math.inf))
                continue
            for state in ends:
                path = self._search.path(trial, state)
                if path.value < span.high:
                    span.high, span.path = path.value, path

    def _least(self, questions: Sequence[Sequence[Nodes]]) -> list[Path | None]:
        trial = self._search.least({nodes for question in questions for nodes in question})
        found = [self._search.quickest(trial, question) for question in questions]
        return [path and replace(path, value=took) for path, took in found]


def _quickest(search: Search, span: _Interval, ways: Search) -> Path | None:
    """Of equal bottlenecks the path with the least latency."""
    known = span.path
    assert known is not None
    most = known.through(ways.fields)
    quick = quickest(search, ways, span.nodes, known.value * _EQUAL, most=most * _ABOUT)
    return known if quick.path is None or (not quick.whole and quick.latency > most) else quick.path


def _between(span: _Interval) -> float:
    """The next bound to try: near the lower end while the upper one is far away."""
    if math.isinf(span.high) or span.low <= 0 or span.high / span.low < 1.02:
        middle = span.low + (span.high - span.low) / 2
        return middle if middle < span.high else span.low  # no number lies between two neighbours
    if math.isinf(span.high / span.low):
        return float(span.low**0.75 * span.high**0.25)
    return float(span.low * (span.high / span.low) ** 0.25)


__all__ = ["Answers", "best", "best_each", "frontier", "renamed", "room_for", "sets_of", "weighed"]
