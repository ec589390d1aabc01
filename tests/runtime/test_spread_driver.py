"""Several pipelines under one driver's thread: the tokens are those of one, and a loss in one is none to the others.

The ring has no links and no processes (``fake_ring``).
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from ruvrun import frames
from ruvrun.engine import Engine, Lost, Request, Token
from ruvrun.errors import UnreachableError
from ruvrun.pipeline.calls import Calls
from ruvrun.pipeline.driver import Driver, Event
from ruvrun.pipeline.spread import MOST_LOSSES
from ruvrun.pipeline.worker import Worker
from tests.runtime.driving import Doubler, graph_spec
from tests.runtime.fake_ring import WAIT, FakeRing, fake_manifest, tokens_of, wait_until
from tests.runtime.fake_ring import Event as Heard
from tests.runtime.fakes import fake_workers, greedy, plain_tokens

CONTEXT = 64


def ask(number: int, prompt: int = 3, max_tokens: int = 6) -> Request:
    return Request(number, tuple(range(2, 2 + prompt)), max_tokens, greedy(), frozenset())


@contextmanager
def driving(
    *, stages: int = 1, streams: int = 2, reuse: int = 0, ring_of: type[FakeRing] = FakeRing
) -> Iterator[tuple[Driver, FakeRing]]:
    """Two pipelines of so many stages, on a, b, ...; all ready."""
    names = "abcd"[: 2 * stages]
    workers = [worker for _ in range(2) for worker in fake_workers(stages, slots=streams, context=CONTEXT)]
    ring = ring_of(workers, names, pipelines=2)
    engines = [Engine(stages=stages, context=CONTEXT, streams=streams, reuse=reuse, epoch=7) for _ in range(2)]
    driver = Driver(fake_manifest(names, pipelines=2), ring, *engines)
    driver.start()
    ring.ready()
    assert driver.wait_ready(WAIT)
    try:
        yield driver, ring
    finally:
        driver.stop()


def begin(driver: Driver, **form: int) -> tuple[Request, queue.SimpleQueue[Event]]:
    request = ask(driver.next_id(), **form)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    driver.submit(request, events.put)
    return request, events


@pytest.mark.parametrize("stages", [1, 2])
def test_tokens_are_those_of_one_pipeline_and_both_work(stages: int) -> None:
    with driving(stages=stages) as (driver, ring):
        ring.hold = True
        asked = [begin(driver, prompt=3 + number, max_tokens=4 + number) for number in range(11)]
        assert ring.stepped.wait(WAIT)
        assert driver.load() == (4, 7)
        ring.release()
        for request, events in asked:
            assert tokens_of(events) == plain_tokens(request, CONTEXT)
        assert driver.load() == (0, 0)
        opened = [
            pipeline for one, pipeline in zip(ring.sent, ring.sent_to, strict=True) if isinstance(one, frames.Open)
        ]
        assert min(opened.count(0), opened.count(1)) >= 2
        assert driver.counters(timeout=WAIT).keys() == set("abcd"[: 2 * stages])


def test_who_waits_at_a_full_pipeline_goes_to_the_one_that_has_room() -> None:
    with driving(streams=1) as (driver, ring):
        for lane in driver._lanes:
            lane.patience = 10 * WAIT  # or the one that stands still is given up, and all of it goes to the other one
        ring.hold = True
        _, second, waiting = (begin(driver) for _ in range(3))
        assert waiting[0].id in driver._lanes[0].callers
        driver.cancel(second[0].id)
        wait_until(lambda: waiting[0].id in driver._lanes[1].callers)
        ring.release()
        assert tokens_of(waiting[1]) == plain_tokens(waiting[0], CONTEXT)


def test_the_next_turn_of_a_chat_goes_where_the_last_one_was() -> None:
    with driving(reuse=4) as (driver, ring):
        ring.hold = True
        other, first = begin(driver, prompt=3), begin(driver, prompt=20)
        assert first[0].id in driver._lanes[1].callers
        ring.release()
        for request, events in (other, first):
            assert tokens_of(events) == plain_tokens(request, CONTEXT)
        ring.hold = True
        again = begin(driver, prompt=24)
        assert again[0].id in driver._lanes[1].callers
        ring.release()
        assert tokens_of(again[1]) == plain_tokens(again[0], CONTEXT)


def test_a_loss_costs_what_its_pipeline_had_a_pause_and_others_nothing() -> None:
    with driving(streams=1) as (driver, ring):
        first, second, waiting = (begin(driver, max_tokens=40) for _ in range(3))
        before = [first[1].get(timeout=WAIT) for _ in range(3)]
        ring.hold = True
        ring.inject(frames.State("a", "lost", "unplugged"))
        wait_until(lambda: driver.health()["status"] == "degraded")
        health = driver.health()
        assert health["status"] == "degraded"
        assert [(node["node"], node["pipeline"], node["state"]) for node in health["nodes"]] == [
            ("a", 0, "lost"),
            ("b", 1, "ready"),
        ]
        assert not driver.wait_ready(0)
        ring.lose_ring_of(0)
        ring.release()
        assert [event.token for event in before if isinstance(event, Token)] + tokens_of(first[1]) == plain_tokens(
            first[0], CONTEXT
        )
        for request, events in (second, waiting, begin(driver)):
            assert tokens_of(events) == plain_tokens(request, CONTEXT)
        ring.inject(frames.State("b", "lost", "unplugged too"))
        wait_until(lambda: driver.health()["status"] == "lost")
        with pytest.raises(UnreachableError, match="no pipeline has all its stages"):
            begin(driver)
        ring.inject(frames.State("a", "ready", ""))
        wait_until(lambda: driver.health()["status"] == "degraded")
        request, events = begin(driver)
        assert tokens_of(events) == plain_tokens(request, CONTEXT), "the first pipeline serves again"
        assert ring.sent_to[-1] == 0


def test_what_a_failed_step_was_of_goes_on_elsewhere_once_and_the_others_notice_nothing() -> None:
    with driving() as (driver, ring):
        ring.hold = True
        first, second = begin(driver), begin(driver)
        assert ring.stepped.wait(WAIT)
        ring.inject(frames.Failed(7, 0, "a", "no memory"))
        wait_until(lambda: first[0].id in driver._lanes[1].callers)
        third = begin(driver)
        assert third[0].id in driver._lanes[0].callers, "it is ready all the same"
        ring.release()
        for request, events in (first, second, third):
            assert tokens_of(events) == plain_tokens(request, CONTEXT)
        assert driver.health()["status"] == "ready"
        ring.hold = True
        poison = begin(driver)
        for node, lane in [*zip("ab", driver._lanes, strict=True), ("a", driver._lanes[0])][:MOST_LOSSES]:
            wait_until(lambda: lane.due is not None)  # noqa: B023 - called at once
            ring.inject(frames.Failed(lane.work.epoch, 0, node, "no memory"))
        event = poison[1].get(timeout=WAIT)
        assert isinstance(event, Lost)
        assert "no memory" in event.why


class Chatty(FakeRing):
    """Pipeline 1 always has something to say."""

    def poll(self, timeout: float | None) -> Sequence[Heard]:  # noqa: ARG002 - it never waits
        return super().poll(0.0) or [(frames.Counters("b", 1.0, 0.5, 3, 100, 2.5, 1 << 20), {}, 1)]


def test_a_pipeline_is_given_up_though_the_other_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with driving(ring_of=Chatty) as (driver, ring):
        monkeypatch.setattr(driver._lanes[0], "patience", 0.05)
        ring.hold = True
        request, events = begin(driver)
        wait_until(lambda: request.id in driver._lanes[1].callers)
        ring.lose_ring_of(0)
        ring.release()
        assert tokens_of(events) == plain_tokens(request, CONTEXT)


def test_calls_of_a_graph_are_spread() -> None:
    workers = [Worker(Doubler(), graph_spec(True, True)) for _ in range(2)]  # type: ignore[arg-type] # a double
    ring = FakeRing(workers, "ab", pipelines=2)
    driver = Driver(fake_manifest("ab", "graph", pipelines=2), ring, *(Calls(stages=1, epoch=7) for _ in range(2)))
    driver.start()
    try:
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        futures = [driver.call({"x": np.array([number])}) for number in range(9)]
        assert ring.stepped.wait(WAIT)
        ring.release()
        assert [int(future.result(WAIT)["x"][0]) for future in futures] == [2 * number for number in range(9)]
        assert min(ring.sent_to.count(0), ring.sent_to.count(1)) >= 3
    finally:
        driver.stop()
