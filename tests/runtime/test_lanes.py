"""Any history of one to three pipelines: requests come, are cancelled, stages are lost and come back, or do not. Every
request ends once: with the tokens of the model alone, whatever pipelines it was in and however often they were lost, or
with the reason why not. Real engines and workers, no threads.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.engine import Engine, Lost, Sequence, Token
from ruvrun.executors import Array
from ruvrun.manifest.blocks import Pool
from ruvrun.pipeline.lane import Event, Lane, Told
from ruvrun.pipeline.spread import MOST_LOSSES, come_back, least_busy, leave, level, overdue
from ruvrun.pipeline.worker import Worker
from tests import strategies
from tests.runtime.consistency import check
from tests.runtime.fakes import VOCAB, fake_workers, plain_tokens
from tests.runtime.pools import pooled_workers

CONTEXT = 24
LATE = math.inf  # any deadline is over


class World:
    """What the driver does, one act at a time."""

    def __init__(self, pipelines: int, stages: int, streams: int, absence: float, pool: Pool | None) -> None:
        self.stages, self.streams, self.pool = stages, streams, pool
        self.engines = [
            Engine(stages=stages, context=CONTEXT, streams=streams, chunk=4, epoch=1, pool=pool)
            for _ in range(pipelines)
        ]
        self.lanes = [Lane(number, engine, 10.0, absence) for number, engine in enumerate(self.engines)]
        self.workers = [self.fresh() for _ in range(pipelines)]
        self.rings: list[deque[tuple[frames.Message, Mapping[str, Array]]]] = [deque() for _ in range(pipelines)]
        self.heard: dict[int, list[Event]] = {}
        self.asked: dict[int, object] = {}
        self.gone: set[int] = set()
        self.losses: Counter[int] = Counter()
        for lane in self.lanes:
            lane.ready = True

    def fresh(self) -> list[Worker]:
        if self.pool is None:
            return fake_workers(self.stages, slots=self.streams, context=CONTEXT)
        return pooled_workers(self.stages, sequences=self.streams, context=CONTEXT, pool=self.pool)

    def ask(self, data: st.DataObject) -> None:
        request = data.draw(strategies.requests(len(self.heard) + 1, context=CONTEXT, vocab=VOCAB))
        lane = least_busy(self.lanes)
        if lane is None:
            return
        events = self.heard[request.id] = []
        self.asked[request.id] = request
        assert isinstance(lane.work, Engine)
        lane.work.add(request)
        lane.callers[request.id] = events.append

    def cancel(self, data: st.DataObject) -> None:
        if self.heard:
            name = data.draw(st.sampled_from(sorted(self.heard)))
            if any(lane.cancel(name) for lane in self.lanes):
                self.gone.add(name)

    def lose(self, data: st.DataObject) -> None:
        """A pipeline is not whole: its processes died with all they had, or go on, and what they send comes late. Or it
        is whole, and could not run a step.
        """
        lane = data.draw(st.sampled_from(self.lanes))
        if not lane.ready:
            return
        lane.ready = data.draw(st.booleans())
        assert isinstance(lane.work, Engine)
        begun = list(lane.work._roster.running)
        waiting = [each.request.id for each in lane.work._roster.line]
        self.losses.update(begun)
        told = leave(lane, self.lanes, "gone")
        if lane.absence or any(other.ready for other in self.lanes if other is not lane):
            ended = [name for name in begun if self.losses[name] >= MOST_LOSSES]
        else:
            ended = [*begun, *waiting]
        assert sorted(event.id for _, event in told) == sorted(ended), "all others go on elsewhere"
        assert lane.work.idle
        self.tell(told)
        if data.draw(st.booleans()):
            self.workers[lane.number] = self.fresh()
            self.rings[lane.number].clear()

    def mend(self, data: st.DataObject) -> None:
        come_back(data.draw(st.sampled_from(self.lanes)), self.lanes)

    def wait(self, data: st.DataObject) -> None:
        """The time is over in which a lost pipeline was to be whole, or for which one that failed is left alone."""
        lane = data.draw(st.sampled_from(self.lanes))
        if lane.kept:
            kept = [each.request.id for each in lane.kept if isinstance(each, Sequence)]
            told = overdue(lane, self.lanes, LATE)
            assert [event.id for _, event in told] == ([] if lane.ready else kept)
            assert not lane.kept
            self.tell(told)

    def turn(self, number: int) -> None:
        """Send what can go, and let the oldest message of this pipeline go round."""
        ring, told = self.rings[number], []
        ring += self.lanes[number].next()
        if ring:
            result = ring.popleft()
            for worker in self.workers[number]:
                result = worker.handle(*result) if result is not None else None
            if result is not None:
                assert isinstance(result[0], frames.Sampled)
                self.lanes[number].sampled(result[0], told)
        self.tell(told)

    def tell(self, told: Told) -> None:
        for caller, event in told:
            caller(event)

    def check(self) -> None:
        for engine in self.engines:
            check(engine)
        level(self.lanes)
        room = any(lane.ready and lane.work.has_room for lane in self.lanes)
        assert not (room and any(lane.work.waiting for lane in self.lanes)), "one waits although there is room"
        held = [name for lane in self.lanes for name in lane.callers]
        assert len(held) == len(set(held))
        alive = [each.request.id for engine in self.engines for each in engine._roster]
        alive += [each.request.id for lane in self.lanes for each in lane.kept if isinstance(each, Sequence)]
        assert not any(lane.work.running and lane.kept and not lane.ready for lane in self.lanes)
        assert sorted(held) == sorted(alive)


@given(
    st.data(),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from([0.0, 30.0]),
    st.none() | st.integers(6, 20),
)
@settings(deadline=None, max_examples=120)
def test_every_request_ends_once_and_right(
    data: st.DataObject, pipelines: int, stages: int, streams: int, absence: float, blocks: int | None
) -> None:
    world = World(pipelines, stages, streams, absence, blocks and Pool(blocks, 4))
    acts = [world.ask, world.ask, world.cancel, world.lose, world.mend, world.wait]
    for _ in range(data.draw(st.integers(1, 30))):
        if data.draw(st.booleans()):
            data.draw(st.sampled_from(acts))(data)
        else:
            world.turn(data.draw(st.integers(0, pipelines - 1)))
        world.check()
    for lane in world.lanes:
        come_back(lane, world.lanes)
    while any(lane.work.running or lane.work.waiting for lane in world.lanes):
        for number in range(pipelines):
            world.turn(number)
        world.check()
    for name, events in world.heard.items():
        tokens = [event.token for event in events if isinstance(event, Token)]
        expected = plain_tokens(world.asked[name], CONTEXT)  # type: ignore[arg-type] # a request
        assert tokens == expected[: len(tokens)]
        ends = [event for event in events if isinstance(event, Lost) or event.finish]
        if name in world.gone:
            assert not ends
        else:
            assert ends == events[-1:], "once, and nothing after it"
            assert isinstance(ends[0], Lost) or tokens == expected
