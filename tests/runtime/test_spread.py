"""Several pipelines under one driver: who gets what, and what a loss in one is to the other. No processes here."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pytest

from ruvrun import frames
from ruvrun.engine import Engine, Lost, Request, Token
from ruvrun.errors import UnreachableError
from ruvrun.pipeline.calls import Call, Calls
from ruvrun.pipeline.driver import Driver, Event
from ruvrun.pipeline.lane import Lane
from ruvrun.pipeline.spread import MOST_LOSSES, MOST_MISSED, least_busy, leave, level, overdue
from ruvrun.pipeline.worker import Worker
from tests.runtime.consistency import check
from tests.runtime.driving import Doubler, graph_spec
from tests.runtime.fake_ring import WAIT, FakeRing, fake_manifest, tokens_of, wait_until
from tests.runtime.fake_ring import Event as Heard
from tests.runtime.fakes import fake_workers, greedy, plain_tokens

CONTEXT = 64


def ask(number: int, prompt: int = 3, max_tokens: int = 6) -> Request:
    return Request(number, tuple(range(2, 2 + prompt)), max_tokens, greedy(), frozenset())


def lanes(count: int, streams: int = 2, reuse: int = 0) -> list[Lane]:
    found = [Lane(n, Engine(stages=1, context=CONTEXT, streams=streams, reuse=reuse), 10.0) for n in range(count)]
    for lane in found:
        lane.ready = True
    return found


def give(lane: Lane, request: Request) -> None:
    assert isinstance(lane.work, Engine)
    lane.work.add(request)
    lane.callers[request.id] = lambda _event: None


def held(lane: Lane) -> tuple[int, int]:
    return lane.work.running, lane.work.waiting


def miss(lane: Lane, all_of_them: Sequence[Lane]) -> None:
    """No answer comes before its deadline."""
    lane.due = 10.0
    overdue(lane, all_of_them, 11.0)


def test_a_pipeline_that_does_not_answer_again_and_again_ends_the_head() -> None:
    """All its stages say that they are ready, so nobody else would do anything."""
    (lane,) = lanes(1)
    for _ in range(MOST_MISSED - 1):
        miss(lane, [lane])
    with pytest.raises(UnreachableError, match="no stage answered for 10 s, 3 times in a row"):
        miss(lane, [lane])


def test_one_answer_between_is_a_sign_of_life() -> None:
    (lane,) = lanes(1)
    for _ in range(MOST_MISSED - 1):
        miss(lane, [lane])
    give(lane, ask(1))
    step = lane.next()[-1][0]
    lane.sampled(frames.Sampled(step.epoch, step.step, ((1, (5,)),)), [])
    miss(lane, [lane])


def test_as_long_as_another_pipeline_answers_the_head_stays() -> None:
    silent, fine = both = lanes(2)
    for _ in range(MOST_MISSED + 1):
        miss(silent, both)
    fine.ready = False
    with pytest.raises(UnreachableError):
        miss(silent, both)


def test_requests_go_where_the_fewest_are_and_to_the_first_of_equals() -> None:
    three = lanes(3)
    chosen = []
    for number in range(7):
        lane = least_busy(three)
        assert lane is not None
        give(lane, ask(number))
        chosen.append(lane.number)
    assert chosen == [0, 1, 2, 0, 1, 2, 0]


def test_those_who_wait_for_a_failed_step_to_be_tried_again_are_counted() -> None:
    first, second = lanes(2)
    give(first, ask(0))
    first.keep(first.abandon(), "a step failed")
    assert least_busy([first, second]) is second


def test_of_equally_many_the_one_with_less_to_read_is_taken() -> None:
    two = lanes(2)
    give(two[0], ask(1, prompt=30))
    give(two[1], ask(2, prompt=3))
    assert least_busy(two) is two[1]


def test_a_prompt_goes_where_most_of_it_is_known_unless_there_is_much_more_to_do() -> None:
    two = lanes(2, streams=8, reuse=4)
    prompt = ask(1, prompt=20).prompt
    give(two[1], ask(1, prompt=20))
    assert isinstance(two[1].work, Engine)
    while two[1].work.step() is not None:
        pass
    assert least_busy(two) is two[0]
    assert least_busy(two, prompt) is two[1]
    assert least_busy(two, (*prompt[:12], *range(50, 58))) is two[1]
    assert least_busy(two, (*prompt[:8], *range(50, 62))) is two[0], "less than half of it"
    give(two[1], ask(2, prompt=3))
    assert least_busy(two, prompt) is two[0]


def test_a_pipeline_that_is_not_whole_gets_nothing() -> None:
    two = lanes(2)
    two[0].ready = False
    assert least_busy(two) is two[1]
    two[1].ready = False
    assert least_busy(two) is None


def test_who_waits_gets_room_wherever_it_is_the_oldest_first() -> None:
    three = lanes(3, streams=1)
    for number, lane in ((1, 0), (2, 1), (3, 1), (4, 0), (5, 0)):
        give(three[lane], ask(number))
    assert [held(lane) for lane in three] == [(1, 2), (1, 1), (0, 0)]
    level(three)
    assert [held(lane) for lane in three] == [(1, 2), (1, 0), (1, 0)], "3 is older than 4 and 5"
    assert list(three[2].callers) == [3]
    three[0].cancel(1)
    three[1].cancel(2)
    level(three)
    assert [held(lane) for lane in three] == [(1, 0), (1, 0), (1, 0)]
    for lane in three:
        assert isinstance(lane.work, Engine)
        check(lane.work)
        assert list(lane.callers) == [next(iter(lane.work._roster.running))]


def test_what_a_lost_pipeline_had_goes_on_elsewhere_while_there_is_one() -> None:
    two = lanes(2, streams=1)
    for number, lane in ((1, 0), (2, 0), (4, 0), (3, 1)):
        give(two[lane], ask(number))
    two[0].ready = False
    assert leave(two[0], two, "gone") == []
    assert [held(lane) for lane in two] == [(0, 0), (1, 3)]
    assert isinstance(two[1].work, Engine)
    assert [each.request.id for each in two[1].work._roster.line] == [1, 2, 4], "the oldest request waits in front"
    two[1].ready = False
    assert sorted(event.id for _, event in leave(two[1], two, "gone")) == [1, 2, 3, 4]


def test_two_that_are_lost_in_turn_cost_a_pause_and_who_is_under_way_once_more_ends() -> None:
    """The third time it may be the request itself that kills whatever it comes to."""
    four = lanes(4)
    give(four[0], ask(1))
    for lost in (1, 2):
        (lane,) = (lane for lane in four if 1 in lane.callers)
        give(lane, ask(1 + lost))
        lane.ready = False
        assert leave(lane, four, "gone") == []
    (lane,) = (lane for lane in four if 1 in lane.callers)
    lane.ready = False
    assert [event.id for _, event in leave(lane, four, "gone")] == [1]
    (last,) = (lane for lane in four if lane.ready)
    assert list(last.callers) == [2, 3]


def test_calls_of_a_lost_pipeline_are_made_again_elsewhere() -> None:
    two = [Lane(n, Calls(stages=1), 10.0) for n in range(2)]
    calls = [Call(number, {}, Future()) for number in range(4)]
    for lane in two:
        lane.ready = True
    for call in calls:
        assert isinstance(two[0].work, Calls)
        two[0].work.add(call)
    while two[0].work.step() is not None:
        pass
    two[0].ready = False
    assert leave(two[0], two, "gone") == []
    assert (held(two[0]), held(two[1])) == ((0, 0), (0, 4))
    for times in range(2, MOST_LOSSES + 1):
        here, there = two[1 - times % 2], two[times % 2]
        assert here.ready
        while here.work.step() is not None:
            pass
        there.ready, here.ready = True, False
        leave(here, two, "gone")
        left = 4 if times < MOST_LOSSES else 2
        assert (held(here), held(there)) == ((0, 0), (0, left))
    ended = [call.id for call in calls if call.result.done()]
    assert ended == [0, 1], "these were under way each time"


def test_calls_are_levelled_too() -> None:
    two = [Lane(n, Calls(stages=1), 10.0) for n in range(2)]
    for lane in two:
        lane.ready = True
    for number in range(5):
        assert isinstance(two[0].work, Calls)
        two[0].work.add(Call(number, {}, Future()))
    while two[0].work.step() is not None:
        pass
    assert held(two[0]) == (2, 3)
    level(two)
    assert (held(two[0]), held(two[1])) == ((2, 1), (0, 2))


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
