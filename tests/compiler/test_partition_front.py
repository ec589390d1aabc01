"""The least round against trying everything: it needs neither the least bottleneck nor the least latency."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ruvcompile.partition import (
    Ask,
    Hop,
    Kind,
    Round,
    Task,
    Value,
    best,
    objections,
    rounds,
    sets_of,
    solve,
    ties,
    without_limits,
)
from ruvcompile.partition.ahead import ahead
from ruvcompile.partition.fields import fields_of, needs_of
from ruvcompile.partition.lattice import lattice_of
from ruvcompile.partition.narrow import Narrowing, Span
from ruvcompile.partition.relaxed import Prices, Relaxed
from ruvcompile.partition.trial import Search
from tests.partitions import Exhaustive, Nodes
from tests.strategies import tasks

QUICK = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(QUICK, max_examples=3000)
Check = Callable[[Task, Task, int, int, float], None]
STAGES, STEPS, MORE = st.integers(1, 3), st.integers(1, 4), st.sampled_from([0.0, 3.0, -4.0])


@st.composite
def both(draw: st.DrawFn, **more: Any) -> tuple[Task, Task]:
    """A task, and the same with other times where one is on its way."""
    task = draw(tasks(**more))
    if draw(st.booleans()):
        return task, task
    shares = draw(st.lists(st.sampled_from([0.5, 1.0]), min_size=len(task.kinds), max_size=len(task.kinds)))
    kinds = tuple(
        replace(kind, item_ms=tuple(share * ms for ms in kind.item_ms), stage_ms=share * kind.stage_ms)
        for kind, share in zip(task.kinds, shares, strict=True)
    )
    return task, replace(task, kinds=kinds)


def wanted(task: Task, way: Task, stages: int, steps: int, more: float) -> dict[Nodes, tuple[float, float]]:
    """For every choice of nodes the least round, and the least bottleneck."""
    found: dict[Nodes, tuple[float, float]] = {}
    busy, through = Exhaustive(task), Exhaustive(way)
    for kinds, cuts in busy.all(stages):
        nodes = tuple(kinds.count(kind) for kind in range(len(task.kinds)))
        bottleneck, latency = busy.cost(kinds, cuts)[0], through.cost(kinds, cuts)[1]
        value = max(steps * bottleneck, latency + more)
        known = found.get(nodes, (value, bottleneck))
        found[nodes] = min(known[0], value), min(known[1], bottleneck)
    return found


def check(task: Task, way: Task, stages: int, steps: int, more: float) -> None:
    best_of, sets = wanted(task, way, stages, steps, more), sets_of(task, stages)
    answers = rounds(task, way, steps, [Ask((nodes,), more) for nodes in sets] + [Ask(tuple(sets), more)])
    for nodes, answer in zip(sets, answers, strict=False):
        assert (answer is None) == (nodes not in best_of)
        if answer is not None:
            assert answer.best.nodes(len(task.kinds)) == nodes
            judge(task, answer, best_of[nodes], steps, more)
    if best_of:
        least = min(value for value, _ in best_of.values()), min(bottleneck for _, bottleneck in best_of.values())
        whole = answers[-1]
        assert whole is not None
        judge(task, whole, least, steps, more)


def judge(task: Task, answer: Round, least: tuple[float, float], steps: int, more: float) -> None:
    for partition in (answer.best, answer.narrowest):
        assert objections(task, partition.stages) == []
        assert partition.exact
        assert partition.bound_ms == pytest.approx(partition.value_ms)
    assert answer.best.value_ms == pytest.approx(least[0])
    assert answer.best.value_ms == pytest.approx(max(steps * answer.best.bottleneck_ms, answer.best.latency_ms + more))
    assert answer.narrowest.value_ms == answer.narrowest.bottleneck_ms == pytest.approx(least[1])


def check_as_if_large(task: Task, way: Task, stages: int, steps: int, more: float) -> None:
    """Only strips of pairs are looked at, as where there are too many for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ties, "_FEW", 0)
        patch.setattr(ties, "_WIDTH", 2)
        check(task, way, stages, steps, more)


@pytest.mark.parametrize("checked", [check, check_as_if_large])
@given(pair=both(), stages=STAGES, steps=STEPS, more=MORE)
@QUICK
def test_equals_trying_everything(
    checked: Check, pair: tuple[Task, Task], stages: int, steps: int, more: float
) -> None:
    checked(*pair, stages, steps, more)


@pytest.mark.system
@pytest.mark.parametrize("checked", [check, check_as_if_large])
@given(pair=both(items=7), stages=STAGES, steps=STEPS, more=MORE)
@LONG
def test_equals_trying_everything_thousands_of_times(
    checked: Check, pair: tuple[Task, Task], stages: int, steps: int, more: float
) -> None:
    checked(*pair, stages, steps, more)


