"""A pipeline that is the only one loses a stage: its clients see a pause, or a clear error if it does not come back."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ruvrun import frames
from ruvrun.engine import Lost, Request, Token
from ruvrun.errors import UnreachableError
from ruvrun.manifest import Space
from ruvrun.pipeline import lane as lane_module
from ruvrun.pipeline.calls import Calls
from ruvrun.pipeline.driver import Driver, Event
from ruvrun.pipeline.head import open_driver
from ruvrun.pipeline.lane import absence_of
from ruvrun.pipeline.spread import MOST_LOSSES
from ruvrun.pipeline.worker import Worker
from tests.runtime.driving import NAMES, Doubler, Listener, driving, graph_spec, request, start
from tests.runtime.fake_ring import WAIT, FakeRing, fake_manifest, tokens_of, wait_until
from tests.runtime.fakes import fake_workers, greedy, plain_tokens
from tests.runtime.fleets import CONTEXT, SLOTS, fleet

STREAMS = 4
Asked = list[tuple[Request, Listener]]


@contextmanager
def under_way(count: int = 6) -> Iterator[tuple[Driver, FakeRing, Asked]]:
    """More requests than there are slots, stopped in the middle: the ring stands still with what they last sent."""
    with driving(streams=STREAMS, serving=True) as (driver, ring):

        def look() -> None:
            ring.hold = len(ring.sent) > 8 + 4 * count

        ring.on_step = look
        ring.ready()
        assert driver.wait_ready(WAIT)
        asked = [
            (one, start(driver, one)) for one in (request(driver, tuple(range(2, 5 + n)), 20) for n in range(count))
        ]
        wait_until(lambda: ring.hold and ring.sleeping.is_set())
        ring.on_step = lambda: None
        yield driver, ring, asked


def lose(driver: Driver, ring: FakeRing, name: str = "b") -> None:
    """The stage is gone with all it had, and what was in the ring."""
    ring.inject(frames.State(name, "lost", "it was killed"))
    wait_until(lambda: driver.health()["status"] == "lost")
    ring.lose_ring()
    ring.replace(fake_workers(2, slots=STREAMS, context=64)[NAMES.index(name)], NAMES.index(name))
    ring.release()


def come_back(ring: FakeRing, name: str = "b") -> None:
    ring.inject(frames.State(name, "loading", ""))
    ring.inject(frames.State(name, "ready", ""))


def right(asked: Asked) -> bool:
    return all(listener.tokens() == plain_tokens(one, 64) for one, listener in asked)


@pytest.mark.parametrize("name", NAMES)
def test_answers_go_on_with_the_same_tokens_when_the_stage_is_back(name: str) -> None:
    with under_way() as (driver, ring, asked):
        lose(driver, ring, name)
        assert driver.load() == (0, 6), "all of them wait"
        with pytest.raises(UnreachableError, match="is not there"):
            driver.submit(request(driver), Listener())
        come_back(ring, name)
        assert right(asked)
        assert driver.load() == (0, 0)


def test_without_a_way_back_they_end_with_a_clear_error_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with under_way() as (driver, ring, asked):
        monkeypatch.setattr(driver._lanes[0], "absence", 0.05)
        lose(driver, ring)
        for _, listener in asked:
            while isinstance(event := listener.next(), Token):
                pass
            assert isinstance(event, Lost)
            assert "b (stage 1) was lost: it was killed; it was not back within" in event.why
        assert driver.load() == (0, 0)
        assert driver._lanes[0].due is None
        come_back(ring)
        assert driver.wait_ready(WAIT)
        again = request(driver)
        assert start(driver, again).tokens() == plain_tokens(again, 64)


def test_who_gives_up_meanwhile_is_forgotten() -> None:
    with under_way() as (driver, ring, asked):
        lose(driver, ring)
        for one, _ in asked[1:]:
            driver.cancel(one.id)
        assert driver.load() == (0, 1)
        come_back(ring)
        assert right(asked[:1])
        before = [listener for _, listener in asked[1:]]
        for listener in before:
            while not listener.silent:
                assert isinstance(listener.next(), Token), "what it had heard before"


def test_when_all_have_given_up_nothing_is_waited_for() -> None:
    with under_way(1) as (driver, ring, asked):
        lose(driver, ring)
        driver.cancel(asked[0][0].id)
        assert driver._lanes[0].due is None
        come_back(ring)
        assert driver.wait_ready(WAIT)
        again = request(driver)
        assert start(driver, again).tokens() == plain_tokens(again, 64)


def test_a_failed_step_is_done_again_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "PAUSE", 0.01)
    with under_way() as (driver, ring, asked):
        ring.lose_ring()
        ring.inject(frames.Failed(driver._lanes[0].work.epoch, 0, "b", "no memory"))
        ring.release()
        assert right(asked)
        ring.hold = True
        poison = start(driver, request(driver))
        lane = driver._lanes[0]
        for _ in range(MOST_LOSSES):
            wait_until(lambda: lane._in_ring > 0)
            epoch = lane.work.epoch
            ring.inject(frames.Failed(epoch, 0, "b", "no memory"))
            wait_until(lambda: lane.work.epoch > epoch)  # noqa: B023 - called at once
        event = poison.next()
        assert isinstance(event, Lost)
        assert "no memory" in event.why


def test_a_stage_that_fails_because_its_neighbour_is_gone_is_one_loss() -> None:
    """It says that it could not pass a step on, and a moment later the head sees the neighbour go."""
    with under_way() as (driver, ring, asked):
        ring.inject(frames.Failed(driver._lanes[0].work.epoch, 0, "a", "it cannot reach b"))
        ring.inject(frames.State("a", "waiting", "it cannot reach b"))
        lose(driver, ring)
        ring.inject(frames.State("a", "ready", ""))
        come_back(ring)
        assert right(asked)


def test_calls_of_a_graph_wait_too() -> None:
    workers = [Worker(Doubler(), graph_spec(first, not first)) for first in (True, False)]
    ring = FakeRing(workers, NAMES)
    driver = Driver(fake_manifest(NAMES, "graph"), ring, Calls(stages=2, epoch=7), serving=True)
    driver.start()
    try:
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        calls = [driver.call({"x": np.array([n])}) for n in range(6)]
        assert ring.stepped.wait(WAIT)
        calls[5].cancel()
        ring.inject(frames.State("b", "lost", "it was killed"))
        wait_until(lambda: driver.health()["status"] == "lost")
        ring.lose_ring()
        ring.release()
        come_back(ring)
        assert [int(call.result(WAIT)["x"][0]) for call in calls[:5]] == [0, 4, 8, 12, 16]
    finally:
        driver.stop()


def test_a_heavy_stage_has_longer_to_come_back() -> None:
    manifest = fake_manifest(NAMES)
    light = absence_of(manifest, 0)
    assert 30 <= light < 31
    manifest.stage[1] = msgspec.structs.replace(manifest.stage[1], weight_bytes=5 << 30)
    assert absence_of(manifest, 0) > light + 100


@pytest.mark.parametrize("victim", ["n0", "n1", "n2"])
@pytest.mark.parametrize("local", [False, True])
def test_a_killed_process_that_is_started_again_changes_no_token(tmp_path: Path, victim: str, local: bool) -> None:
    """Over both kinds of links; it is killed while the head takes the third token of an answer."""
    with fleet(tmp_path, 3, local=local) as made:
        space = Space(context=CONTEXT, streams=SLOTS)
        driver = open_driver(made.manifest, made.endpoints, made.bundle("n0"), space, serving=True)
        driver.start()
        for name in made.names:
            made.start(name)
        killed = threading.Event()

        def kill(count: int) -> None:
            if count == 3 and not killed.is_set():
                os.kill(made.processes[victim].pid, signal.SIGKILL)
                killed.set()

        try:
            assert driver.wait_ready(WAIT)
            asked = [ask(driver, number, kill) for number in range(SLOTS + 2)]
            assert killed.wait(WAIT)
            made.processes[victim].wait()
            made.start(victim)
            for one, events in asked:
                assert tokens_of(events) == plain_tokens(one, CONTEXT)
            assert driver.load() == (0, 0)
        finally:
            driver.stop()


def ask(driver: Driver, number: int, at: Callable[[int], None]) -> tuple[Request, queue.SimpleQueue[Event]]:
    """A request of 20 tokens; ``at`` is told of each, in the driver's thread."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    one = Request(driver.next_id(), (5, 6, 7 + number), 20, greedy(), frozenset())
    count = 0

    def hear(event: Event) -> None:
        nonlocal count
        count += 1
        events.put(event)
        at(count)

    driver.submit(one, hear)
    return one, events
