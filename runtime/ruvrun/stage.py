"""One stage's process: load the bundle, join the ring, work until told to stop.

It listens before it loads, so that the head sees ``loading`` and not an absent node. Loading runs in a thread of its
own: every byte is hashed, the back end packs its weights, and the golden check runs, while the links already answer.
Then, for ever::

    receive a message from the stage before (stage 0: from the head)
    worker.handle
    send the result to the stage behind (the last one: to the head)

The stage is ``ready`` when it is loaded and the link to the stage behind is open. It tells the head of every change
over the link that the head opened, and of every step that failed; it never ends because a peer did, and never waits
for anything but the next message.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import ruvrun
from ruvrun.awake import LINGER, Awake
from ruvrun.bundle import requires
from ruvrun.elements import Arrays
from ruvrun.errors import RuvError
from ruvrun.frames import Ask, Counters, Failed, Message, Ring, State, Step
from ruvrun.machine import peak_bytes
from ruvrun.manifest import Manifest
from ruvrun.pipeline.health import READY
from ruvrun.pipeline.links import Links, Lost, Opened, Received
from ruvrun.pipeline.loading import load_worker
from ruvrun.pipeline.seat import seat_of
from ruvrun.pipeline.sockets import open_sockets
from ruvrun.pipeline.worker import Worker
from ruvrun.placement import Endpoints
from ruvrun.session import HEAD, STAGE, Self
from ruvrun.transport import Peer, Transport

Say = Callable[[str], None]

# How often a caller's stop event is looked at, and the first pause before a word about a peer that does not answer.
_GLANCE = 0.2
_PATIENCE = 5.0
_LAST_WORDS = 0.5


def serve(
    directory: Path,
    manifest: Manifest,
    node: str,
    endpoints: Endpoints,
    *,
    context: int,
    streams: int,
    threads: int,
    say: Say,
    stop: threading.Event | None = None,
    loaded: Callable[[Callable[[], int | None]], None] = lambda _: None,
) -> None:
    """Serve the bundle in ``directory`` until ``stop`` is set, or an exception (SIGTERM's) comes through.

    Args:
        directory: the bundle.
        manifest: the one in it.
        node: which node this is; it holds a stage.
        endpoints: where everybody listens.
        context: positions per sequence; the same on every stage.
        streams: sequences at a time; the same on every stage.
        threads: of the back end; 0 is all cores.
        say: gets a line for every change worth a person's attention.
        stop: ends the stage when set.
        loaded: called once it is loaded and has checked itself, in a thread of its own; it gets how to look whether
            work goes on: another number for each message, None between.

    Raises:
        IntegrityError: the bundle is not what the manifest says, or does not compute here what it should.
        RuvError: it cannot be loaded, or the port is taken.
    """
    place = manifest.place_of(node)
    assert place is not None, f"{node} holds no stage"
    number = place[1].stage

    def load() -> Worker:
        worker = load_worker(directory, manifest, number, context=context, streams=streams, threads=threads, say=say)
        loaded(lambda: stage.turn if stage.turn % 2 else None)
        return worker

    transport = open_sockets(manifest, node, directory, endpoints, streams=streams)
    stage = Stage(manifest, node, endpoints, transport, load, say, requires=requires(directory))
    stage.run(stop)


class Stage:
    """The loop of one stage over any transport; ``load`` is called in a thread.

    Args:
        manifest: what is served.
        node: which node this is.
        endpoints: where everybody listens.
        transport: the edge.
        load: makes the worker, or raises.
        say: gets a line for every change worth a person's attention.
        requires: the least versions that its peers must have, as its bundle states them.
        clock: seconds, monotonic.
    """

    turn = 0  # counts when work on a message begins and when it ends: odd while it lasts

    def __init__(
        self,
        manifest: Manifest,
        node: str,
        endpoints: Endpoints,
        transport: Transport,
        load: Callable[[], Worker],
        say: Say,
        *,
        requires: Mapping[str, str] = {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._seat = node, seat_of(manifest, node, endpoints)
        self._next = self._seat.next
        self._links = Links(
            transport,
            Self(manifest.protocol, manifest.id, node, STAGE, ruvrun.__version__, requires),
            listen=self._seat.listens,
            calls=self._seat.calls,
            expected=self._seat.expects,
            clock=clock,
        )
        self._load, self._say, self._clock = load, say, clock
        self._awake = Awake()
        self._worker: Worker | None = None
        self._failure: BaseException | None = None
        self._state = State(node, "loading", "")
        self._head_link: Peer | None = None
        self._before_link = b""
        self._epoch = 0
        self._unanswered_since = clock()
        self._patience = _PATIENCE
        self._told = ""

    def run(self, stop: threading.Event | None = None) -> None:
        """Listen, load, work; returns when ``stop`` is set.

        Raises:
            RuvError: what ``load`` raised, or the port is taken.
        """
        grace, awake = 0.0, self._awake
        try:
            self._links.open()
            threading.Thread(target=self._load_aside, name="load", daemon=True).start()
            while stop is None or not stop.is_set():
                came = self._links.poll(LINGER if stop is None and awake.held else self._timeout(stop))
                if not came:
                    awake.rest()
                for happened in came:
                    if isinstance(happened, Received):
                        self._receive(happened)
                    else:
                        self._link_changed(happened)
                if self._state.state != READY:
                    self._settle()
                if self._failure is not None:
                    raise self._failure
        except RuvError:
            grace = _LAST_WORDS
            raise
        finally:
            awake.rest()
            self._links.close(grace)

    def _load_aside(self) -> None:
        try:
            self._worker = self._load()
        except BaseException as error:  # noqa: BLE001 - raised again in the stage's own thread
            self._failure = error
        with contextlib.suppress(Exception):  # the stage may have ended meanwhile
            self._links.wake()

    def _receive(self, received: Received) -> None:
        message = received.message
        if isinstance(message, Step) or isinstance(message, Ring):  # noqa: SIM101 - a step is known at once
            if received.peer.link == self._before_link:
                self._epoch = message.epoch
                if self._awake.due:
                    self._awake.work()
                self.turn += 1
                self._work(message, received.tensors)
                self.turn += 1
        elif isinstance(message, Ask):
            self._links.answer(received.peer, self._count(message.reset))

    def _work(self, message: Ring, tensors: Arrays) -> None:
        """One message through the worker and on; a failure is told to the head."""
        if self._worker is None:
            self._fail(message.step, "it is still loading")
            return
        try:
            result = self._worker.handle(message, tensors)
            sent = result is None or self._links.send(self._next, *result)
        except Exception as error:  # noqa: BLE001 - whatever a back end raises ends the step, not the stage
            why = error.message if isinstance(error, RuvError) else f"{type(error).__name__}: {error}"
            self._say(f"failed: {self._node}, step {message.step}: {why}")
            self._fail(message.step, why)
            return
        if not sent:
            self._fail(message.step, f"it cannot reach {self._next}")

    def _fail(self, step: int, why: str) -> None:
        self._to_head(Failed(self._epoch, step, self._node, why))

    def _to_head(self, message: Message) -> None:
        if self._head_link is not None:
            self._links.answer(self._head_link, message)

    def _link_changed(self, happened: Opened | Lost) -> None:
        if not happened.peer.link:
            if isinstance(happened, Lost):
                if happened.was_open or happened.refused:
                    self._tell(f"{'refused' if happened.refused else 'lost'}: {self._next}, {happened.why}")
                self._unanswered_since, self._patience = self._clock(), _PATIENCE
            self._settle(happened.why if isinstance(happened, Lost) else "")
            return
        if isinstance(happened, Opened):
            if happened.role == HEAD:
                self._head_link = happened.peer
                self._to_head(self._state)
                self._joined()
            if (happened.role == HEAD) == self._seat.first:
                self._before_link = happened.peer.link
        elif happened.refused:
            self._tell(f"refused: {happened.why}")
        elif happened.peer.link == self._before_link:
            # Frames may be lost with the link; whoever waits for them is told now and not by a deadline.
            self._before_link = b""
            self._fail(-1, f"the link from {happened.peer.node} broke: {happened.why}")

    def _settle(self, why: str = "") -> None:
        """Work out what this stage is doing, and tell the head if that is news."""
        if self._failure is not None:
            error = self._failure
            state, why = "refused", error.message if isinstance(error, RuvError) else f"it failed to load: {error}"
        elif self._worker is None:
            state, why = "loading", ""
        elif self._links.is_open(self._next):
            state, why = READY, ""
        else:
            state, why = "waiting", f"it cannot reach {self._next}{f': {why}' if why else ''}"
            if self._state.state == "waiting":
                why = self._state.why
            self._wait_aloud()
        if (state, why) != (self._state.state, self._state.why):
            self._state = State(self._node, state, why)
            self._to_head(self._state)
            self._joined()

    def _wait_aloud(self) -> None:
        waited = self._clock() - self._unanswered_since
        if waited >= self._patience:
            self._say(f"waiting: {self._next}, no answer for {waited:.0f} s")
            while self._patience <= waited:  # it may have been loading for long: one line is enough
                self._patience *= 2

    def _joined(self) -> None:
        if self._state.state == READY and self._head_link is not None:
            self._tell(f"joined: {self._node}, {self._seat.place}, head {self._seat.head}")

    def _tell(self, line: str) -> None:
        """Say a line, unless it was the last one that was said."""
        if line != self._told:
            self._told = line
            self._say(line)

    def _timeout(self, stop: threading.Event | None) -> float | None:
        if stop is not None:
            return _GLANCE
        return None if self._state.state in (READY, "loading") else 1.0

    def _count(self, reset: bool) -> Counters:
        if self._worker is None:
            return Counters(self._node, 0.0, 0.0, 0, 0, 0.0, peak_bytes())
        counters = self._worker.meter.counters(self._node, self._links.sent_bytes, peak_bytes())
        if reset:
            self._worker.meter.reset()
            self._links.sent_bytes = 0
        return counters
