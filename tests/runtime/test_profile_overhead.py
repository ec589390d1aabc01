"""What a step costs beside its units: taken apart so that, put together again, it is the round that was measured."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.profile.clocked import Count, Tick
from ruvrun.profile.overhead import byte_ms, fit, line
from ruvrun.profile.ring import Rounds, steps_of

MS = st.floats(0.01, 50)


def ticks(rows: int, inside: float, beside: float, count: int, start: float = 0.0, slowed: float = 1.0) -> list[Tick]:
    """Steps of ``rows`` rows, in ms inside the back end and between; by the clock ``slowed`` times as long."""
    found, now = [], start
    for _ in range(count):
        found.append(Tick(rows, rows, now, now + inside / 1e3, slowed * inside / 1e3))
        now += (inside + beside) / 1e3
    return found


def counted(*steps: list[Tick]) -> Count:
    return Count([tick for each in steps for tick in each], 1, 2, 3)


@given(MS, MS, MS, MS, st.floats(0, 5), st.floats(0, 5), st.floats(0, 2))
def test_put_together_it_is_the_round(
    one: float, several: float, base: float, head: float, row: float, head_row: float, hop: float
) -> None:
    """Of one row and of four: back end, the stage's own work, the head's, two hops."""
    inside = {1: one, 4: one + several}
    beside = {rows: base + row * rows for rows in inside}
    heads = {rows: head + head_row * rows for rows in inside}
    whole = {rows: inside[rows] + beside[rows] + heads[rows] + 2 * hop for rows in inside}
    count = counted(*(ticks(rows, inside[rows], beside[rows], 5) for rows in inside))
    found = fit([Rounds(rows, [whole[rows]] * 5, [heads[rows]] * 5) for rows in inside], count)
    for rows in inside:
        stage = inside[rows] + found["stage_ms"] + found["stage_row_ms"] * rows
        again = stage + found["head_ms"] + found["head_row_ms"] * rows + 2 * found["hop_ms"]
        assert again == pytest.approx(whole[rows], rel=1e-4, abs=1e-4)


def test_a_stage_that_waited_for_a_core_has_no_longer_way() -> None:
    """Half of the rounds took ten times as long by the clock, and not by CPU time."""
    count = counted(ticks(1, 2.0, 0.5, 9))
    found = fit([Rounds(1, [3.0, 30.0] * 4, [0.1] * 8)], count)
    assert found["hop_ms"] == pytest.approx((3.0 - 2.5 - 0.1) / 2)
    assert found["spread"] > 1


@given(st.floats(1, 4), MS, MS, MS, st.floats(0, 2))
def test_under_a_quota_it_is_the_round_by_the_clock(
    slowed: float, inside: float, beside: float, head: float, hop: float
) -> None:
    """What a process waits between two steps is the others' work and the way, and no work of its own."""
    count = msgspec.structs.replace(counted(ticks(1, inside, beside, 5, slowed=slowed)), limited=True)
    whole = slowed * (inside + beside + head) + 2 * hop
    found = fit([Rounds(1, [whole] * 5, [head] * 5)], count)
    assert found["stage_ms"] == pytest.approx(slowed * beside, rel=1e-4, abs=1e-5)
    assert found["head_ms"] == pytest.approx(slowed * head, rel=1e-4, abs=1e-5)
    assert found["hop_ms"] == pytest.approx(hop, abs=1e-4 * whole)


def test_only_steps_that_follow_one_another_count() -> None:
    """A prompt between two steps, and a step of other rows, are no part of it."""
    prompt = [Tick(1, 8, 1.0, 1.5, 0.5)]
    mixed = counted(ticks(1, 2.0, 0.25, 3), prompt, ticks(1, 2.0, 0.25, 3, 2.0), ticks(2, 5.0, 0.5, 3, 3.0))
    one, two = steps_of(mixed, 1), steps_of(mixed, 2)
    assert one.inside_ms == pytest.approx([2.0] * 4)
    assert one.beside_ms == pytest.approx([0.25] * 4)
    assert two.beside_ms == pytest.approx([0.5] * 2)


def test_sequences_that_never_met_say_nothing_of_several() -> None:
    """In a context of a few tokens the first of four may end before the last begins."""
    count = counted(ticks(1, 2.0, 0.5, 5))
    found = fit([Rounds(rows, [3.0] * 4, [0.3] * 4) for rows in (1, 4)], count)
    assert found == fit([Rounds(1, [3.0] * 4, [0.3] * 4)], count)
    assert found["stage_row_ms"] == 0.0


def test_the_bytes_of_a_call_are_not_counted_twice() -> None:
    count = counted(ticks(1, 2.0, 0.5, 4))
    found = fit([Rounds(1, [3.0] * 4, [0.3] * 4)], count, carried_ms=0.2)
    assert (found["stage_ms"], found["head_ms"]) == pytest.approx((0.3, 0.1))
    assert fit([Rounds(1, [3.0] * 4, [0.3] * 4)], count, carried_ms=9.0)["stage_ms"] == 0.0


@given(st.floats(0, 10), st.floats(0, 10), st.integers(2, 16))
def test_a_line_has_no_part_below_nothing(first: float, last: float, rows: int) -> None:
    once, each = line([(1, first), (rows, last)])
    assert once >= 0
    assert each >= 0
    assert once + each == pytest.approx(first)


@pytest.mark.parametrize("network", [False, True])
def test_a_byte_costs_something_on_either_kind_of_link(network: bool) -> None:
    assert 0 <= byte_ms(network) < 1e-3