@given(both(shared=True), STAGES, STEPS, st.sampled_from([1, 3, 1000]), st.integers(2, 1000))
@settings(QUICK, max_examples=150)
def test_what_is_not_looked_at_is_never_claimed(
    pair: tuple[Task, Task], stages: int, steps: int, pairs: int, most: int
) -> None:
    """Weights held once, few pairs, few downsets: what is given fits, and the bound is below all there is."""
    best_of, sets = wanted(*pair, stages, steps, 0.0), sets_of(pair[0], stages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ties, "_PAIRS", pairs)
        patch.setattr(ties, "_FEW", pairs // 2)
        patch.setattr(ties, "_AT_ONCE", 4 * pairs)
        patch.setattr("ruvcompile.partition.narrow._SPARE_PAIRS", pairs)
        patch.setattr(solve, "_MOST", most)
        patch.setattr(solve, "_FEWEST", most)
        answers = rounds(*pair, steps, [Ask((nodes,)) for nodes in sets])
    for nodes, answer in zip(sets, answers, strict=True):
        if answer is None:
            continue
        for partition, least in zip((answer.best, answer.narrowest), best_of[nodes], strict=True):
            assert objections(pair[0], partition.stages) == []
            assert partition.bound_ms <= least + 1e-9 <= partition.value_ms + 2e-9
            if partition.exact:
                assert partition.value_ms == pytest.approx(least)


def ends() -> Task:
    """Twelve items in a row, a fast node and a slow one, and ways that take as long as three items."""
    kinds = (Kind(1, (3.0,) * 12), Kind(1, (6.0,) * 12))
    values = tuple(Value(item - 1, (item,), 1) for item in range(13))
    return Task(kinds, (1,) * 12, values, hops=((Hop(9.0),) * 2,) * 2)


def test_the_best_lies_between_the_two_ends() -> None:
    """A fast node and a slow one, two steps at a time: even shares are long on the way, all on one is one at a time."""
    task = ends()
    (found,) = rounds(task, task, 2, [Ask(tuple(sets_of(task, 2)))])
    assert found is not None
    assert [len(stage.items) for stage in found.narrowest.stages] in ([8, 4], [4, 8])
    assert (found.narrowest.bottleneck_ms, found.narrowest.latency_ms) == (24.0, 57.0)
    shortest = best(replace(task, objective="latency"), 2)
    assert shortest is not None
    assert (shortest.bottleneck_ms, shortest.latency_ms) == (33.0, 48.0)
    assert (found.best.bottleneck_ms, found.best.latency_ms, found.best.value_ms) == (27.0, 54.0, 54.0)
    assert found.best.exact


@pytest.mark.parametrize(("steps", "bound"), [(1, 36.0 + 9.0), (2, 54.0), (3, 3 * 24.0)])
def test_the_bound_is_the_largest_of_what_is_known_without_a_search(steps: int, bound: float) -> None:
    """Of a single step the quickest way, of three the busiest node; of two what both come to with items divided."""
    task = ends()
    (found,) = rounds(task, task, steps, [Ask(tuple(sets_of(task, 2)))])
    assert found is not None
    assert found.best.relaxed_ms == pytest.approx(bound)


@given(both(shared=True), STAGES, STEPS, MORE)
@settings(QUICK, max_examples=100)
def test_no_round_is_shorter_than_with_items_divided(
    pair: tuple[Task, Task], stages: int, steps: int, more: float
) -> None:
    relaxed = Relaxed(*pair, steps)
    for nodes, (least, _) in wanted(*pair, stages, steps, more).items():
        assert relaxed.bound(nodes, more)[0] <= least + 1e-9


def test_with_items_divided_both_limits_count() -> None:
    """Two thirds on the fast node even out both nodes; where the way takes more besides, it gets more of the work."""
    kinds = (Kind(1, (3.0,) * 2), Kind(1, (6.0,) * 2))
    task = Task(kinds, (1,) * 2, tuple(Value(item - 1, (item,), 1) for item in range(3)))
    assert Relaxed(task, task, 2).bound((1, 1), 0.0)[0] == pytest.approx(8.0)
    assert Relaxed(task, task, 2).bound((1, 1), 2.0)[0] == pytest.approx(28 / 3)
    assert Relaxed(task, task, 1).bound((1, 1), 2.0)[0] == pytest.approx(8.0), "the way alone, all on the fast one"


def searches(task: Task, way: Task) -> tuple[Search, Search]:
    """On the whole lattice, no memory too little."""
    lattice = lattice_of(needs_of(task), 10_000)
    assert lattice is not None
    busy, passing = fields_of(task, lattice, 1), fields_of(way, lattice, 1)
    return Search(busy, busy.loose), Search(passing, passing.loose)


def without_memory(pair: tuple[Task, Task]) -> tuple[Task, Task]:
    return without_limits(pair[0]), without_limits(pair[1])


@given(both().map(without_memory), STAGES)
@QUICK
def test_what_is_done_and_what_is_left_are_the_whole_way(pair: tuple[Task, Task], stages: int) -> None:
    """Wherever a quickest way is cut in two, over any set of nodes."""
    search, ways = searches(*pair)
    sets = sets_of(pair[0], stages)
    if not sets:
        return
    trial = ways.least(sets)
    left = ahead(search, ways, sets, 1.0, [Relaxed(*pair, 1).none])
    _, whole = ways.quickest(trial, sets)
    for done in range(1, stages + 1):
        found = [(trial.took[state] + left[state]).min() for state in left if sum(state[0]) == done]
        assert min(found, default=math.inf) == pytest.approx(whole)


@given(both(), STAGES, STEPS, MORE, st.data())
@settings(QUICK, max_examples=150)
def test_no_round_is_shorter_than_at_any_prices(
    pair: tuple[Task, Task], stages: int, steps: int, more: float, data: st.DataObject
) -> None:
    kinds = len(pair[0].kinds)
    time = data.draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=kinds, max_size=kinds))
    narrowing = Narrowing(*searches(*pair), steps)
    for nodes, (least, _) in wanted(*pair, stages, steps, more).items():
        span = Span(Ask((nodes,), more), (0.0, 0.0))
        narrowing.price(span, Prices(np.array(time), np.zeros(kinds)))
        assert span.low - 1e-9 <= least <= span.high + 1e-9
