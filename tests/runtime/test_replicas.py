"""Two pipelines as real processes under one head, over both kinds of links: the same tokens, and a loss in one."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ruvrun.engine import Lost, Request, Token
from ruvrun.manifest import Space
from ruvrun.pipeline.driver import Driver, Event
from ruvrun.pipeline.head import open_driver
from tests.runtime.fakes import greedy, plain_tokens
from tests.runtime.fleets import CONTEXT, SLOTS, Fleet, fleet

LONG = 20.0  # a safety net: nothing below waits for a time to pass
Asked = tuple[Request, "queue.SimpleQueue[Event]"]


@contextmanager
def served(directory: Path, stages: int, *, local: bool = False) -> Iterator[tuple[Fleet, Driver]]:
    """A driver and the stages of two pipelines as processes, all ready."""
    with fleet(directory, stages, 2, local=local) as made:
        driver = open_driver(made.manifest, made.endpoints, made.bundle("n0"), Space(context=CONTEXT, streams=SLOTS))
        driver.start()
        for name in reversed(made.names):
            made.start(name)
        try:
            assert driver.wait_ready(LONG)
            yield made, driver
        finally:
            driver.stop()


def ask(driver: Driver, number: int) -> Asked:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    request = Request(driver.next_id(), (5, 6, 7 + number), 20, greedy(), frozenset())
    driver.submit(request, events.put)
    return request, events


def end_of(asked: Asked) -> str:
    """``right``, ``wrong``, or why it was lost."""
    request, events = asked
    tokens = []
    while True:
        event = events.get(timeout=LONG)
        if isinstance(event, Lost):
            return event.why
        assert isinstance(event, Token)
        tokens.append(event.token)
        if event.finish:
            return "right" if tokens == plain_tokens(request, CONTEXT) else "wrong"


@pytest.mark.parametrize(("stages", "local"), [(1, False), (2, False), (2, True)])
def test_two_pipelines_answer_as_one_and_both_work(tmp_path: Path, stages: int, local: bool) -> None:
    with served(tmp_path, stages, local=local) as (made, driver):
        asked = [ask(driver, number) for number in range(12)]
        assert [end_of(one) for one in asked] == ["right"] * 12
        counters = driver.counters()
        assert sorted(counters) == made.names
        steps = [counters[name].steps for name in made.names]
        assert all(count >= 20 for count in steps), f"a pipeline had next to nothing to do: {steps}"
        assert f"stage 0 of {stages} in pipeline 1" in made.said(made.names[stages])[0]


@pytest.mark.parametrize("victim", ["n0", "n1", "n2"])
def test_what_a_killed_stage_had_goes_on_in_the_other_pipeline(tmp_path: Path, victim: str) -> None:
    """n0 and n1 are pipeline 0, n2 and n3 are pipeline 1."""
    with served(tmp_path, 2) as (made, driver):
        hit = made.names.index(victim) // 2
        process = made.processes[victim]
        os.kill(process.pid, signal.SIGSTOP)  # so that what it has is certainly under way when the blow falls
        asked = [ask(driver, number) for number in range(4)]
        held = driver._lanes[hit].callers
        while not held:  # the other one was very fast
            asked.append(ask(driver, 4))
        theirs = [one for one in asked if one[0].id in held]
        others = [one for one in asked if one[0].id not in held]
        assert {end_of(one) for one in others} == {"right"}
        process.kill()
        process.wait()
        assert {end_of(one) for one in theirs} == {"right"}
        assert driver.health()["status"] == "degraded"
        assert not driver.wait_ready(0)
        assert end_of(ask(driver, 5)) == "right"
        made.start(victim)
        assert driver.wait_ready(LONG)
        again = [ask(driver, number) for number in range(4)]
        assert [end_of(one) for one in again] == ["right"] * 4
        assert driver.health()["status"] == "ready"
