"""The driver's thread against a ring without links: the stages are real workers, the losses are made."""

from __future__ import annotations

import queue
import threading

import msgspec
import numpy as np
import pytest

from ruvrun import frames
from ruvrun.engine import Engine, Lost
from ruvrun.errors import InputError, MachineError, UnreachableError
from ruvrun.manifest import Expected, Plan
from ruvrun.pipeline.driver import Driver, Event
from tests.runtime.driving import NAMES, Listener, driving, graph, request, start
from tests.runtime.fake_ring import WAIT, FakeRing, fake_manifest, wait_until
from tests.runtime.fakes import plain_tokens


def test_tokens_are_those_of_the_model_alone_and_in_company() -> None:
    with driving(streams=3) as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        wanted = [request(driver, tuple(range(2, 3 + n)), 4 + n) for n in range(8)]
        listeners = [start(driver, one) for one in wanted]
        for one, listener in zip(wanted, listeners, strict=True):
            assert listener.tokens() == plain_tokens(one, 64)
        assert ring.most_in_ring <= 4
        assert driver.load() == (0, 0)


def test_nothing_is_taken_before_every_stage_is_ready() -> None:
    with driving() as (driver, ring):
        ring.inject(frames.State("a", "ready", ""))
        assert not driver.wait_ready(0.05)
        with pytest.raises(UnreachableError) as caught:
            driver.submit(request(driver), Listener())
        assert any("b" in line for line in caught.value.context)
        ring.ready()
        assert driver.wait_ready(WAIT)
        assert driver.health()["status"] == "ready"


def test_a_lost_stage_that_nobody_starts_again_ends_every_request_and_is_named() -> None:
    with driving(streams=1) as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        running, waiting = start(driver, request(driver)), start(driver, request(driver))
        ring.inject(frames.State("b", "lost", "no answer for 5 s"))
        for listener in (running, waiting):
            event = listener.next()
            assert isinstance(event, Lost)
            assert "b" in event.why
            assert "no answer for 5 s" in event.why
        health = driver.health()
        assert health["status"] == "lost"
        assert [node["state"] for node in health["nodes"]] == ["ready", "lost"]
        with pytest.raises(UnreachableError):
            driver.submit(request(driver), Listener())
        ring.inject(frames.State("b", "loading", ""))
        ring.inject(frames.State("b", "ready", ""))
        assert driver.wait_ready(WAIT)
        ring.release()  # the answers of the old epoch come now, late
        again = request(driver)
        assert start(driver, again).tokens() == plain_tokens(again, 64)
        assert ring.sent[-1].epoch > 7


def test_a_failed_step_ends_the_requests_but_not_the_service() -> None:
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        listener = start(driver, request(driver))
        assert ring.stepped.wait(WAIT)
        ring.inject(frames.Failed(7, 0, "b", "no memory"))
        event = listener.next()
        assert isinstance(event, Lost)
        assert "no memory" in event.why
        ring.release()
        again = request(driver)
        assert start(driver, again).tokens() == plain_tokens(again, 64)


def test_a_failure_of_an_epoch_that_is_over_harms_nobody() -> None:
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        listener = start(driver, again := request(driver))
        assert ring.stepped.wait(WAIT)
        ring.inject(frames.Failed(3, 0, "b", "long ago"))
        ring.release()
        assert listener.tokens() == plain_tokens(again, 64)


def test_a_step_without_an_answer_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with driving() as (driver, ring):
        monkeypatch.setattr(driver._lanes[0], "patience", 0.05)
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        event = start(driver, request(driver)).next()
        assert isinstance(event, Lost)
        ring.lose_ring()
        ring.release()
        again = request(driver)
        assert start(driver, again).tokens() == plain_tokens(again, 64)


def test_the_deadline_is_generous_by_the_plan() -> None:
    with driving(stage_ms=5.0) as (fast, _), driving(stage_ms=500.0) as (slow, _):
        assert fast._lanes[0].patience >= 10.0
        assert slow._lanes[0].patience > 256 * 1.0  # a whole chunk, token by token


