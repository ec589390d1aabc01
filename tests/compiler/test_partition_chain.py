"""The chain search against exhaustive search, and the bound against both."""

import tracemalloc
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvcompile.partition.chain import evaluate, lower_bound, solve
from ruvcompile.partition.problem import Border, Device, Partition, Problem, Shared

TIMES = st.integers(1, 20).map(float)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    count = draw(st.integers(1, 7))
    devices = tuple(
        Device(
            f"n{index}",
            tuple(draw(TIMES) for _ in range(count)),
            draw(st.integers(5, 60)),
            draw(st.sampled_from([0.0, 0.5])),
        )
        for index in range(draw(st.integers(1, 3)))
    )
    both = tuple(draw(st.lists(shared(count), max_size=3))) if count > 1 else ()
    return Problem(
        devices,
        tuple(
            draw(st.integers(0, 11)) + sum(each.size for each in both if unit in (each.first, each.second))
            for unit in range(count)
        ),
        tuple(Border(draw(st.booleans()), draw(st.integers(0, 8))) for _ in range(count - 1)),
        draw(st.integers(0, 5)),
        draw(st.sampled_from(["throughput", "latency"])),
        both,
    )


def shared(count: int) -> st.SearchStrategy[Shared]:
    """Bytes that two of ``count`` units share."""
    pairs = st.sampled_from(list(combinations(range(count), 2)))
    return st.builds(lambda pair, size: Shared(*pair, size), pairs, st.integers(0, 4))


def value(problem: Problem, partition: Partition) -> float:
    return partition.bottleneck_ms if problem.objective == "throughput" else partition.latency_ms


def every(problem: Problem) -> list[Partition]:
    borders = range(1, len(problem.unit_bytes))
    legal = [k for k in borders if problem.borders[k - 1].legal]
    found = [evaluate(problem, cuts) for cuts in combinations(legal, len(problem.devices) - 1)]
    return [
        each
        for each in found
        if all(need <= device.memory for need, device in zip(each.stage_bytes, problem.devices, strict=True))
    ]


@given(problems())
def test_equals_exhaustive_search(problem: Problem) -> None:
    best = solve(problem)
    candidates = every(problem)
    assert (best is None) == (not candidates)
    if best is not None:
        least = min(value(problem, each) for each in candidates)
        assert value(problem, best) == pytest.approx(least)
        assert all(problem.borders[cut - 1].legal for cut in best.cuts)
        equal = [each.latency_ms for each in candidates if value(problem, each) == pytest.approx(least)]
        assert best.latency_ms == pytest.approx(min(equal)), "of equal ones, the one with the smaller sum"


@given(problems())
def test_what_two_units_share_a_stage_needs_once(problem: Problem) -> None:
    for each in every(problem):
        bounds = [0, *each.cuts, len(problem.unit_bytes)]
        for need, start, stop in zip(each.stage_bytes, bounds, bounds[1:], strict=False):
            once = sum(pair.size for pair in problem.shared if start <= pair.first and pair.second < stop)
            assert need == sum(problem.unit_bytes[start:stop]) - once + problem.runtime_bytes


@given(problems())
def test_no_partition_beats_the_bound(problem: Problem) -> None:
    assert all(value(problem, each) >= lower_bound(problem) - 1e-9 for each in every(problem))


def test_a_heavy_end_moves_the_cut() -> None:
    """Equal layer ranges are the wrong answer when the last unit is heavy."""
    units = (1.0,) * 8 + (4.0,)
    devices = tuple(Device(name, units, 1000) for name in "ab")
    problem = Problem(devices, (1,) * 9, (Border(True, 0),) * 8, 0)
    best = solve(problem)
    assert best is not None
    assert best.cuts == (6,)
    assert best.bottleneck_ms == 6.0
    assert best.gap == 0.0


def test_of_equal_cuts_the_earliest() -> None:
    devices = tuple(Device(name, (1.0, 0.0, 0.0, 1.0), 1000) for name in "ab")
    best = solve(Problem(devices, (1,) * 4, (Border(True, 0),) * 3, 0))
    assert best is not None
    assert best.cuts == (1,)


def test_fifty_thousand_units_in_three_stages_take_no_table_of_all_pairs() -> None:
    """A table of all pairs would be 20 GB. The two heavy units belong in stages of their own."""
    count = 50_000
    times = [1.0] * count
    times[100] = times[40_000] = 30_000.0
    devices = tuple(Device(name, tuple(times), 60_000) for name in "abc")
    problem = Problem(devices, (1,) * count, (Border(True, 0),) * (count - 1), 0, shared=(Shared(0, count - 1, 1),))
    tracemalloc.start()
    best = solve(problem)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert best is not None
    assert best.cuts[0] > 100
    assert best.cuts[1] == 40_000
    assert best.bottleneck_ms == 39_999.0, "the last heavy one and all behind it"
    assert peak < 200e6


def test_nothing_fits() -> None:
    problem = Problem((Device("a", (1.0,), 3),), (4,), (), 0)
    assert solve(problem) is None
