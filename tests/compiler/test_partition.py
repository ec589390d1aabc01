"""The exact search against trying everything, on random tasks with every rule there is."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ruvcompile.partition import Hop, Kind, Partition, Stage, Task, Value, best, evaluate, frontier, objections, solve
from ruvcompile.partition.bound import lower_bound, rows_of
from ruvcompile.partition.task import Shared
from tests.partitions import Exhaustive
from tests.strategies import tasks

QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
STAGES = st.integers(1, 3)


def check(task: Task, stages: int) -> None:
    """The best for every choice of nodes, and over all of them, are those that trying everything finds."""
    wanted = Exhaustive(task).best(stages)
    found = frontier(task, stages)
    assert found.keys() == wanted.keys()
    for nodes, partition in found.items():
        judge(task, partition, stages)
        assert partition.nodes(len(task.kinds)) == nodes
        assert (partition.value_ms, partition.latency_ms) == pytest.approx(wanted[nodes])
    whole = best(task, stages)
    assert (whole is None) == (not wanted)
    if whole is not None:
        judge(task, whole, stages)
        assert (whole.value_ms, whole.latency_ms) == pytest.approx(min(wanted.values()))


def unproven(partition: Partition) -> dict[str, object]:
    return {name: getattr(partition, name) for name in ("bound_ms", "gap", "exact", "relaxed_ms", "searched_ms")}


def judge(task: Task, partition: Partition, stages: int) -> None:
    """It is one, it fits, it costs what it says, and it is proven."""
    assert len(partition.stages) == stages
    assert objections(task, partition.stages) == []
    again = evaluate(task, partition.stages)
    assert again == partition.__class__(**{**vars(partition), **unproven(again)})
    assert partition.exact
    assert partition.gap == pytest.approx(0.0)
    assert partition.bound_ms == pytest.approx(partition.value_ms)


@given(tasks(), STAGES)
@QUICK
def test_equals_trying_everything(task: Task, stages: int) -> None:
    check(task, stages)


@pytest.mark.system
@given(tasks(items=7), STAGES)
@LONG
def test_equals_trying_everything_thousands_of_times(task: Task, stages: int) -> None:
    check(task, stages)


def check_shared(task: Task, stages: int) -> None:
    """With weights that a stage holds once the truth is between two searches: never wrong, exact if it says so."""
    wanted = Exhaustive(task).best(stages)
    for nodes, partition in frontier(task, stages).items():
        assert objections(task, partition.stages) == []
        least, _ = wanted[nodes]
        assert partition.bound_ms <= least + 1e-9
        assert partition.value_ms >= least - 1e-9
        if partition.exact:
            assert partition.value_ms == pytest.approx(least)


@given(tasks(shared=True), STAGES)
@QUICK
def test_weights_held_once_are_bounded_from_both_sides(task: Task, stages: int) -> None:
    check_shared(task, stages)


@pytest.mark.system
@given(tasks(shared=True, items=7), STAGES)
@LONG
def test_weights_held_once_are_bounded_from_both_sides_thousands_of_times(task: Task, stages: int) -> None:
    check_shared(task, stages)


@given(tasks(shared=True, items=5), STAGES)
@settings(QUICK, max_examples=100)
def test_a_given_partition_is_judged_as_trying_everything_does(task: Task, stages: int) -> None:
    exhaustive = Exhaustive(task)
    for number, (kinds, cuts) in enumerate(exhaustive.all(stages)):
        if number == 20:
            break
        given_stages = exhaustive.stages(kinds, cuts)
        partition = evaluate(task, given_stages)
        assert objections(task, given_stages) == []
        assert (partition.bottleneck_ms, partition.latency_ms) == pytest.approx(exhaustive.cost(kinds, cuts))


@given(tasks(items=5), st.data())
@settings(QUICK, max_examples=200)
def test_what_trying_everything_leaves_out_has_an_objection(task: Task, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(task.item_bytes))))
    cut = data.draw(st.integers(0, len(order)))
    parts = [tuple(sorted(part)) for part in (order[:cut], order[cut:]) if part]
    stages = [Stage(data.draw(st.integers(0, len(task.kinds) - 1)), part) for part in parts]
    exhaustive = Exhaustive(task)
    possible = [exhaustive.stages(kinds, cuts) for kinds, cuts in exhaustive.all(len(parts))]
    assert (stages in possible) == (objections(task, stages) == [])


@given(tasks(shared=True), STAGES)
@settings(QUICK, max_examples=150)
def test_no_partition_beats_the_bound_with_a_solver_or_without(task: Task, stages: int) -> None:
    rows = rows_of(task)
    for nodes, (value, _) in Exhaustive(task).best(stages).items():
        simple, solved = (lower_bound(task, rows, nodes, solver=solver) for solver in (False, True))
        assert 0 <= simple <= value + 1e-9
        assert 0 <= solved <= value + 1e-9


def test_the_bound_counts_what_little_memory_makes_slow() -> None:
    """The fast node has room for half of the items; the slow one must do the rest."""
    times = (1.0,) * 4
    kinds = (Kind(1, times, memory=2), Kind(1, (9.0,) * 4))
    task = chain(times, kinds)
    rows = rows_of(task)
    assert lower_bound(task, rows, (1, 1), solver=False) == pytest.approx(3.6)
    assert lower_bound(task, rows, (1, 1), solver=True) == pytest.approx(18.0)


@given(tasks(shared=True), STAGES, st.integers(2, 9))
@settings(QUICK, max_examples=150)
def test_a_contracted_search_fits_and_its_bound_is_true(task: Task, stages: int, most: int) -> None:
    wanted = Exhaustive(task).best(stages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "_MOST", most)
        patch.setattr(solve, "_FEWEST", most)
        found = frontier(task, stages)
    for nodes, partition in found.items():
        assert objections(task, partition.stages) == []
        assert partition.bound_ms <= wanted[nodes][0] + 1e-9 <= partition.value_ms + 2e-9
        # Of the two bounds the first is true of every partition, the second of those that were looked at.
        assert partition.relaxed_ms <= wanted[nodes][0] + 1e-9
        assert partition.bound_ms - 1e-9 <= max(partition.relaxed_ms, partition.searched_ms)
        assert partition.searched_ms <= partition.value_ms * (1 + 1e-9)


def chain(times: tuple[float, ...], kinds: tuple[Kind, ...], **more: object) -> Task:
    """Items that each read the one before."""
    values = tuple(Value(item - 1, (item,), 1) for item in range(len(times) + 1))
    return Task(kinds, (1,) * len(times), values, **more)  # type: ignore[arg-type]  # whatever a task takes


def test_a_heavy_end_moves_the_cut() -> None:
    """Equal layer ranges are the wrong answer when the last unit is heavy."""
    times = (1.0,) * 8 + (4.0,)
    found = best(chain(times, (Kind(2, times),)), 2)
    assert found is not None
    assert [len(stage.items) for stage in found.stages] == [6, 3]
    assert found.bottleneck_ms == 6.0
    assert found.gap == 0.0


def test_branches_side_by_side_are_cut_across_not_along_the_list() -> None:
    """Two branches of two between a fork and a join: in the listed order 0 1 2 3 4 5 no cut is as good."""
    values = [Value(-1, (0,), 1), Value(0, (1, 3), 1), Value(1, (2,), 1), Value(2, (5,), 9), Value(3, (4,), 1)]
    values += [Value(4, (5,), 1), Value(5, (6,), 1)]
    times = (0.0, 1.0, 5.0, 5.0, 1.0, 0.0)
    task = Task((Kind(2, times),), (1,) * 6, tuple(values))
    found = best(task, 2)
    assert found is not None
    assert found.bottleneck_ms == 6.0
    assert found.stages[0].items in {(0, 3, 4), (0, 1, 3)} | {(0, 1, 2)}


def test_a_slow_link_is_a_bottleneck_too() -> None:
    times = (4.0, 4.0)
    kinds = (Kind(2, times),)
    task = chain(times, kinds, hops=((Hop(ms_per_byte=7.0),),))
    two = best(task, 2)
    assert two is not None
    assert two.bottleneck_ms == 7.0
    assert two.link_ms == (7.0,)


def test_a_link_beside_which_all_work_is_nothing_ends_the_search() -> None:
    """The one is as many times the other as no number says."""
    times = (5e-324,) * 2
    two = best(chain(times, (Kind(2, times),), hops=((Hop(ms_per_byte=1e18),),)), 2)
    assert two is not None
    assert two.bottleneck_ms == 1e18


def test_the_number_of_stages_is_chosen_where_it_is_not_given() -> None:
    times = (4.0, 4.0)
    slow = best(chain(times, (Kind(2, times),), hops=((Hop(ms_per_byte=9.0),),)))
    fast = best(chain(times, (Kind(2, times),), hops=((Hop(ms_per_byte=1.0),),)))
    assert slow is not None
    assert fast is not None
    assert (len(slow.stages), len(fast.stages)) == (1, 2)


def test_nothing_fits() -> None:
    assert best(chain((1.0,), (Kind(1, (1.0,), memory=0),)), 1) is None
    assert best(chain((1.0,), (Kind(2, (1.0,)),)), 2) is None
    assert dict(frontier(chain((1.0,), (Kind(1, (1.0,)),)), 2)) == {}


def test_readers_that_fit_together_without_a_third_are_not_told_apart() -> None:
    """Items 0 and 2 fit the small node beside each other, and neither does with item 1, though it lies between them."""
    kinds = (
        Kind(1, (11.0, 11.0, 9.0), 20),
        Kind(1, (1.0, 10.0, 6.0), 10, 1.0),
        Kind(1, (5.0, 1.0, 11.0), 30, byte_ms=0.5),
    )
    weights = (Shared((0,), 2), Shared((0, 1, 2), 3))
    values = (Value(-1, (3,), 5), Value(0, (1,), 3), Value(1, (3,), 0))
    task = Task(kinds, (0, 8, 2), values, weights, runtime_bytes=2)
    found = best(task, stages=2)
    assert found is not None
    assert found.bound_ms == pytest.approx(8.0), "no more than the best there is"
    assert found.value_ms == pytest.approx(8.0)
