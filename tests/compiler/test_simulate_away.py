"""Nodes that go away in a simulation: who is waited for, what is lost, and how many may be away."""

from __future__ import annotations

import pytest

from ruvcompile.simulate import Absence, Lengths, Load, simulate
from ruvcompile.simulate.away import nodes_may_be_away
from ruvcompile.simulate.figures import percentile, waits
from tests.compiler.forecasts import fleet, line, pipeline, together


def test_a_node_that_returns_is_waited_for_and_one_that_does_not_is_not() -> None:
    only = fleet(pipeline(line(10, 0), chunks=line(10, 0)))
    outcome = simulate(only, together(2, 50), [Absence("node-0", 100, 1000)])
    assert len(outcome.finished) == 2
    assert [job.retries for job in outcome.finished] == [1, 1]
    assert max(job.first for job in outcome.finished if job.first is not None) < 100, "which the users have"
    # Both go on at 1000: two prompts, the first of which decodes behind the second, then 49 steps; all of it again.
    assert outcome.end_ms == pytest.approx(1000 + 20 + 10 * 50, abs=11)
    assert outcome.tokens == 2 * 50, "no token comes twice"
    gone = simulate(only, together(2, 50), [Absence("node-0", 100)])
    assert (len(gone.finished), len(gone.lost)) == (0, 2)
    headless = simulate(only, together(2, 50), [Absence("head", 100)])
    assert len(headless.lost) == 2


def test_what_a_lost_pipeline_held_goes_on_at_another() -> None:
    two = fleet(pipeline(line(10, 0), name="a"), pipeline(line(10, 0), name="b"), streams=2)
    outcome = simulate(two, together(4, 50), [Absence("a-0", 105)])
    assert not outcome.lost
    assert sorted(job.retries for job in outcome.finished) == [0, 0, 1, 1]


@pytest.mark.parametrize(("pipelines", "expected"), [(1, 0), (2, 1), (6, 5)])
def test_as_many_nodes_may_be_away_as_pipelines_are_to_spare(pipelines: int, expected: int) -> None:
    """One pipeline is enough for one user, so all others may be away; but not the head's node."""
    each = [pipeline(line(10, 1), line(10, 1), chunks=line(5, 0.1), name=f"p{number}") for number in range(pipelines)]
    forecast = fleet(*each)
    load = Load(20, Lengths(64), Lengths(20), users=1, think_ms=100)
    assert nodes_may_be_away(forecast, load, 10_000) == expected
    assert nodes_may_be_away(forecast, load, 1) == 0


def test_a_pipeline_of_the_heads_node_alone_may_lose_all_others() -> None:
    """Its node is the head's, so it works as long as anything is served: all three of the other may be away at once."""
    alone = pipeline(line(10, 1), chunks=line(5, 0.1), name="home")
    wide = pipeline(*[line(10, 1)] * 3, chunks=line(5, 0.1), name="far")
    forecast = fleet(alone, wide, head_node="home-0")
    load = Load(20, Lengths(64), Lengths(20), users=1, think_ms=100)
    assert nodes_may_be_away(forecast, load, 10_000) == 3
    assert nodes_may_be_away(fleet(alone, head_node="home-0"), load, 10_000) == 0, "there is nobody else"
    gone = simulate(forecast, together(2, 20), [Absence(f"far-{number}") for number in range(3)])
    assert (len(gone.finished), len(gone.lost)) == (2, 0)
    headless = simulate(forecast, together(2, 20), [Absence("home-0", 50)])
    assert (len(headless.finished), len(headless.lost)) == (0, 2), "who loses the head's node loses everything"


def test_a_pipeline_with_a_stage_on_the_heads_node_is_lost_with_any_other_of_its_nodes() -> None:
    mixed = pipeline(line(10, 1), line(10, 1), chunks=line(5, 0.1), name="mixed")
    load = Load(20, Lengths(64), Lengths(20), users=1, think_ms=100)
    assert nodes_may_be_away(fleet(mixed, head_node="mixed-0"), load, 10_000) == 0
    spare = pipeline(line(10, 1), line(10, 1), chunks=line(5, 0.1), name="spare")
    assert nodes_may_be_away(fleet(mixed, spare, head_node="mixed-0"), load, 10_000) == 1


def test_the_worst_nodes_are_those_of_the_fastest_pipelines() -> None:
    """The fast pipeline alone serves in time, the slow ones do not: its loss is what counts."""
    slow = [pipeline(line(900, 100), chunks=line(900, 1), name=f"slow{number}") for number in range(3)]
    fast = pipeline(line(9, 1), chunks=line(9, 0.01), name="fast")
    load = Load(20, Lengths(64), Lengths(20), users=1, think_ms=100)
    assert nodes_may_be_away(fleet(fast, *slow), load, 500) == 0
    assert nodes_may_be_away(fleet(fast, *slow), load, 5000) == 3


def test_fewer_nodes_never_serve_sooner() -> None:
    each = [pipeline(line(30, 2), line(30, 2), chunks=line(20, 0.2), name=f"p{number}") for number in range(4)]
    forecast = fleet(*each, streams=4)
    load = Load(300, Lengths(128, 0.5), Lengths(32, 0.5), users=16, think_ms=500)
    late = [
        percentile(waits(simulate(forecast, load, [Absence(f"p{gone}-0") for gone in range(away)])), 95)
        for away in range(4)
    ]
    assert late == sorted(late)
    assert late[3] > 2 * late[0]
