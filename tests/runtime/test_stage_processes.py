"""Stages as real processes, which are killed, frozen and told to end."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ruvrun.engine import Engine, Lost, Request, Token
from ruvrun.errors import InputError, IntegrityError, UnreachableError
from ruvrun.pipeline.driver import Driver, Event
from ruvrun.pipeline.ring import Ring
from tests.runtime.fakes import greedy, plain_tokens
from tests.runtime.fleets import CONTEXT, SLOTS, Fleet, fleet

LONG = 20.0  # a safety net: nothing below waits for a time to pass


@contextmanager
def served(directory: Path, stages: int) -> Iterator[tuple[Fleet, Driver, queue.Queue[tuple[str, str, str]]]]:
    """A driver and its stages as processes, ready; and every change of state."""
    changes: queue.Queue[tuple[str, str, str]] = queue.Queue()
    with fleet(directory, stages) as made:
        ring = Ring(made.manifest, made.endpoints, made.bundle("n0"))
        engine = Engine(stages=stages, context=CONTEXT, streams=SLOTS)
        driver = Driver(made.manifest, ring, engine, on_change=lambda *change: changes.put(change))
        driver.start()
        for name in reversed(made.names):
            made.start(name)
        try:
            assert driver.wait_ready(LONG)
            yield made, driver, changes
        finally:
            driver.stop()


def ask(driver: Driver, number: int, tokens: int = 20) -> tuple[Request, queue.Queue[Event]]:
    events: queue.Queue[Event] = queue.Queue()
    request = Request(driver.next_id(), (5, 6, 7 + number), tokens, greedy(), frozenset())
    driver.submit(request, events.put)
    return request, events


def answered(request: Request, events: queue.Queue[Event]) -> bool:
    """Whether the answer is what the model says in one piece."""
    tokens = []
    while True:
        event = events.get(timeout=LONG)
        assert isinstance(event, Token), event
        tokens.append(event.token)
        if event.finish:
            return tokens == plain_tokens(request, CONTEXT)


def await_change(changes: queue.Queue[tuple[str, str, str]], node: str, state: str) -> None:
    while changes.get(timeout=LONG)[:2] != (node, state):
        pass


@pytest.mark.parametrize("stages", [1, 3])
def test_processes_answer_as_one(tmp_path: Path, stages: int) -> None:
    with served(tmp_path, stages) as (made, driver, _):
        asked = [ask(driver, number) for number in range(6)]
        assert all(answered(*one) for one in asked)
        counters = driver.counters()
        assert list(counters) == made.names
        assert all(one.steps > 0 for one in counters.values())


@pytest.mark.parametrize(("victim", "blow"), [("n0", signal.SIGKILL), ("n1", signal.SIGKILL), ("n1", signal.SIGSTOP)])
def test_a_dead_or_frozen_stage_ends_its_requests_and_everything_works_when_it_is_back(
    tmp_path: Path, victim: str, blow: signal.Signals
) -> None:
    with served(tmp_path, 2) as (made, driver, changes):
        process = made.processes[victim]
        os.kill(process.pid, signal.SIGSTOP)  # so that the request is certainly under way when the blow falls
        _, events = ask(driver, 1)
        os.kill(process.pid, blow)
        last = events.get(timeout=LONG)
        while isinstance(last, Token):
            last = events.get(timeout=LONG)
        assert isinstance(last, Lost)
        assert victim in last.why or blow is signal.SIGKILL
        await_change(changes, victim, "lost")
        with pytest.raises(UnreachableError, match=victim):
            ask(driver, 2)
        if blow is signal.SIGKILL:
            process.wait()
            made.start(victim)
        else:
            os.kill(process.pid, signal.SIGCONT)
        assert driver.wait_ready(LONG)
        assert answered(*ask(driver, 3))


def test_sigterm_ends_a_stage_and_the_others_stay(tmp_path: Path) -> None:
    with served(tmp_path, 2) as (made, driver, changes):
        process = made.processes["n1"]
        process.terminate()
        assert process.wait(LONG) == 0
        await_change(changes, "n1", "lost")
        made.start("n1")
        assert driver.wait_ready(LONG)
        assert answered(*ask(driver, 1))
        assert made.processes["n0"].poll() is None
        assert made.said("n0")[0].startswith("joined: n0, stage 0 of 2, head n0 (127.0.0.1:")


def test_a_new_head_finds_the_stages_of_the_old_one(tmp_path: Path) -> None:
    with served(tmp_path, 2) as (made, driver, _):
        assert answered(*ask(driver, 1))
        driver.stop()
        ring = Ring(made.manifest, made.endpoints, made.bundle("n0"))
        again = Driver(made.manifest, ring, Engine(stages=2, context=CONTEXT, streams=SLOTS, epoch=1000))
        again.start()
        try:
            assert again.wait_ready(LONG)
            assert answered(*ask(again, 2))
        finally:
            again.stop()


def test_a_key_that_is_not_the_nodes(tmp_path: Path) -> None:
    with fleet(tmp_path, 2) as made:
        with pytest.raises(IntegrityError, match="is not the key that the manifest has for n0"):
            Ring(made.manifest, made.endpoints, made.bundle("n1"))
        (made.bundle("n0") / "node/link.key").unlink()
        with pytest.raises(InputError, match="no link key"):
            Ring(made.manifest, made.endpoints, made.bundle("n0"))
