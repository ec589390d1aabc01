"""The simulation against what can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvcompile.forecast import Curve, Forecast, HopForecast, PipelineForecast, StageForecast
from ruvcompile.plan.memory import CHUNK
from ruvcompile.plan.pace import first_token_ms
from ruvcompile.plan.times import chunks_of
from ruvcompile.simulate import Absence, Lengths, Load, Outcome, simulate, simulation, timeline
from ruvcompile.simulate.away import limit_ms
from ruvcompile.simulate.figures import figures, paces, percentile, waits
from ruvcompile.simulate.load import draw
from ruvcompile.simulate.told import simulation_text
from ruvrun.manifest.blocks import Pool, pool_of
from tests.compiler.forecasts import NOTHING, fleet, line, pipeline, together

FOREVER = math.inf


def _told(outcome: Outcome) -> list[tuple[object, ...]]:
    jobs = [*outcome.finished, *outcome.lost]
    return [(job.number, job.arrived, job.first, job.done, job.retries) for job in jobs]


def test_one_stage_and_one_user_is_a_sum() -> None:
    """A prompt of 600 tokens is three chunks; each of the other nine tokens is a step."""
    only = pipeline(line(0, 10), chunks=line(5, 0.25), hop=HopForecast(2.0, 0.001, 100))
    (job,) = simulate(fleet(only, head=line(0.5, 0.25)), together(1, 10, prompt=600)).finished
    # Latency overlaps, and so does the way there of all chunks but the first; the stage does them one after another.
    chunks = 0.75 + 256 * 0.1 + 2 + 3 * 5 + 600 * 0.25 + 0.1 + 2
    assert job.first == pytest.approx(chunks)
    assert job.done == pytest.approx(chunks + 9 * (0.75 + 0.1 + 2 + 10 + 0.1 + 2))


@pytest.mark.parametrize(
    ("rows", "tokens", "expected"), [(2, 0, 14.0), (0, 20, 9.0), (2, 20, 14.0 + 20 * 0.25), (1, 2, 12.0 + 2 * 0.25)]
)
def test_a_chunk_in_a_step_that_goes_anyway_adds_only_its_tokens(rows: int, tokens: int, expected: float) -> None:
    chunks = Curve(((2, 4.5), (10, 6.5), (20, 9.0)))
    assert StageForecast("a", line(10, 2), chunks).ms(rows, tokens) == pytest.approx(expected)
    assert StageForecast("a", line(10, 2), Curve(((4, 1.0),))).ms(2, 8) == pytest.approx(16.0), "of one size, its mean"


@given(
    stages=st.lists(st.tuples(st.floats(0, 20), st.floats(0, 0.5)), min_size=1, max_size=4),
    links=st.lists(st.tuples(st.floats(0, 200), st.floats(0, 0.002), st.integers(0, 300)), min_size=5, max_size=5),
    head_ms=st.floats(0, 8),
    prompt=st.integers(1, 3000),
    beside=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_the_first_token_comes_when_the_plan_says(
    stages: list[tuple[float, float]],
    links: list[tuple[float, float, int]],
    head_ms: float,
    prompt: int,
    beside: bool,
) -> None:
    """Of one request to an idle pipeline: links slow or far, a window that is full, the head beside a stage."""
    lines = [line(*stage) for stage in stages]
    hops = tuple(HopForecast(*link) for link in links[: len(stages) + 1])
    idle = PipelineForecast(tuple(StageForecast(f"n-{at}", NOTHING, each) for at, each in enumerate(lines)), hops)
    forecast = fleet(idle, head=line(head_ms, 0), head_node="n-0" if beside else "head", chunk=CHUNK)
    sizes = chunks_of(prompt)
    assert sum(sizes) == prompt
    times = [[each(size) for each in lines] for size in sizes]
    (job,) = simulate(forecast, together(1, 1, prompt)).finished
    found = first_token_ms(sizes, times, head_ms, hops, [0] if beside else [])
    assert found == pytest.approx(job.first, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("streams", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("latency", [0.0, 25.0])
def test_a_full_pipeline_has_the_round_of_the_model(streams: int, latency: float) -> None:
    """S sequences on s stages: at most s steps, as equal as can be, and the longer of two times for a round."""
    steps = (line(8, 1), line(11, 0.5), line(6, 2))
    forecast = fleet(pipeline(*steps, hop=HopForecast(latency, 0.01, 100)), head=line(0.25, 0.5))
    rows = -(-streams // 3)
    groups = min(streams, 3)
    slowest = max(step(streams / groups) for step in steps)
    once = sum(step(rows) for step in steps) + 4 * (latency + rows) + forecast.head_ms(rows)
    answer = 400
    outcome = simulate(forecast, together(streams, answer))
    (pace,) = {round(each, 6) for each in paces(outcome)[:1]}
    assert pace == pytest.approx(max(groups * slowest, once), rel=0.02)


def test_the_head_takes_its_time_from_the_stage_beside_it() -> None:
    steps = (line(10, 0), line(10, 0))
    apart = fleet(pipeline(*steps), head=line(3, 0))
    beside = replace(apart, head_node="node-0")
    paced = [simulate(forecast, together(2, 500)) for forecast in (apart, beside)]
    alone, shared = (percentile(paces(outcome), 50) for outcome in paced)
    # Apart, three milliseconds of the head hide behind nothing: 10 + 10 + 3 is more than two steps of either stage.
    assert alone == pytest.approx(23, rel=0.01)
    assert shared == pytest.approx(2 * 13, rel=0.01)
    (one,) = simulate(beside, together(1, 11)).finished
    assert one.done is not None
    assert one.first is not None
    assert one.done - one.first == pytest.approx(10 * 23)


def test_one_head_can_be_too_little_for_many_pipelines() -> None:
    """Eight stages could do some 760 tokens a second; a head that takes 5 ms for each step lets 200 pass."""
    each = [pipeline(line(10 + number / 7, 0), name=f"p{number}") for number in range(8)]
    outcome = simulate(fleet(*each, head=line(5, 0), streams=1), together(8, 200))
    assert outcome.tokens / outcome.full_ms == pytest.approx(0.2, rel=0.02)
    assert outcome.head_ms == pytest.approx(outcome.full_ms, rel=0.02)


def test_a_queue_waits_as_long_as_theory_says() -> None:
    """Calls of a graph on one stage, at a rate: M/D/1 waits rho / (2 (1 - rho)) services (Pollaczek and Khinchine)."""
    graph = replace(fleet(pipeline(line(0, 10))), decoder=False)
    for busy in (0.2, 0.4, 0.6):
        outcome = simulate(graph, Load(30_000, rate=100 * busy, seed=5))
        waited = np.array(waits(outcome)) - 10
        assert waited.mean() == pytest.approx(10 * busy / (2 * (1 - busy)), rel=0.06)
        assert outcome.busy_ms[0][0] / outcome.full_ms == pytest.approx(busy, rel=0.02)


def test_calls_of_a_graph_overlap_in_the_stages() -> None:
    graph = replace(fleet(pipeline(line(0, 10), line(0, 30), line(0, 20))), decoder=False)
    outcome = simulate(graph, Load(1000, users=8))
    assert outcome.end_ms == pytest.approx(10 + 30 * 1000 + 20)
    found = figures(graph, Load(1000, users=8), outcome)
    assert found["items_per_s"] == pytest.approx(1e3 / 30, rel=0.01)
    assert "ttft_ms" not in found


def test_a_link_carries_one_message_at_a_time() -> None:
    """Two stages of 10 ms a token, and a link that needs 40: the link is what limits, not its latency."""
    hops = (HopForecast(0, 0, 0), HopForecast(50, 0.4, 100), HopForecast(0, 0, 0))
    slow = replace(pipeline(line(0, 10), line(0, 10)), hops=hops)
    outcome = simulate(fleet(slow, streams=8), together(8, 300))
    # Four sequences a step: 160 ms on the link.
    assert percentile(paces(outcome), 50) == pytest.approx(2 * 160, rel=0.02)


def test_two_pipelines_share_the_users() -> None:
    one = fleet(pipeline(line(10, 1)))
    two = fleet(pipeline(line(10, 1), name="a"), pipeline(line(10, 1), name="b"))
    assert percentile(paces(simulate(one, together(8, 100))), 50) == pytest.approx(18, rel=0.02)
    assert percentile(paces(simulate(two, together(8, 100))), 50) == pytest.approx(14, rel=0.02)


def test_whoever_waits_gets_the_first_slot_in_order() -> None:
    forecast = fleet(pipeline(line(10, 0), chunks=line(1, 0)), streams=2)
    jobs = sorted(simulate(forecast, together(6, 5)).finished, key=lambda job: job.number)
    firsts = [job.first for job in jobs]
    assert firsts == sorted(firsts, key=float)  # type: ignore[arg-type]
    assert jobs[2].first is not None
    assert jobs[0].done is not None
    assert jobs[2].first > jobs[0].done


@st.composite
def _cases(draw_: st.DrawFn) -> tuple[Forecast, Load, list[Absence]]:
    times = st.floats(0.1, 30.0)
    pipelines = []
    for number in range(draw_(st.integers(1, 3))):
        steps = [line(draw_(times), draw_(times)) for _ in range(draw_(st.integers(1, 3)))]
        hop = HopForecast(draw_(st.floats(0, 20)), draw_(st.floats(0, 0.01)), draw_(st.integers(0, 200)))
        pipelines.append(pipeline(*steps, chunks=line(draw_(times), 0.1), hop=hop, name=f"p{number}"))
    head_node = draw_(st.sampled_from(["head", "p0-0"]))
    forecast = fleet(*pipelines, head=line(draw_(st.floats(0, 5)), 0.1), head_node=head_node, chunk=32)
    forecast = replace(forecast, streams=draw_(st.integers(1, 6)), decoder=draw_(st.booleans()))
    if forecast.decoder and draw_(st.booleans()):  # some of them share their space
        pools = [draw_(st.none() | st.integers(4, 9).map(lambda blocks: Pool(blocks, 32))) for _ in pipelines]
        shared = tuple(replace(each, pool=pool) for each, pool in zip(pipelines, pools, strict=True))
        forecast = replace(forecast, context=128, pipelines=shared)
    spread = draw_(st.sampled_from([0.0, 0.5, 2.0]))
    asks: dict[str, Any] = draw_(
        st.sampled_from([{"users": 1}, {"users": 7}, {"users": 5, "think_ms": 80.0}, {"rate": 20.0}])
    )
    load = Load(
        draw_(st.integers(1, 30)), Lengths(40, spread), Lengths(6, spread), seed=draw_(st.integers(0, 99)), **asks
    )
    nodes = [stage.node for each in pipelines for stage in each.stages] + ["head"]
    absences = []
    for node in draw_(st.lists(st.sampled_from(nodes), max_size=3, unique=True)):
        start = draw_(st.floats(0, 400))
        absences.append(Absence(node, start, draw_(st.sampled_from([start + 50, start + 1000, FOREVER]))))
    return forecast, load, absences


@given(_cases())
@settings(max_examples=200, deadline=None)
def test_no_request_is_forgotten(case: tuple[Forecast, Load, list[Absence]]) -> None:
    forecast, load, absences = case
    outcome = simulate(forecast, load, absences)
    numbers = sorted(job.number for job in [*outcome.finished, *outcome.lost])
    made = len(numbers)
    assert numbers == list(range(made))
    # Whoever waits for ever asks no more; else all requests are made, and end.
    assert made == load.requests or (outcome.lost and load.users)
    gone = {absence.node for absence in absences if absence.end_ms == FOREVER}
    lasting = [
        each for each in forecast.pipelines if not gone & {forecast.head_node, *(stage.node for stage in each.stages)}
    ]
    if lasting:
        assert not outcome.lost
    for job in outcome.finished:
        assert job.first is not None
        assert job.done is not None
        assert job.arrived < job.first <= job.done <= outcome.end_ms
    for stages in outcome.busy_ms:
        for busy in stages:
            assert busy >= 0


@given(_cases())
@settings(max_examples=50, deadline=None)
def test_the_same_seed_gives_the_same_figures(case: tuple[Forecast, Load, list[Absence]]) -> None:
    forecast, load, absences = case
    first, second = (simulate(forecast, load, absences) for _ in range(2))
    assert _told(first) == _told(second)
    assert first.busy_ms == second.busy_ms


def test_another_seed_gives_others() -> None:
    forecast = fleet(pipeline(line(10, 1)))
    load = Load(50, Lengths(50, 0.5), Lengths(10, 0.5), users=5, think_ms=100)
    assert _told(simulate(forecast, load)) != _told(simulate(forecast, replace(load, seed=1)))


def test_lengths_are_what_was_asked_and_end_with_the_context() -> None:
    random = np.random.default_rng(1)
    drawn = np.array(Lengths(200, 0.5).draw(random, 20_000))
    assert drawn.mean() == pytest.approx(200, rel=0.02)
    assert drawn.std() == pytest.approx(100, rel=0.05)
    assert Lengths(7).draw(random, 3) == [7, 7, 7]
    small = replace(fleet(pipeline(NOTHING)), context=64)
    draws = draw(Load(1000, Lengths(60, 2.0), Lengths(60, 2.0), users=1), small)
    sums = [prompt + answer for prompt, answer in zip(draws.prompts, draws.answers, strict=True)]
    assert max(sums) == 64
    assert min(draws.answers) >= 1
    assert max(draws.prompts) <= 63


def test_the_figures_of_a_plan() -> None:
    forecast = fleet(*[pipeline(line(20, 2), line(20, 2), chunks=line(9, 0.1), name=f"p{n}") for n in range(3)])
    found = simulation(forecast, users=None, prompt_tokens=100, max_tokens=32)
    assert found["max_tokens"] == 32
    assert found["is"] == "a simulation, from measured costs"
    assert (found["users"], found["requests"], found["lost"], found["seed"]) == (30, 2000, 0, 0)
    assert 0 < found["ttft_ms"]["p50"] < found["ttft_ms"]["p95"] < found["in_time_ms"]
    # What is asked for when nobody waits long: 30 people, each with an answer every 10 s and what it takes.
    assert found["tokens_per_s"] == pytest.approx(30 * 32 / (10 + 0.032 * found["tpot_ms"]["p50"]), rel=0.15)
    assert found["bubble"] == pytest.approx(1 - np.mean([stage["busy"] for stage in found["stages"]]), abs=1e-3)
    assert found["nodes_may_be_away"] == 2
    assert simulation(replace(forecast, cost_source="scaled"), 1, 10)["is"] == "a simulation, from scaled costs"


def test_a_plan_says_where_not_even_all_nodes_are_enough() -> None:
    """One slow stage for 30 people: they wait minutes, and nobody may be away."""
    slow = pipeline(line(900, 20), line(900, 20), chunks=line(300, 1))
    found = simulation(fleet(slow, pipeline(*[stage.step_ms for stage in slow.stages], name="b")), 300, 64, 16)
    assert not found["in_time"]
    assert found["nodes_may_be_away"] == 0
    assert found["in_time_ms"] == 10_000
    assert "not even with all nodes there is p95 within 10.0 s" in simulation_text(found)


def test_twice_the_time_of_somebody_alone_is_in_time() -> None:
    only = fleet(pipeline(line(10, 0), chunks=line(7000, 0)))
    assert limit_ms(only, Load(9, Lengths(64), Lengths(8), users=9)) == pytest.approx(14_000)
    graph = replace(fleet(pipeline(line(10, 0))), decoder=False)
    assert limit_ms(graph, Load(9, users=9)) == 1000


def test_a_simulation_is_told_in_a_sentence() -> None:
    forecast = fleet(*[pipeline(line(20, 2), line(20, 2), chunks=line(9, 0.1), name=f"p{n}") for n in range(3)])
    told = simulation_text(simulation(forecast, 6, 100, 32))
    assert told.startswith("a simulation, from measured costs: 6 users, 10 s of pause between requests, prompts of 100")
    assert "2 nodes may be away, the head's not counted, with p95 within 10.0 s" in told
    assert "cut where" not in told
    small = simulation_text(simulation(replace(forecast, context=64), 6, 100, 32))
    assert "32 tokens in the mean, cut where the context of 64 ends: " in small, "nobody is told of lengths nobody had"
    graph = replace(fleet(pipeline(line(20, 2))), decoder=False)
    assert "items/s in all" in simulation_text(simulation(graph, 1, 512))
    assert "put back" not in told
    tight = replace(forecast.pipelines[0], pool=pool_of(1024, 1))
    full = simulation(replace(forecast, pipelines=(tight,), streams=1, context=1024), 30, 100, 250)
    assert full["put_backs"] > 0
    assert f", sequences put back {full['put_backs']} times; stages idle" in simulation_text(full)


def test_a_timeline_shows_everybody_at_work_and_nobody_twice_at_once() -> None:
    hop = HopForecast(1.0, 0.01, 100)
    forecast = fleet(pipeline(line(10, 1), line(10, 1), chunks=line(2, 0.1), hop=hop), head=line(0.5, 0))
    spans = timeline(forecast, streams=4, until_ms=400)
    assert [span.start_ms for span in spans] == sorted(span.start_ms for span in spans)
    assert max(span.start_ms for span in spans) < 400
    assert {span.what for span in spans} == {"prompt", "decode", "link", "head"}
    assert {span.node for span in spans if span.what == "decode"} == {"node-0", "node-1"}
    for node in ("node-0", "node-1"):
        work = [span for span in spans if span.node == node and span.what in ("decode", "prompt")]
        for one, following in pairwise(work):
            assert following.start_ms >= one.end_ms
    # Every step is two rows on two stages for four sequences, once their prompts are done.
    assert {span.rows for span in spans if span.what == "decode" and span.start_ms > 200} == {2}
    busy = sum(span.end_ms - span.start_ms for span in spans if span.what == "decode" and span.stage == 0)
    assert busy > 150


def test_a_timeline_of_a_graph_has_calls() -> None:
    graph = replace(fleet(pipeline(line(0, 10), line(0, 10))), decoder=False)
    spans = timeline(graph, streams=2, until_ms=50)
    assert {span.what for span in spans} == {"call"}
    assert len([span for span in spans if span.stage == 0]) == 5
