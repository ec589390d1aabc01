"""A stage alone in memory, where everything it says is seen."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from ruvrun.errors import IntegrityError
from ruvrun.executors import Array
from ruvrun.frames import Ask, Close, Counters, Failed, Message, Open, Sampling, SeqStep, State, Step
from ruvrun.pipeline.links import Happened, Links, Opened, Received
from ruvrun.pipeline.links import Lost as LinkLost
from ruvrun.pipeline.worker import Worker
from ruvrun.placement import Endpoint, Endpoints
from ruvrun.session import HEAD, STAGE, Self
from ruvrun.stage import Stage
from ruvrun.transport import Peer
from ruvrun.transport.memory import Wire
from tests.runtime.fake_ring import fake_manifest
from tests.runtime.fakes import FakeDecoder, fake_spec, fake_workers
from tests.runtime.fleets import CONTEXT, SLOTS

LONG = 20.0  # a safety net: nothing below waits for a time to pass
GREEDY = Sampling(0.0, 1.0, 0)
NAMES = ["n0", "n1", "n2"]


class Around:
    """Stage n1 of three, and everybody it talks to: the head, n0 before it and n2 behind it."""

    def __init__(
        self,
        load: Callable[[], Worker],
        requires: Mapping[str, str] = {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wire = Wire()
        self.manifest = fake_manifest(NAMES)
        self.said: queue.Queue[str] = queue.Queue()
        self.stop = threading.Event()
        self.raised: list[BaseException] = []
        endpoints = Endpoints(
            nodes={name: Endpoint("host", port) for port, name in enumerate(NAMES, 1)}, head=Endpoint("host", 100)
        )
        transport = self.wire.transport("n1")
        self.stage = Stage(
            self.manifest, "n1", endpoints, transport, load, self.said.put, requires=requires, clock=clock
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.head = self._links("n0", HEAD, 100, {"n1": (STAGE, ("host", 2))}, {})
        self.before = self._links("n0", STAGE, 1, {"n1": (STAGE, ("host", 2))}, {})
        self.behind = self._links("n2", STAGE, 3, {}, {STAGE: ["n1"]})
        self.more: list[Links] = []
        self.kept: defaultdict[Links, list[Happened]] = defaultdict(list)
        self.until_when = time.monotonic() + LONG

    def _links(self, node: str, role: str, port: int, calls: dict, expected: dict) -> Links:
        me = Self(1, self.manifest.id, node, role, "0.1.0")
        return Links(self.wire.transport(node), me, listen=("host", port), calls=calls, expected=expected)

    def _run(self) -> None:
        try:
            self.stage.run(self.stop)
        except BaseException as error:  # noqa: BLE001 - a test looks at it
            self.raised.append(error)

    def end(self) -> None:
        self.stop.set()
        self.thread.join(LONG)
        assert not self.thread.is_alive()

    def start(self) -> None:
        """All links open, the stage ready."""
        for links in (self.behind, self.head):
            links.open()
        self.thread.start()
        self.until(self.head, lambda message: message == State("n1", "ready", ""))
        self.open_before()

    def open_before(self) -> None:
        self.before.open()
        while not any(isinstance(happened, Opened) for happened in self.turn(self.before)):
            pass

    def turn(self, links: Links) -> list[Happened]:
        """What happened on ``links``; the others get their turn too, and keep what happened on them."""
        for other in (self.head, self.before, self.behind, *self.more):
            self.kept[other] += other.poll(0.002 if other is links else 0)
        assert time.monotonic() < self.until_when, "it did not happen"
        happened, self.kept[links] = self.kept[links], []
        return happened

    def until(self, links: Links, wanted: Callable[[Message], bool]) -> Received:
        """The next message on ``links`` that is wanted; those before it are dropped."""
        while True:
            happened = self.turn(links)
            for number, one in enumerate(happened):
                if isinstance(one, Received) and wanted(one.message):
                    self.kept[links] = happened[number + 1 :]
                    return one


def a(kind: type) -> Callable[[Message], bool]:
    return lambda message: isinstance(message, kind)


def middle() -> Worker:
    return fake_workers(3, slots=SLOTS, context=CONTEXT)[1]


@pytest.fixture
def around() -> Iterator[Around]:
    made = Around(middle)
    yield made
    made.end()


def step(number: int, position: int = 0) -> tuple[Step, dict[str, Array]]:
    tensors = {"hidden.1": np.array([5], np.int64), "echo": np.array([9], np.int64)}
    return Step(1, number, (SeqStep(1, 0, position, 1, 1),)), tensors


def test_a_peer_that_is_older_than_the_bundle_requires_is_refused() -> None:
    made = Around(middle, {"ruvrun": "0.2.0"})
    try:
        made.head.open()
        made.thread.start()
        lost: list[LinkLost] = []
        while not lost:
            lost = [happened for happened in made.turn(made.head) if isinstance(happened, LinkLost)]
        assert lost[0].refused
        assert "n0 runs ruvrun 0.1.0, and the bundle of n1 requires 0.2.0" in lost[0].why
    finally:
        made.end()


def test_what_comes_from_before_goes_on_behind(around: Around) -> None:
    around.start()
    around.before.send("n1", Open(1, 0, 1, GREEDY))
    assert around.until(around.behind, a(Open)).message == Open(1, 0, 1, GREEDY)
    around.before.send("n1", *step(1))
    passed = around.until(around.behind, a(Step))
    assert passed.message == step(1)[0]
    assert set(passed.tensors) == {"hidden.3", "echo"}
    assert passed.tensors["echo"].tolist() == [9]
    around.before.send("n1", Close(1, 2, 1))
    assert around.until(around.behind, a(Close)).message == Close(1, 2, 1)


def test_its_turn_is_odd_while_it_works_and_another_for_each_message(
    around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = []
    handle = Worker.handle

    def seen(worker: Worker, *message: Any) -> Any:
        turns.append(around.stage.turn)
        return handle(worker, *message)

    monkeypatch.setattr(Worker, "handle", seen)
    around.start()
    around.before.send("n1", Open(1, 0, 1, GREEDY))
    around.before.send("n1", *step(1))
    around.until(around.behind, a(Step))
    around.before.send("n1", *step(9))  # out of order: it fails, and is over all the same
    around.until(around.head, a(Failed))
    assert turns == [1, 3, 5]
    around.head.send("n1", Ask(False))
    around.until(around.head, a(Counters))
    assert around.stage.turn == 6


def test_it_says_that_it_loads_before_it_is_loaded() -> None:
    go = threading.Event()

    def slowly() -> Worker:
        go.wait(LONG)
        return middle()

    around = Around(slowly)
    around.behind.open()
    around.head.open()
    around.thread.start()
    assert around.until(around.head, a(State)).message == State("n1", "loading", "")
    around.open_before()
    around.before.send("n1", *step(0))
    assert around.until(around.head, a(Failed)).message == Failed(1, 0, "n1", "it is still loading")
    around.head.send("n1", Ask(False))
    assert around.until(around.head, a(Counters)).message.steps == 0  # type: ignore[union-attr] # they are Counters
    go.set()
    assert around.until(around.head, a(State)).message == State("n1", "ready", "")
    around.end()


def test_whom_it_waited_for_while_it_loaded_is_said_once() -> None:
    now, go = [0.0], threading.Event()

    def slowly() -> Worker:
        go.wait(LONG)
        return middle()

    around = Around(slowly, clock=lambda: now[0])
    around.head.open()
    around.thread.start()
    around.until(around.head, a(State))
    now[0] = 30.0
    go.set()
    around.until(around.head, lambda message: message == State("n1", "waiting", "it cannot reach n2"))
    for now[0] in (31.0, 32.0, 39.0, 40.0):
        for _ in range(2):  # so that it has looked at the clock between two answers
            around.head.send("n1", Ask(False))
            around.until(around.head, a(Counters))
    around.end()
    lines = [around.said.get_nowait() for _ in range(around.said.qsize())]
    assert [line for line in lines if line.startswith("waiting")] == [
        "waiting: n2, no answer for 30 s", "waiting: n2, no answer for 40 s",
    ]  # fmt: skip


def test_a_stage_that_cannot_load_says_why_and_ends_with_it() -> None:
    go = threading.Event()

    def fail() -> Worker:
        go.wait(LONG)
        raise IntegrityError("golden-mismatch", "this machine computes something else", hint=None)

    around = Around(fail)
    around.head.open()
    around.thread.start()
    assert around.until(around.head, a(State)).message == State("n1", "loading", "")
    go.set()
    refused = State("n1", "refused", "this machine computes something else")
    assert around.until(around.head, a(State)).message == refused
    around.thread.join(LONG)
    assert [type(error) for error in around.raised] == [IntegrityError]


def test_a_step_that_raises_is_told_to_the_head_and_the_next_epoch_works(around: Around) -> None:
    around.start()
    around.before.send("n1", *step(0))  # its sequence was never opened
    failed = around.until(around.head, a(Failed)).message
    assert isinstance(failed, Failed)
    assert (failed.epoch, failed.step, failed.node) == (1, 0, "n1")
    assert "not open" in failed.why
    around.before.send("n1", Open(2, 0, 1, GREEDY))
    assert around.until(around.behind, a(Open)).message == Open(2, 0, 1, GREEDY)


def test_an_executor_that_raises_anything() -> None:
    class Broken(FakeDecoder):
        def step(self, *_: object) -> dict[str, Array]:
            raise MemoryError("no room")

    around = Around(lambda: Worker(Broken(1, 3, slots=SLOTS, context=CONTEXT), fake_spec(1, 3)))
    around.start()
    around.before.send("n1", Open(1, 0, 1, GREEDY))
    around.before.send("n1", *step(1))
    assert around.until(around.head, a(Failed)).message == Failed(1, 1, "n1", "MemoryError: no room")
    around.end()


def test_ring_messages_count_only_from_the_stage_before(around: Around) -> None:
    around.start()
    around.head.send("n1", Open(1, 0, 1, GREEDY))
    around.head.send("n1", Ask(False))
    around.until(around.head, a(Counters))
    around.before.send("n1", Open(1, 0, 2, GREEDY))
    assert around.until(around.behind, a(Open)).message == Open(1, 0, 2, GREEDY)


def test_counters_and_their_reset(around: Around) -> None:
    around.start()
    around.before.send("n1", Open(1, 0, 1, GREEDY))
    around.before.send("n1", *step(1))
    around.until(around.behind, a(Step))
    counts = []
    for reset in (True, False):
        around.head.send("n1", Ask(reset))
        message = around.until(around.head, a(Counters)).message
        assert isinstance(message, Counters)
        counts.append(message)
    assert (counts[0].node, counts[0].steps, counts[1].steps) == ("n1", 1, 0)
    assert counts[0].wire_bytes > 16
    assert counts[1].wire_bytes == 0
    assert counts[0].peak_rss_bytes > 1 << 20


def test_a_lost_neighbour_is_told_and_found_again(around: Around) -> None:
    around.start()
    around.wire.cut(3)
    lost = around.until(around.head, a(State)).message
    assert lost == State("n1", "waiting", "it cannot reach n2: the connection was lost")
    around.before.send("n1", Open(1, 0, 1, GREEDY))
    assert around.until(around.head, a(Failed)).message == Failed(1, 0, "n1", "it cannot reach n2")
    around.wire.mend(3)
    around.until(around.head, lambda message: message == State("n1", "ready", ""))
    around.end()
    lines = [around.said.get_nowait() for _ in range(around.said.qsize())]
    joined = "joined: n1, stage 1 of 3, head n0 (host:100)"
    assert lines == [joined, "lost: n2, the connection was lost", joined]


def test_a_broken_link_before_it_is_told_at_once(around: Around) -> None:
    around.start()
    around.before.send("n1", Open(7, 0, 1, GREEDY))
    around.until(around.behind, a(Open))
    around.before._transport.send(Peer("n1"), [b"\xff nonsense"])
    failed = around.until(around.head, a(Failed)).message
    assert isinstance(failed, Failed)
    assert failed.epoch == 7
    assert "n0" in failed.why


def test_a_head_that_is_started_again_is_told_the_state_and_everything_later(around: Around) -> None:
    around.start()
    around.head.close()
    again = around._links("n0", HEAD, 100, {"n1": (STAGE, ("host", 2))}, {})
    again.open()
    around.more.append(again)
    assert around.until(again, a(State)).message == State("n1", "ready", "")
    around.before.send("n1", *step(0))
    assert isinstance(around.until(again, a(Failed)).message, Failed)
