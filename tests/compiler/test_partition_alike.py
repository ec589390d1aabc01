"""Branches that are alike, worked off in turn: no partition is lost that is better than all that are left."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import comb

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ruvcompile.partition import Ask, Hop, Kind, Shared, Task, Value, best, frontier, objections, rounds, sets_of
from ruvcompile.partition.alike import in_turn
from ruvcompile.partition.fields import needs_of
from ruvcompile.partition.lattice import lattice_of
from tests.partitions import Exhaustive

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(QUICK, max_examples=2000)


@st.composite
def branched(draw: st.DrawFn) -> Task:
    """A fork, equal branches of any form, listed one after the other or side by side, and a join; any rules."""
    random = draw(st.randoms(use_true_random=True))
    length, copies = random.choice([(1, 2), (1, 4), (2, 2), (2, 3), (3, 2)])
    inner = [(a, b) for b in range(length) for a in range(b) if random.random() < 0.5]
    whole, wanted = random.random() < 0.5, random.random() < 0.7
    side_by_side = random.random() < 0.5
    number = {
        (copy, place): 1 + (place * copies + copy if side_by_side else copy * length + place)
        for copy, place in product(range(copies), range(length))
    }
    join, end = 1 + length * copies, 2 + length * copies
    entered = [place for place in range(length) if random.random() < 0.6]
    sizes, crosses = [random.randint(0, 4) for _ in range(length + 1)], [random.random() < 0.9 for _ in range(length)]
    kinds = random.choice([1, 2])
    touched = [None if random.random() < 0.9 else frozenset({random.randrange(kinds)}) for _ in range(length)]
    values = [Value(-1, (0,), 1)]
    if whole:
        values.append(Value(0, tuple(number[copy, place] for copy in range(copies) for place in entered), sizes[-1]))
    for copy in range(copies):
        if not whole:
            values.append(Value(0, tuple(number[copy, place] for place in entered), sizes[-1]))
        for place in range(length):
            readers = [number[copy, b] for a, b in inner if a == place]
            readers += [join] if wanted or not readers else []
            values.append(Value(number[copy, place], tuple(readers), sizes[place], crosses[place], touched[place]))
    values.append(Value(join, (end,), 1))

    def of_all(ends: list[float], places: list[float]) -> tuple[float, ...]:
        found = [ends[0], *([0.0] * length * copies), ends[1]]
        for (_, place), item in number.items():
            found[item] = places[place]
        return tuple(found)

    def some() -> tuple[float, ...]:
        ends, places = ([float(random.randint(0, 6)) for _ in range(count)] for count in (2, length))
        return of_all(ends, places)

    bytes_of = tuple(map(int, some()))
    barred = [place for place in range(length) if random.random() < 0.1]
    machines = tuple(
        Kind(
            random.randint(1, 3),
            some(),
            random.choice([sum(bytes_of), sum(bytes_of) // 2 + 3]),
            byte_ms=random.choice([0.0, 0.5]),
            barred=frozenset(number[copy, place] for copy in range(copies) for place in barred)
            if kind
            else frozenset(),
        )
        for kind in range(kinds)
    )
    hops = tuple(tuple(Hop(random.choice([0.0, 2.0]), random.choice([0.0, 0.5])) for _ in machines) for _ in machines)
    return Task(machines, bytes_of, tuple(values), hops=hops)


def check(task: Task, stages: int) -> None:
    exhaustive = Exhaustive(task)
    wanted, found = exhaustive.best(stages), frontier(task, stages)
    assert found.keys() == wanted.keys()
    for nodes, partition in found.items():
        assert objections(task, partition.stages) == []
        assert partition.exact
        assert (partition.value_ms, partition.latency_ms) == pytest.approx(wanted[nodes])
    costs = [exhaustive.cost(*each) for each in exhaustive.all(stages)]
    (ring,) = rounds(task, task, 2, [Ask(tuple(sets_of(task, stages)))])
    assert (ring is None) == (not costs)
    if ring is not None:
        assert ring.best.value_ms == pytest.approx(min(max(2 * slowest, latency) for slowest, latency in costs))


@given(branched(), st.integers(1, 3))
@QUICK
def test_nothing_is_lost(task: Task, stages: int) -> None:
    check(task, stages)


@pytest.mark.system
@given(branched(), st.integers(1, 3))
@LONG
def test_nothing_is_lost_thousands_of_times(task: Task, stages: int) -> None:
    check(task, stages)


def chains(number: int, length: int, *, times: float = 1.0) -> Task:
    """So many equal chains side by side, each of another tempo than the one before."""
    count = number * length
    values = tuple(Value(item, (item + 1,) if (item + 1) % length else (count,), 1) for item in range(count))
    tempo = tuple(times ** (item // length) for item in range(count))
    return Task((Kind(4, tempo, byte_ms=1e-3),), (1,) * count, values)


def downsets(task: Task) -> int:
    lattice = lattice_of(in_turn(task, tuple(map(tuple, needs_of(task)))), 1_000_000)
    assert lattice is not None
    return lattice.count


def test_equal_chains_have_as_many_downsets_as_there_are_rising_sequences() -> None:
    assert downsets(chains(6, 4)) == comb(6 + 4, 4)
    assert downsets(chains(3, 4, times=1.5)) == 5**3


def test_what_shares_a_weight_is_like_no_other() -> None:
    task = chains(3, 4)
    assert downsets(replace(task, shared=(Shared((0, 4), 1),))) == 5**3
    assert downsets(replace(task, shared=(Shared((0, 1), 1),))) == 5 * comb(2 + 4, 4)


def test_a_wide_graph_of_equal_branches_is_solved_exactly() -> None:
    """Twelve chains of five: 2,176,782,336 downsets, of which 6,188 are left in turn."""
    found = best(chains(12, 5), 4)
    assert found is not None
    assert found.exact
    assert found.gap == 0.0
