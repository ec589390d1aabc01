"""A driver's thread with a ring without links under it: decoders of fake workers, and a graph that doubles."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager

from ruvrun.bundle import StageSpec
from ruvrun.engine import Engine, Request, Token
from ruvrun.executors import Array
from ruvrun.manifest import Tensor
from ruvrun.pipeline.calls import Calls
from ruvrun.pipeline.driver import Driver, Event
from ruvrun.pipeline.worker import Worker
from tests.runtime.fake_ring import WAIT, FakeRing, fake_manifest
from tests.runtime.fakes import fake_workers, greedy

NAMES = ("a", "b")


@contextmanager
def driving(
    *, stages: int = 2, streams: int = 4, serving: bool = False, **plan: float
) -> Iterator[tuple[Driver, FakeRing]]:
    names = NAMES[:stages]
    ring = FakeRing(fake_workers(stages, slots=streams, context=64), names)
    engine = Engine(stages=stages, context=64, streams=streams, epoch=7)
    driver = Driver(fake_manifest(names, **plan), ring, engine, serving=serving)
    driver.start()
    try:
        yield driver, ring
    finally:
        driver.stop()
    assert ring.closed


class Listener:
    """Collects a request's events."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def __call__(self, event: Event) -> None:
        self._events.put(event)

    def next(self) -> Event:
        return self._events.get(timeout=WAIT)

    def tokens(self) -> list[int]:
        found = []
        while True:
            event = self.next()
            assert isinstance(event, Token), event
            found.append(event.token)
            if event.finish is not None:
                return found

    @property
    def silent(self) -> bool:
        return self._events.empty()


def request(driver: Driver, prompt: tuple[int, ...] = (5, 6, 7), max_tokens: int = 6) -> Request:
    return Request(driver.next_id(), prompt, max_tokens, greedy(), frozenset())


def start(driver: Driver, wanted: Request) -> Listener:
    listener = Listener()
    driver.submit(wanted, listener)
    return listener


class Doubler:
    """A stage of a graph: y = 2 x; fails on what is negative."""

    def run(self, tensors: dict[str, Array]) -> dict[str, Array]:
        return {"x": tensors["x"] * 2}


def graph_spec(first: bool, last: bool) -> StageSpec:
    x = Tensor(name="x", dtype="int64", shape=["n"])
    return StageSpec(
        kind="graph", backend="fake", target="fake", model="none", first=first, last=last, inputs=[x], outputs=[x],
        forward=["x"], files=[],
    )  # fmt: skip


@contextmanager
def graph() -> Iterator[tuple[Driver, FakeRing]]:
    workers = [Worker(Doubler(), graph_spec(first, not first)) for first in (True, False)]
    ring = FakeRing(workers, NAMES)
    driver = Driver(fake_manifest(NAMES, "graph"), ring, Calls(stages=2, epoch=7))
    driver.start()
    try:
        yield driver, ring
    finally:
        driver.stop()
