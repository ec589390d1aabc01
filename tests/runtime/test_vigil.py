"""Who goes on and who hangs, by a clock that only the tests move."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.supervise import vigil as vigils
from ruvrun.supervise.vigil import EVERY, LOADING, STARTING, WITHIN, Pulse, Vigil, alive_for, alive_line


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def working(turn: Callable[[], int | None], clock: Clock) -> Pulse:
    """The pulse of one that has loaded, of whose work none takes longer than 30 seconds."""
    pulse = Pulse(clock)
    pulse.look(turn, 30.0)
    return pulse


def test_a_line_says_for_how_long_it_holds() -> None:
    assert alive_for(alive_line(7.5)) == 7.5
    assert alive_for(alive_line()) == WITHIN > 3 * EVERY
    assert [alive_for(line) for line in ("", "ready", alive_line()[:-1], '{"loaded": true}')] == [None] * 4


def test_who_loads_for_longer_than_any_load_takes_hangs() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    assert pulse.beats()
    clock.now += LOADING
    assert pulse.beats()
    clock.now += 1
    assert not pulse.beats()
    pulse.look(lambda: 0, 30.0)
    assert pulse.beats(), "it has loaded after all"
    clock.now += 31
    assert not pulse.beats()


def test_work_that_stands_still_for_longer_than_any_takes_hangs() -> None:
    clock, turn = Clock(), [1]
    pulse = working(lambda: turn[0], clock)
    assert pulse.beats()
    clock.now += 30
    assert pulse.beats()
    clock.now += 1
    assert not pulse.beats()
    turn[0] = 3
    assert pulse.beats(), "it goes on after all"
    clock.now += 31
    assert not pulse.beats()


def test_who_has_nothing_to_do_hangs_never() -> None:
    clock, turn = Clock(), [None, 1]
    pulse = working(lambda: turn[0], clock)
    for _ in range(5):
        clock.now += 1000
        assert pulse.beats()
    turn.pop(0)
    assert pulse.beats(), "it has only begun"
    clock.now += 31
    assert not pulse.beats()


def test_a_pulse_is_heard_at_once_and_when_what_was_loaded_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vigils, "EVERY", 3600.0)
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    pulse = Pulse()
    pulse.start(heard.put)
    assert heard.get(timeout=20) == alive_line(STARTING)
    pulse.look(lambda: None, 30.0)
    assert heard.get(timeout=20) == alive_line()
    assert heard.empty()


def test_who_has_not_said_it_again_is_silent_and_who_need_not_is_not() -> None:
    vigil = Vigil()
    assert (vigil.pause(0.0), vigil.silent(0.0)) == (None, {})
    vigil.heard("a", 60.0, 100.0)
    vigil.heard("b", 60.0, 130.0)
    assert vigil.silent(159.9) == {}
    assert vigil.silent(160.0) == {"a": 60.0}
    vigil.heard("a", 300.0, 160.0)
    assert vigil.silent(189.0) == {}
    vigil.forget("b")
    vigil.forget("b")
    assert vigil.silent(459.0) == {}
    assert vigil.silent(460.0) == {"a": 300.0}


def test_it_looks_again_when_the_first_is_due_and_now_and_then() -> None:
    vigil = Vigil()
    vigil.heard("a", 60.0, 100.0)
    vigil.heard("b", 5.0, 100.0)
    assert vigil.pause(101.0) == pytest.approx(4.0)
    assert vigil.pause(200.0) == 0.0
    vigil.forget("b")
    assert vigil.pause(101.0) == EVERY


def test_time_in_which_nobody_ran_is_nobodys_silence() -> None:
    vigil = Vigil()
    vigil.heard("a", 60.0, 100.0)
    vigil.waited(10.0, 3600.0)  # all were stopped, the supervisor too
    assert vigil.silent(3700.0) == {}
    assert vigil.silent(3749.0) == {}
    assert list(vigil.silent(3751.0)) == ["a"]
    vigil.waited(None, 5000.0)
    vigil.waited(10.0, 10.5)
    assert list(vigil.silent(3751.0)) == ["a"], "that was no more than a busy machine"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 100), st.floats(0, 50)), min_size=1))
def test_nobody_is_silent_before_its_time_is_over_and_everybody_after(said: list[tuple[str, float, float]]) -> None:
    """``said``: who, for how long, and how long after the one before."""
    vigil, until, now = Vigil(), {}, 0.0
    for name, seconds, later in said:
        now += later
        assert set(vigil.silent(now)) == {each for each, end in until.items() if end <= now}
        vigil.heard(name, seconds, now)
        until[name] = now + seconds
        pause = vigil.pause(now)
        assert pause is not None
        assert now + pause <= min(until.values()) + 1e-6 or pause == 0
