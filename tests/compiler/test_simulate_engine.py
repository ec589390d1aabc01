"""The simulation decides as the runtime's engine does, and its servers are where they would be one event at a time."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvcompile.forecast import Forecast, HopForecast, PipelineForecast, StageForecast
from ruvcompile.simulate.load import Draws, Lengths, Load
from ruvcompile.simulate.service import Service
from ruvrun.engine import Engine, Request
from ruvrun.frames import Sampled, Sampling, Step
from tests.compiler.forecasts import NOTHING, line
from tests.runtime.consistency import check

CHUNK = 16
Asked = tuple[float, int, int]


def _takes(pipeline: PipelineForecast, place: int, step: Step, asked: Sequence[Asked]) -> float:
    """How long a step keeps a server busy: even places are links, odd ones stages."""
    count = sum(seq.count for seq in step.seqs)
    decode = all(seq.position >= asked[seq.id][1] for seq in step.seqs)
    if place % 2:
        stage = pipeline.stages[place // 2]
        return (stage.step_ms if decode else stage.chunk_ms)(count)
    hop = pipeline.hops[place // 2]
    carried = 1 if place == 2 * len(pipeline.stages) and not decode else count
    return hop.ms_per_byte * hop.bytes_per_row * carried


def by_engine(forecast: Forecast, asked: Sequence[Asked]) -> list[list[float]]:
    """When each token of each request comes, by the real engine and servers that have an event for all they do."""
    (pipeline,) = forecast.pipelines
    engine = Engine(
        stages=len(pipeline.stages), context=forecast.context, streams=forecast.streams, chunk=forecast.chunk
    )
    queues: list[deque[Step]] = [deque() for _ in range(2 * len(pipeline.stages) + 1)]
    busy: list[Step | None] = [None] * len(queues)
    events: list[tuple[float, int, str, Any]] = []
    times: list[list[float]] = [[] for _ in asked]
    numbers = itertools.count()

    def plan(at: float, kind: str, what: Any) -> None:
        heapq.heappush(events, (at, next(numbers), kind, what))

    def begin(place: int, now: float) -> None:
        if busy[place] is None and queues[place]:
            step = busy[place] = queues[place].popleft()
            plan(now + _takes(pipeline, place, step, asked), "done", place)

    for number, (at, prompt, answer) in enumerate(asked):
        request = Request(number, (1,) * prompt, answer, Sampling(0.0, 1.0, 0), frozenset())
        plan(at, "asked", request)
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, _, kind, what = heapq.heappop(events)
            if kind == "asked":
                engine.add(what)
            elif kind == "done":
                step, busy[what] = busy[what], None
                latency = 0.0 if what % 2 else pipeline.hops[what // 2].latency_ms
                plan(now + latency, "there", (what + 1, step))
                begin(what, now)
            elif what[0] < len(queues):
                queues[what[0]].append(what[1])
                begin(what[0], now)
            else:
                due = tuple((seq.id, (7,)) for seq in what[1].seqs if seq.rows)
                for token in engine.receive(Sampled(what[1].epoch, what[1].step, due)):
                    times[token.id].append(now)
                check(engine)
        while (sent := engine.step()) is not None:
            if isinstance(sent[0], Step):
                queues[0].append(sent[0])
                begin(0, now)
    assert engine.idle
    return times


def by_simulation(forecast: Forecast, asked: Sequence[Asked]) -> list[list[float]]:
    service = Service(forecast, Load(len(asked), Lengths(1), Lengths(1), rate=1.0), times=True)
    arrivals, prompts, answers = (list(each) for each in zip(*asked, strict=True))
    service._draws = Draws(prompts, answers, arrivals, [])
    done = service.run().finished
    return [job.times for job in sorted(done, key=lambda job: job.number)]


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 14), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_every_token_comes_when_the_engine_says(stages: int, streams: int, requests: int, seed: int) -> None:
    random = np.random.default_rng(seed)

    def curve() -> Any:
        return line(random.uniform(1, 20), random.uniform(0.1, 3))

    forecast = Forecast(
        (
            PipelineForecast(
                tuple(StageForecast(f"node-{number}", curve(), curve()) for number in range(stages)),
                tuple(
                    HopForecast(random.uniform(0, 30), random.uniform(0, 0.01), int(random.integers(0, 300)))
                    for _ in range(stages + 1)
                ),
            ),
        ),
        "head",
        NOTHING,
        True,
        streams,
        64,
        CHUNK,
    )
    at = np.cumsum(random.exponential(random.choice([1.0, 100.0, 1000.0]), requests)).tolist()
    asked = [(float(each), int(random.integers(1, 50)), int(random.integers(1, 13))) for each in at]
    expected = by_engine(forecast, asked)
    found = by_simulation(forecast, asked)
    assert [len(each) for each in found] == [len(each) for each in expected] == [answer for _, _, answer in asked]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-9)