def test_the_deadline_is_that_of_the_nodes_that_are_in_the_pipeline() -> None:
    """A pipeline of slow machines beside one of fast ones."""
    manifest = fake_manifest("ab", pipelines=2)
    expected = [Expected(node=name, rows=[1, 8], ms=[ms, 9 * ms]) for name, ms in (("a", 5.0), ("b", 500.0))]
    manifest = msgspec.structs.replace(manifest, plan=Plan(stage_ms=[5.0], expected=expected))
    driver = Driver(manifest, FakeRing([], "ab", 2), *(Engine(stages=1, context=64, streams=4) for _ in range(2)))
    fast, slow = (lane.patience for lane in driver._lanes)
    assert 10.0 < fast < 256 * 0.5 < slow


def test_no_event_follows_a_cancel_and_the_slot_is_free() -> None:
    with driving(streams=1) as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        first = request(driver)
        listener = start(driver, first)
        assert ring.stepped.wait(WAIT)
        driver.cancel(first.id)
        driver.cancel(first.id)
        driver.cancel(99)
        assert driver.load() == (0, 0)
        ring.release()
        second = request(driver)
        assert start(driver, second).tokens() == plain_tokens(second, 64)
        assert listener.silent


def test_a_request_that_cannot_be_served_is_refused_at_once() -> None:
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        with pytest.raises(InputError) as caught:
            driver.submit(request(driver, tuple(range(64))), Listener())
        assert caught.value.ref == "prompt-too-long"
        ok = request(driver)
        assert start(driver, ok).tokens() == plain_tokens(ok, 64)


def test_a_callback_that_raises_harms_only_itself() -> None:
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)

        def broken(_: Event) -> None:
            raise RuntimeError("a bug")

        driver.submit(request(driver), broken)
        ok = request(driver)
        assert start(driver, ok).tokens() == plain_tokens(ok, 64)


def test_an_idle_driver_sleeps() -> None:
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        start(driver, request(driver)).tokens()
        wait_until(lambda: ring.sleeping.is_set() and driver._lanes[0].due is None)
        before = ring.polls
        assert not threading.Event().wait(0.1)
        assert ring.polls == before


def test_stop_tells_who_waits() -> None:
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        listener = start(driver, request(driver))
        driver.stop()
        assert isinstance(listener.next(), Lost)
        with pytest.raises(UnreachableError):
            driver.submit(request(driver), listener)
        with pytest.raises(UnreachableError):
            driver.wait_ready(WAIT)


def test_links_that_cannot_open_are_told_where_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = FakeRing([], NAMES)

    def taken() -> None:
        raise MachineError("port-taken", "port 7069 is taken", hint="end it")

    monkeypatch.setattr(ring, "connect", taken)
    driver = Driver(fake_manifest(NAMES), ring, Engine(stages=2, context=64, streams=4))
    driver.start()
    with pytest.raises(MachineError):
        driver.wait_ready(WAIT)
    driver.stop()


def test_counters_of_every_stage() -> None:
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        assert sorted(driver.counters(reset=True, timeout=WAIT)) == ["a", "b"]


def test_calls_of_a_graph_fill_the_pipeline_and_each_gets_its_own_outputs() -> None:
    with graph() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        results: dict[int, int] = {}

        def call(n: int) -> None:
            results[n] = int(driver.run({"x": np.array([n])}, WAIT)["x"][0])

        threads = [threading.Thread(target=call, args=(n,)) for n in range(9)]
        for thread in threads:
            thread.start()
        assert ring.stepped.wait(WAIT)
        ring.release()
        for thread in threads:
            thread.join(WAIT)
        assert results == {n: 4 * n for n in range(9)}
        assert ring.most_in_ring <= 4


def test_a_lost_stage_ends_the_calls_of_a_graph_and_the_next_one_works() -> None:
    with graph() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        errors: queue.SimpleQueue[str] = queue.SimpleQueue()

        def call() -> None:
            try:
                driver.run({"x": np.array([1])}, WAIT)
            except UnreachableError as error:
                errors.put(error.message)

        thread = threading.Thread(target=call)
        thread.start()
        assert ring.stepped.wait(WAIT)
        ring.inject(frames.State("a", "lost", "gone"))
        assert "gone" in errors.get(timeout=WAIT)
        thread.join(WAIT)
        ring.release()
        ring.ready()
        assert driver.wait_ready(WAIT)
        assert driver.run({"x": np.array([3])}, WAIT)["x"].tolist() == [12]


def test_a_decoder_takes_no_tensors_and_a_graph_no_text() -> None:
    with driving() as (driver, _), pytest.raises(InputError):
        driver.run({"x": np.array([3])}, WAIT)
    with graph() as (driver, _), pytest.raises(InputError):
        driver.submit(request(driver), Listener())
