"""The simulation decides as the runtime's engine does, and its servers are where they would be one event at a time."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ruvcompile.forecast import Forecast, HopForecast, PipelineForecast, StageForecast
from ruvcompile.simulate.load import Draws, Lengths, Load
from ruvcompile.simulate.service import Absence, Service
from ruvrun.engine import Engine, Request
from ruvrun.engine import Sequence as EngineSequence
from ruvrun.engine.groups import groups_of
from ruvrun.frames import Sampled, Sampling, Step
from ruvrun.manifest.blocks import Pool, sequences_of
from tests.compiler.forecasts import NEAR, NOTHING, fleet, line, pipeline
from tests.runtime.consistency import check

CHUNK, CONTEXT, SIZE = 16, 64, 4
BLOCKS = CONTEXT // SIZE
"""Of one sequence that uses the whole context."""
Asked = tuple[float, int, int]
Away = tuple[float, float]


def _takes(pipeline: PipelineForecast, place: int, step: Step, asked: Sequence[Asked]) -> float:
    """How long a step keeps a server busy: even places are links, odd ones stages."""
    rows = sum(seq.position >= asked[seq.id][1] for seq in step.seqs)
    tokens = sum(seq.count for seq in step.seqs) - rows
    if place % 2:
        return pipeline.stages[place // 2].ms(rows, tokens)
    hop = pipeline.hops[place // 2]
    carried = rows + (1 if tokens and place == 2 * len(pipeline.stages) else tokens)
    return hop.ms_per_byte * hop.bytes_per_row * carried


class Played:
    """The real engine, and servers that have an event for all they do. While the pipeline is ``away`` nothing goes, and
    what was computed is lost.
    """

    def __init__(self, forecast: Forecast, asked: Sequence[Asked], away: Sequence[Away]) -> None:
        (self.pipeline,) = forecast.pipelines
        streams = sequences_of(forecast.streams) if self.pipeline.pool else forecast.streams
        stages = self.pipeline.stages
        self.engine = Engine(
            stages=len(stages),
            context=forecast.context,
            streams=streams,
            chunk=forecast.chunk,
            beside=self.pipeline.beside,
            ragged=self.pipeline.ragged,
            groups=groups_of([[stage.step_ms(rows) for rows in range(1, streams + 1)] for stage in stages]),
            pool=self.pipeline.pool,
        )
        self.asked = asked
        self.queues: list[deque[Step]] = [deque() for _ in range(2 * len(stages) + 1)]
        self.busy: list[Step | None] = [None] * len(self.queues)
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.numbers = itertools.count()
        self.times: list[list[float]] = [[] for _ in asked]
        self.held: list[EngineSequence] | None = None
        for number, (at, prompt, answer) in enumerate(asked):
            request = Request(number, (1,) * prompt, answer, Sampling(0.0, 1.0, 0), frozenset())
            self.plan(at, self.come, EngineSequence(request))
        for start, end in away:
            self.plan(start, self.go_away)
            self.plan(end, self.come_back)

    def run(self) -> None:
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, _, act, what = heapq.heappop(self.events)
                act(now, *what)
            while (sent := self.engine.step()) is not None:
                if isinstance(sent[0], Step):
                    self.there(now, 0, sent[0])
        assert self.engine.idle

    def plan(self, at: float, act: Callable[..., None], *what: Any) -> None:
        heapq.heappush(self.events, (at, next(self.numbers), act, what))

    def come(self, _now: float, sequence: EngineSequence) -> None:
        if self.held is None:
            self.engine.resume(sequence)
        else:
            self.held.append(sequence)

    def go_away(self, _now: float) -> None:
        self.held = self.engine.abandon()
        for queue in self.queues:
            queue.clear()
        self.busy = [None] * len(self.queues)

    def come_back(self, now: float) -> None:
        held, self.held = self.held, None
        for sequence in held or ():
            self.come(now, sequence)

    def begin(self, now: float, place: int) -> None:
        if self.busy[place] is None and self.queues[place]:
            step = self.busy[place] = self.queues[place].popleft()
            self.plan(now + _takes(self.pipeline, place, step, self.asked), self.done, place, step)

    def done(self, now: float, place: int, step: Step) -> None:
        if step.epoch == self.engine.epoch:
            self.busy[place] = None
            latency = 0.0 if place % 2 else self.pipeline.hops[place // 2].latency_ms
            self.plan(now + latency, self.there, place + 1, step)
            self.begin(now, place)

    def there(self, now: float, place: int, step: Step) -> None:
        if step.epoch < self.engine.epoch:
            return
        if place < len(self.queues):
            self.queues[place].append(step)
            self.begin(now, place)
            return
        due = tuple((seq.id, (7,)) for seq in step.seqs if seq.rows)
        for token in self.engine.receive(Sampled(step.epoch, step.step, due)):
            self.times[token.id].append(now)
        check(self.engine)


def by_engine(forecast: Forecast, asked: Sequence[Asked], away: Sequence[Away] = ()) -> tuple[list[list[float]], int]:
    """When each token of each request comes, and how many were put back."""
    played = Played(forecast, asked, away)
    played.run()
    return played.times, played.engine.put_backs


def by_simulation(
    forecast: Forecast, asked: Sequence[Asked], away: Sequence[Away] = ()
) -> tuple[list[list[float]], int]:
    absences = [Absence(forecast.pipelines[0].stages[-1].node, *each) for each in away]
    service = Service(forecast, Load(len(asked), Lengths(1), Lengths(1), rate=1.0), absences, times=True)
    arrivals, prompts, answers = (list(each) for each in zip(*asked, strict=True))
    service._draws = Draws(prompts, answers, arrivals, [])
    outcome = service.run()
    return [job.times for job in sorted(outcome.finished, key=lambda job: job.number)], outcome.put_backs


def drawn(random: np.random.Generator, stages: int, streams: int, pool: Pool | None) -> Forecast:
    """A pipeline of stages and links of any speed."""

    def curve() -> Any:
        return line(random.uniform(1, 20), random.uniform(0.1, 3))

    return Forecast(
        (
            PipelineForecast(
                tuple(StageForecast(f"node-{number}", curve(), curve()) for number in range(stages)),
                tuple(
                    HopForecast(random.uniform(0, 30), random.uniform(0, 0.01), int(random.integers(0, 300)))
                    for _ in range(stages + 1)
                ),
                pool,
                tuple(random.integers(2, CHUNK, int(random.integers(0, 4))).tolist()),
                pool is not None and bool(random.integers(2)),
            ),
        ),
        "head",
        NOTHING,
        True,
        streams,
        CONTEXT,
        CHUNK,
    )


def asked_of(random: np.random.Generator, requests: int, answer: int) -> list[Asked]:
    """So many requests that fit the context, of answers below ``answer`` tokens."""
    at = np.cumsum(random.exponential(random.choice([1.0, 100.0, 1000.0]), requests)).tolist()
    lengths = [(int(random.integers(1, 50)), int(random.integers(1, answer))) for _ in at]
    return [(float(each), prompt, min(own, CONTEXT - prompt)) for each, (prompt, own) in zip(at, lengths, strict=True)]


@pytest.mark.parametrize("shared", [False, True], ids=["slots", "blocks"])
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 14), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_every_token_comes_when_the_engine_says(
    shared: bool, stages: int, streams: int, requests: int, seed: int
) -> None:
    """Where space is in blocks, those whose tokens come again, too; and with chunks in the steps of others."""
    random = np.random.default_rng(seed)
    forecast = drawn(random, stages, streams, Pool(BLOCKS + int(random.integers(0, 20)), SIZE) if shared else None)
    asked = asked_of(random, requests, 60 if shared else 13)
    expected, put_backs = by_engine(forecast, asked)
    found, counted = by_simulation(forecast, asked)
    assert counted == put_backs
    event(f"{'some' if put_backs else 'none'} put back")
    assert [len(each) for each in found] == [len(each) for each in expected] == [answer for _, _, answer in asked]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("shared", [False, True], ids=["slots", "blocks"])
@given(
    st.integers(1, 4),
    st.integers(1, 7),
    st.integers(1, 10),
    st.integers(0, 2**32 - 1),
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6).filter(lambda pauses: len(pauses) % 2 == 0),
)
@settings(max_examples=100, deadline=None)
def test_what_is_lost_is_computed_again_as_the_engine_does_it(
    shared: bool, stages: int, streams: int, requests: int, seed: int, pauses: list[float]
) -> None:
    """A node goes and comes back, one to three times: every token comes once, and when the engine says."""
    random = np.random.default_rng(seed)
    forecast = drawn(random, stages, streams, Pool(BLOCKS + int(random.integers(0, 20)), SIZE) if shared else None)
    asked = asked_of(random, requests, 40)
    undisturbed, _ = by_engine(forecast, asked)
    end = max(times[-1] for times in undisturbed)
    moments = np.cumsum(pauses).tolist()
    away = [(end * start / 2, end * back / 2) for start, back in zip(moments[::2], moments[1::2], strict=True)]
    expected, put_backs = by_engine(forecast, asked, away)
    found, counted = by_simulation(forecast, asked, away)
    assert counted == put_backs
    event(f"{'later' if expected != undisturbed else 'nobody noticed'}")
    assert [len(each) for each in found] == [len(each) for each in expected] == [answer for _, _, answer in asked]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize(
    ("beside", "ragged", "expected"),
    [((), False, 4 + 61 * 0.5), ((16,), False, 4 * 4 + 61 * 0.5 + 3 * 10), ((16,), True, 61 * 0.5 + 4 * 10)],
)
def test_a_prompt_beside_one_who_decodes_goes_in_small_chunks_between_the_others_steps_or_in_them(
    beside: tuple[int, ...], ragged: bool, expected: float
) -> None:
    """61 tokens in chunks of 16, the last of 13: from the end of the step that is at work when it comes, at 24.5 ms."""
    only = replace(pipeline(line(10, 0), chunks=line(4, 0.5)), beside=beside, ragged=ragged)
    (_, (first, _)), _ = by_simulation(fleet(only, streams=2), [(0.0, 1, 40), (15.0, 61, 2)])
    assert first == pytest.approx(24.5 + expected)


def test_more_are_at_work_than_were_planned_for_and_some_are_put_back() -> None:
    """In the space of four whole contexts: eight of a quarter each run together, and eight that grow do not."""
    shared = drawn(np.random.default_rng(3), 2, 4, Pool(4 * BLOCKS, SIZE))
    slots = replace(shared, pipelines=(replace(shared.pipelines[0], pool=None),))
    short, long = ([(0.0, 4, answer)] * 8 for answer in (8, 56))
    together, in_turn = ([times[0] for times in by_simulation(each, short)[0]] for each in (shared, slots))
    assert max(together) < max(in_turn)
    assert by_simulation(shared, short)[1] == 0
    assert by_simulation(shared, long)[1] > 0
    assert by_simulation(slots, long)[1] == 0


def test_who_waits_at_a_full_pipeline_goes_on_at_one_that_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pools of a context each, and three who want all of one: the third goes to where the shorter one ends."""
    one = PipelineForecast((StageForecast("a", line(10, 1), line(10, 1)),), (NEAR, NEAR), Pool(BLOCKS, SIZE))
    other = replace(one, stages=(replace(one.stages[0], node="b"),))
    forecast = Forecast((one, other), "head", NOTHING, True, 1, CONTEXT, CHUNK)
    asked = [(0.0, 60, 4), (1.0, 61, 1), (2.0, 60, 2)]
    long, short, third = by_simulation(forecast, asked)[0]
    assert short[-1] < long[-1] < third[0]
    monkeypatch.setattr("ruvcompile.simulate.service.level", lambda _: [])
    stayed = by_simulation(forecast, asked)[0][2]
    assert stayed[0] - third[0] == pytest.approx(long[-1] - short[-1])
