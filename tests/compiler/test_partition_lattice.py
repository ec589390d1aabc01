"""All downsets of random graphs against sets of sets; chains and contraction at full size."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvcompile.partition import Kind, Task, Value, best, objections
from ruvcompile.partition.contract import ground_of
from ruvcompile.partition.lattice import Lattice, Round, downset_count, lattice_of
from tests.strategies import tasks

Needs = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> Needs:
    """What each item needs; often with waists in the middle."""
    random = draw(st.randoms(use_true_random=True))
    count, density = draw(st.integers(1, 9)), random.choice([0.1, 0.3, 0.6])
    needs: Needs = []
    for item in range(count):
        own = [other for other in range(item) if random.random() < density]
        needs.append(list(range(item)) if random.random() < 0.2 else own)
    return needs


def downsets(needs: Needs) -> set[frozenset[int]]:
    found = set()
    for mask in range(1 << len(needs)):
        items = frozenset(item for item in range(len(needs)) if mask >> item & 1)
        if all(items.issuperset(needs[item]) for item in items):
            found.add(items)
    return found


def steps(lattice: Lattice, step: Round, targets: list[int]) -> list[tuple[int, int, int]]:
    ends = [*step.starts[1:].tolist(), len(step.sources)]
    spans = zip(step.starts.tolist(), ends, targets, strict=True)
    return [
        (int(step.sources[at]), target, int(step.items[at])) for start, end, target in spans for at in range(start, end)
    ]


@given(graphs())
@settings(deadline=None, max_examples=300)
def test_every_downset_is_there_once_with_every_step(needs: Needs) -> None:
    lattice = lattice_of(needs, 10_000)
    assert lattice is not None
    found = [frozenset(lattice.members(number)) for number in range(lattice.count)]
    wanted = downsets(needs)
    assert len(found) == len(wanted)
    assert set(found) == wanted
    made = [each for step in lattice.rounds for each in steps(lattice, step, step.targets.tolist())]
    made += steps(lattice, lattice.tops, lattice.bottoms[lattice.tops.targets + 1].tolist())
    named = {(found[source], found[target], item) for source, target, item in made}
    assert len(named) == len(made)
    fallen = [each for step in lattice.falls for each in steps(lattice, step, step.targets.tolist())]
    assert {(found[target], found[source], item) for source, target, item in fallen} == named
    assert len(fallen) == len(made)
    assert named == {
        (low, low | {item}, item) for low in wanted for item in set(range(len(needs))) - low if low | {item} in wanted
    }


@given(graphs(), st.integers(1, 40))
@settings(deadline=None, max_examples=200)
def test_more_downsets_than_wanted_are_not_listed(needs: Needs, limit: int) -> None:
    there = len(downsets(needs))
    assert (lattice_of(needs, limit) is None) == (there > limit)
    assert downset_count(tuple(map(tuple, needs)), limit) == min(there - 1, limit + 1)


def chains(number: int, length: int) -> Needs:
    """So many chains side by side."""
    return [[] if not place else [chain * length + place - 1] for chain in range(number) for place in range(length)]


def task_of(needs: Needs, count: int, memory: int) -> Task:
    """Items of unlike times; item i costs 1 + i % 7."""
    readers: list[list[int]] = [[] for _ in needs]
    for item, own in enumerate(needs):
        for need in own:
            readers[need].append(item)
    values = tuple(Value(item, tuple(own) or (len(needs),), 1) for item, own in enumerate(readers))
    times = tuple(1.0 + item % 7 for item in range(len(needs)))
    return Task((Kind(count, times, memory, byte_ms=1e-3),), (1,) * len(needs), values)


def test_sets_are_told_apart_in_words_of_64() -> None:
    lattice = lattice_of(chains(2, 100), 20_000)
    assert lattice is not None
    assert lattice.count == 101 * 101
    assert lattice.members(lattice.count - 1) == set(range(200))
    assert len({frozenset(lattice.members(number)) for number in range(0, lattice.count, 50)}) == 205


@given(tasks(shared=True, items=7), st.integers(2, 12))
@settings(deadline=None, max_examples=200)
def test_a_contracted_task_is_the_same_task_with_fewer_cuts(task: Task, limit: int) -> None:
    ground = ground_of(task, limit)
    assert sorted(item for part in ground.parts for item in part) == list(range(len(task.item_bytes)))
    assert ground.lattice.count <= limit
    if ground.whole:
        assert ground.task == task
        return
    found = best(replace(ground.task, objective="throughput"), 1)
    if found is not None:  # all in one stage is the same whatever was put together
        whole = best(replace(task, objective="throughput"), 1)
        assert whole is not None
        assert found.value_ms == pytest.approx(whole.value_ms)


@pytest.mark.parametrize(("number", "length"), [(4, 22), (15, 6)])
def test_too_many_downsets_are_contracted_and_the_bound_holds_for_all(number: int, length: int) -> None:
    """Four chains of 22 have 280,000 downsets, fifteen of 6 five million million."""
    needs = chains(number, length)
    task = task_of(needs, 4, memory=len(needs) // 4 + 2)
    found = best(task, 4)
    assert found is not None
    assert objections(task, found.stages) == []
    assert not found.exact
    assert 0 < found.bound_ms <= found.value_ms
    assert found.gap < 0.05


def fan(width: int) -> Needs:
    """One item, so many that read it and nothing else, and one that reads them all."""
    return [[], *([0] for _ in range(width)), list(range(1, width + 1))]


def fed(length: int) -> Needs:
    """A chain of which every item also reads one that reads nothing, as graphs whose weights are made in them."""
    needs: Needs = []
    for place in range(length):
        needs.append([])
        needs.append([2 * place, 2 * place - 1] if place else [0])
    return needs


@pytest.mark.parametrize("needs", [fan(300), chains(60, 5), fed(121)], ids=["fan", "chains", "fed"])
def test_a_wide_graph_of_equal_items_takes_little_memory(needs: Needs) -> None:
    """What is put together is found by trying, and none of the tries may list more than is wanted of the lattice."""
    task = replace(task_of(needs, 4, memory=len(needs)), kinds=(Kind(4, (1.0,) * len(needs)),))
    tracemalloc.start()
    found = best(task, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert objections(task, found.stages) == []
    assert found.bound_ms == pytest.approx(len(needs) / 4), "as if items could be divided"
    assert found.gap < 0.2
    assert peak < 300e6


def test_fifty_thousand_items_take_no_table_of_all_pairs() -> None:
    """A table of all pairs would be 20 GB. Every fourth item also reads the one four before it."""
    count = 50_000
    needs: Needs = [[item - 1, item - 4] if item > 3 and item % 4 == 3 else [item - 1] for item in range(1, count)]
    task = task_of([[], *needs], 3, memory=20_000)
    tracemalloc.start()
    found = best(task, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert found.exact
    assert found.gap == 0.0
    assert [len(stage.items) // 100 for stage in found.stages] == [166, 166, 166]
    assert peak < 400e6
