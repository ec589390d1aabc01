"""The head's links for tests: stages are workers called in ``poll``, and a test says what goes wrong."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ruvrun import frames
from ruvrun.engine import Lost, Token
from ruvrun.executors import Array
from ruvrun.manifest import Head, Manifest, Node, Pipeline, Placed, Plan, Program, Space, Stage
from ruvrun.pipeline.worker import Worker

Event = tuple[frames.Message, Mapping[str, Array], int]


WAIT = 20.0


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for what another thread does, and not for ever."""
    until = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.001)


def tokens_of(events: queue.SimpleQueue[Token | Lost]) -> list[int]:
    """All that a request is answered, to its end."""
    found = []
    while True:
        event = events.get(timeout=WAIT)
        assert isinstance(event, Token), event
        found.append(event.token)
        if event.finish:
            return found


class FakeRing:
    """Answers at once, unless ``hold`` is set: then what was sent stays in the ring.

    ``workers`` and ``names`` are those of so many pipelines, one after the other.
    """

    def __init__(self, workers: Sequence[Worker], names: Sequence[str], pipelines: int = 1) -> None:
        self.hold = False
        self.closed = False
        self.sent: list[frames.Ring] = []
        self.sent_to: list[int] = []
        self.most_in_ring = 0
        self._workers = list(workers)
        self._names = names
        self._stages = len(names) // pipelines
        self._ring: deque[Event] = deque()
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._woken = False
        self.polls = 0
        self.sleeping = threading.Event()
        self.stepped = threading.Event()
        self.on_step: Callable[[], None] = lambda: None

    def connect(self) -> None:
        for name in self._names:
            self.inject(frames.State(name, "loading", ""))

    def ready(self) -> None:
        """Every stage answers."""
        for name in self._names:
            self.inject(frames.State(name, "ready", ""))

    def inject(self, message: frames.Message) -> None:
        """Let ``poll`` return this, of a stage that it names; from any thread."""
        node = getattr(message, "node", self._names[0])
        with self._changed:
            self._events.append((message, {}, self._names.index(node) // self._stages))
            self._changed.notify()

    def release(self) -> None:
        """Let the ring move again."""
        with self._changed:
            self.hold = False
            self._changed.notify()

    def lose_ring(self) -> None:
        """What was sent and not answered is gone."""
        with self._changed:
            self._ring.clear()

    def replace(self, worker: Worker, index: int) -> None:
        """The process of this stage was started again."""
        with self._changed:
            self._workers[index] = worker

    def lose_ring_of(self, pipeline: int) -> None:
        """As ``lose_ring``, of one pipeline."""
        with self._changed:
            self._ring = deque(event for event in self._ring if event[2] != pipeline)

    def poll(self, timeout: float | None) -> Sequence[Event]:
        with self._changed:
            self.polls += 1
            while not (self._events or self._woken or (self._ring and not self.hold)):
                self.sleeping.set()
                if not self._changed.wait(timeout):
                    return []
            self.sleeping.clear()
            self._woken = False
            if self._events:
                return [self._events.popleft()]
            if not self._ring or self.hold:
                return []
            message, tensors, pipeline = self._ring.popleft()
        result = (message, tensors)
        for worker in self._workers[pipeline * self._stages : (pipeline + 1) * self._stages]:
            if result is not None:
                result = worker.handle(*result)
        return [(*result, pipeline)] if result is not None else []

    def send(self, message: frames.Ring, tensors: Mapping[str, Array], pipeline: int) -> None:
        with self._changed:
            self.sent.append(message)
            self.sent_to.append(pipeline)
            self._ring.append((message, tensors, pipeline))
            steps = sum(isinstance(one, frames.Step | frames.Run) for one, _, _ in self._ring)
            self.most_in_ring = max(self.most_in_ring, steps)
        if steps:
            self.stepped.set()
            self.on_step()

    def ask(self, reset: bool) -> None:  # noqa: ARG002 - the ring's signature
        for name in self._names:
            self.inject(frames.Counters(name, 1.0, 0.5, 3, 100, 2.5, 1 << 20))

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify()

    def close(self) -> None:
        self.closed = True


def fake_manifest(
    names: Sequence[str],
    kind: str = "decoder",
    *,
    vocab: int = 61,
    stage_ms: float = 5.0,
    pipelines: int = 1,
    backend: str = "onnxruntime",
) -> Manifest:
    """A manifest of so many pipelines whose stages are on ``names``; nothing of it is on disk."""
    count = len(names) // pipelines
    stages = [
        Stage(
            index=index, sha256="0" * 64, backend=backend, target="host", inputs=[], outputs=[], forward=[],
            weight_bytes=1000, graph_nodes=1,
        )
        for index in range(count)
    ]  # fmt: skip
    return Manifest(
        id="a" * 64,
        program=Program(
            name="fake", kind="decoder" if kind == "decoder" else "graph", source="fake", source_sha256="0" * 64,
            vocab=vocab, context=64, eos=[2],
        ),
        stage=stages,
        node=[Node(name=name, public_key="k" * 40, target="host") for name in names],
        pipeline=[
            Pipeline(stages=[Placed(stage=index, node=names[at + index]) for index in range(count)])
            for at in range(0, len(names), count)
        ],
        head=Head(node=names[0]),
        space=Space(context=64, streams=4),
        plan=Plan(stage_ms=[stage_ms] * count),
    )  # fmt: skip
