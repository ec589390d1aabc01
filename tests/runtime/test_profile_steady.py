"""Repeating until it is known: cases in turn, each for as long as its median is in doubt, no longer than allowed."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

from ruvrun.profile.steady import MOST, Case, doubt, spread, steady


class Clock:
    """Seconds that pass while something is run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def case(self, name: str, times: list[float], least: int = 2) -> Case:
        given = cycle(times)

        def run() -> float:
            took = next(given)
            self.now += took
            self.order.append(name)
            return took

        return Case(run, least)


def test_what_never_varies_is_run_as_often_as_it_must() -> None:
    clock = Clock()
    found = steady([clock.case("a", [1.0], 3), clock.case("b", [2.0], 2)], seconds=100, rough=0.01, clock=clock)
    assert found == [[1.0] * 3, [2.0] * 2]
    assert clock.order == ["a", "b", "a", "b", "a"], "in turn"


def test_what_varies_goes_on_until_it_is_known_or_time_is_over() -> None:
    noise = list(1 + 0.1 * np.random.default_rng(0).standard_normal(1000))
    clock = Clock()
    ((times,)) = steady([clock.case("a", noise, 8)], seconds=1000, rough=0.02, clock=clock)
    assert 8 < len(times) < MOST
    assert doubt(times) <= 0.02 * np.median(times)
    ((short,)) = steady([clock.case("a", noise, 3)], seconds=5, rough=0.0, clock=clock)
    assert 5 <= len(short) <= 8, "the time was over"
    ((fine,)) = steady([clock.case("a", noise)], seconds=1000, rough=0.0, fine=1.0, clock=clock)
    assert len(fine) == 2, "known finely enough, however rough that is"


def test_a_case_that_is_known_sits_out_and_a_late_one_is_still_run() -> None:
    clock = Clock()
    quiet, loud = clock.case("quiet", [1.0]), clock.case("loud", [1.0, 9.0], 4)
    found = steady([quiet, loud], seconds=3, rough=0.01, clock=clock)
    assert [len(times) for times in found] == [2, 4]


def test_no_case_is_run_for_ever() -> None:
    clock = Clock()
    ((times,)) = steady([clock.case("a", [1.0, 9.0])], seconds=1e9, rough=0.0, clock=clock)
    assert len(times) == MOST


def test_every_round_is_told() -> None:
    clock, told = Clock(), []
    steady([clock.case("a", [1.0], 3)], seconds=9, rough=0.01, done=told.append, clock=clock)
    assert told == [1, 2, 3]


def test_doubt_is_the_error_of_a_median() -> None:
    """Against the spread of the medians of many samples of a normal distribution."""
    random = np.random.default_rng(1)
    samples = 5 + 0.5 * random.standard_normal((4000, 51))
    error = float(np.std(np.median(samples, axis=1)))
    assert np.mean([doubt(sample) for sample in samples]) == pytest.approx(error, rel=0.05)
    assert doubt([3.0]) == 0.0


def test_spread_is_told_relative_to_the_median() -> None:
    assert spread([1.0] * 5) == 0.0
    assert spread(list(range(101))) == pytest.approx(0.8 * 100 / 50)
    assert spread([0.0, 0.0]) == 0.0
