"""What must hold of every plan, whatever the task: no order matters, and more never makes it worse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ruvcompile.partition import UNLIMITED, Kind, Partition, Task, best, frontier, without_limits
from ruvcompile.partition.kinds import listed
from tests.strategies import tasks

QUICK = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(QUICK, max_examples=1000)


def value(partition: Partition | None) -> float:
    return float("inf") if partition is None else partition.value_ms


def check_order(task: Task, order: list[int]) -> None:
    other = listed(task, order)
    for stages in (None, 2):
        one, two = best(task, stages), best(other, stages)
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            assert [stage.items for stage in one.stages] == [stage.items for stage in two.stages]
            named = [(task.kinds[stage.kind], task.ends_ms(stage.kind, stage.kind)) for stage in one.stages]
            again = [(other.kinds[stage.kind], other.ends_ms(stage.kind, stage.kind)) for stage in two.stages]
            assert named == again
            assert replace(one, stages=()) == replace(two, stages=())


@given(tasks(shared=True), st.data())
@QUICK
def test_the_order_in_which_kinds_are_listed_does_not_matter(task: Task, data: st.DataObject) -> None:
    check_order(task, data.draw(st.permutations(range(len(task.kinds)))))


@pytest.mark.system
@given(tasks(shared=True), st.data())
@LONG
def test_the_order_in_which_kinds_are_listed_does_not_matter_thousands_of_times(
    task: Task, data: st.DataObject
) -> None:
    check_order(task, data.draw(st.permutations(range(len(task.kinds)))))


@given(tasks(items=5))
@QUICK
def test_another_node_never_makes_it_worse(task: Task) -> None:
    more = [replace(kind, count=kind.count + 1) for kind in task.kinds]
    before = value(best(task))
    for number, kind in enumerate(more):
        kinds = (*task.kinds[:number], kind, *task.kinds[number + 1 :])
        assert value(best(replace(task, kinds=kinds))) <= before + 1e-9


@given(tasks(items=5), st.integers(1, 20))
@QUICK
def test_another_kind_of_node_never_makes_it_worse(task: Task, ms: int) -> None:
    other = Kind(1, tuple(float(ms) for _ in task.item_bytes), 15)
    added = replace(
        task,
        kinds=(*task.kinds, other),
        hops=tuple((*row, row[0]) for row in (*task.hops, task.hops[0])) if task.hops else (),
        enter_ms=(*task.enter_ms, 0.0) if task.enter_ms else (),
        leave_ms=(*task.leave_ms, 0.0) if task.leave_ms else (),
    )
    assert value(best(added)) <= value(best(task)) + 1e-9


@given(tasks(), st.integers(1, 30))
@QUICK
def test_more_memory_never_makes_it_worse(task: Task, more: int) -> None:
    grown = tuple(replace(kind, memory=min(UNLIMITED, kind.memory + more)) for kind in task.kinds)
    free = value(best(without_limits(task)))
    assert free <= value(best(replace(task, kinds=grown))) + 1e-9 <= value(best(task)) + 2e-9


@given(tasks(shared=True))
@QUICK
def test_the_whole_is_the_best_of_its_parts(task: Task) -> None:
    """The best into any number of stages is the best of the best over every choice of nodes."""
    most = sum(kind.count for kind in task.kinds)
    parts = [each for stages in range(1, most + 1) for each in frontier(task, stages).values()]
    found = best(task)
    assert (found is None) == (not parts)
    if found is not None and all(each.exact for each in (found, *parts)):
        assert found.value_ms == pytest.approx(min(each.value_ms for each in parts))
