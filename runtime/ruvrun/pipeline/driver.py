"""The driver: the one thread in the head that owns the engine and the ring.

Other threads (the HTTP server's event loop, a benchmark) hand in requests and get events; nothing else ever
touches a link. A turn of the loop is::

    wait for what the links bring  ->  engine.receive  ->  engine.step, send  ->  tell the callers

The messages go out before the callers are told, because the stages wait for the former and only people for
the latter. The wait has no time-out unless a step is in the ring, and then one so long that it never passes
in a healthy fleet: when nothing happens, nothing runs. The head shares its core with the first stage, so every
microsecond here is one less for the model.

What can go wrong, and what then happens:

1. A stage is not ``ready`` any more (killed, unplugged, or it lost its own neighbour). The engine ends every
   sequence (``Lost``) and begins a new epoch; requests are refused until every stage is ready again. Nothing
   has to be restarted.
2. A stage says that it could not run a step (``Failed``). The same, but the stages stay ready.
3. All links stand and yet no answer comes. After a deadline that the plan's times make generous, the same as 2.

Pipelines of graphs have no sequences: a call is one message, and several in flight fill the pipeline.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

from ruvrun.elements import Value
from ruvrun.engine import Engine, Lost, Request, Token
from ruvrun.errors import InputError, IntegrityError, UnreachableError
from ruvrun.frames import Counters, Failed, Message, Ring, Run, Sampled, State, Step
from ruvrun.manifest import Manifest
from ruvrun.pipeline.calls import Call, Calls
from ruvrun.pipeline.health import Health

Event = Token | Lost
OnEvent = Callable[[Event], None]
Tensors = Mapping[str, Value]

_STOPPING = "the service is stopping"
_log = logging.getLogger("ruvrun")


class Links(Protocol):
    """What the driver needs of the ring: all methods but ``wake`` are called in the driver's thread only."""

    def connect(self) -> None:
        """Bind, and begin to connect to every stage; returns at once."""

    def poll(self, timeout: float | None) -> Sequence[tuple[Message, Tensors]]:
        """Wait up to ``timeout`` seconds (None: for ever) and return what came: messages of stages, and ``State``
        for every change of a stage, ``lost`` included. Returns early, and with nothing, after ``wake``.
        """

    def send(self, message: Ring, tensors: Tensors) -> None:
        """Send to stage 0; never blocks."""

    def ask(self, reset: bool) -> None:
        """Ask every stage for its counters; the answers come out of ``poll``."""

    def wake(self) -> None:
        """Make ``poll`` return. Safe in any thread."""

    def close(self) -> None:
        """Close every link."""


class Driver:
    """Drives one pipeline. Every public method may be called in any thread.

    Args:
        manifest: what is served; its plan's times set the deadline of a step.
        ring: the head's links.
        work: the engine of a decoder, or the calls of a graph.
        on_change: told (name, state, why) whenever a stage's state changes, in the driver's thread.
    """

    def __init__(
        self,
        manifest: Manifest,
        ring: Links,
        work: Engine | Calls,
        *,
        on_change: Callable[[str, str, str], None] = lambda _name, _state, _why: None,
    ) -> None:
        self._id = manifest.id
        self._ring = ring
        self._work = work
        self._on_change = on_change
        # A chunk of a prompt has 256 tokens, none of which costs more than a step of one row does; twice that.
        self._patience = 10.0 + 0.512 * sum(manifest.plan.stage_ms)
        self._health = Health(manifest.pipeline[0].stages)
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self._callers: dict[int, OnEvent] = {}
        self._epoch = work.epoch
        self._in_ring = 0
        self._due: float | None = None
        self._ask: bool | None = None
        self._counters: dict[str, Counters] = {}
        self._counted = threading.Event()
        self._all_ready = threading.Event()
        self._ready = False
        self._stopping = False
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    # What other threads call.

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the links; whatever is not finished is told so."""
        self._stopping = True
        self._ring.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until every stage answers; False after ``timeout`` seconds.

        Raises:
            RuvError: the links cannot be opened here (a port that is taken), or ``stop`` was called.
        """
        ready = self._all_ready.wait(timeout)
        if self._broken is not None:
            raise self._broken
        if self._stopping:
            raise _lost(_STOPPING)
        return ready

    def next_id(self) -> int:
        """A number that no other request of this head has."""
        return next(self._ids)

    def submit(self, request: Request, on_event: OnEvent) -> None:
        """Take a request. ``on_event`` is called in the driver's thread and must not block: ``Token`` for every
        token, the last with ``finish``; or ``Lost`` once.

        Raises:
            InputError: the request cannot be served (a prompt longer than the context).
            UnreachableError: a stage is not there.
        """
        if not isinstance(self._work, Engine):
            raise InputError("not-a-decoder", "this model takes tensors, not text", hint="use `ruvrun run --input`")
        with self._lock:
            self._require_ready()
            self._work.add(request)
            self._callers[request.id] = on_event
        self._ring.wake()

    def cancel(self, id: int) -> None:
        """Forget a request; no more is computed for it. Unknown and finished ones are ignored."""
        with self._lock:
            if self._callers.pop(id, None) is None or not isinstance(self._work, Engine):
                return
            self._work.cancel(id)
        self._ring.wake()

    def call(self, tensors: Tensors) -> Future[dict[str, Value]]:
        """Run a graph once, later: several calls fill the pipeline. One that is cancelled in time is never sent.

        Raises:
            UnreachableError: a stage is not there. That it was lost on the way, the future tells.
        """
        if not isinstance(self._work, Calls):
            raise InputError("not-a-graph", "this model is a decoder", hint="use `ruvrun run --prompt`")
        with self._lock:
            self._require_ready()
            call = Call(self.next_id(), tensors, Future())
            self._work.add(call)
        self._ring.wake()
        return call.result

    def run(self, tensors: Tensors, timeout: float = 600.0) -> dict[str, Value]:
        """As ``call``, and wait for the outputs.

        Raises:
            UnreachableError: a stage is not there, was lost on the way, or did not answer in time.
        """
        try:
            return self.call(tensors).result(timeout)
        except FutureTimeout:
            raise UnreachableError(
                "no-result", f"no result within {timeout:.0f} s", hint="see `ruvrun status`"
            ) from None

    def health(self) -> dict[str, Any]:
        """The body of GET /health; ``status`` is ``ready`` when every stage is."""
        with self._lock:
            return self._health.body(self._id)

    def load(self) -> tuple[int, int]:
        """How many requests run, and how many wait for space."""
        with self._lock:
            return self._work.running, self._work.waiting

    def counters(self, *, reset: bool = False, timeout: float = 5.0) -> dict[str, Counters]:
        """Every stage's counters since the last reset, by node name; a stage that does not answer is left out."""
        with self._lock:
            self._counters = {}
            self._counted.clear()
            self._ask = reset
        self._ring.wake()
        self._counted.wait(timeout)
        with self._lock:
            return dict(self._counters)

    def wait_end(self) -> None:
        """Wait until the thread has ended; raises what ended it, if that was not ``stop``."""
        self._thread.join()
        if self._broken is not None:
            raise self._broken

    # The thread.

    def _run(self) -> None:
        try:
            self._ring.connect()
            self._loop()
        except BaseException as error:  # noqa: BLE001 - raised again in the threads that wait for us
            self._broken = error
        finally:
            why = str(self._broken) if self._broken else _STOPPING
            with self._lock:
                told = self._lose(why)
            self._tell(told)
            self._all_ready.set()
            self._ring.close()

    def _loop(self) -> None:
        ring, lock = self._ring, self._lock
        told: list[tuple[OnEvent, Event]] = []
        while not self._stopping:
            with lock:
                outgoing = self._next()
            for message, tensors in outgoing:
                ring.send(message, tensors)
            if told:
                self._tell(told)
            due = self._due
            arrived = ring.poll(None if due is None else max(0.0, due - time.monotonic()))
            told = []
            with lock:
                for received, arrays in arrived:
                    if type(received) is Sampled:
                        self._sampled(received, told)
                    else:
                        told += self._receive(received, arrays)
                if not arrived and self._due is not None and time.monotonic() >= self._due:
                    told += self._lose(f"no stage answered for {self._patience:.0f} s")
        self._tell(told)

    def _next(self) -> list[tuple[Ring, Tensors]]:
        """Everything that can be sent now."""
        if self._ask is not None:
            self._ring.ask(self._ask)
            self._ask = None
        outgoing: list[tuple[Ring, Tensors]] = []
        if not self._ready:
            return outgoing
        step = self._work.step
        while (sent := step()) is not None:
            outgoing.append(sent)
            message = sent[0]
            self._epoch = message.epoch
            kind = type(message)
            if kind is Step or kind is Run:  # what is under way, for the deadline
                self._in_ring += 1
                if self._due is None:
                    self._due = time.monotonic() + self._patience
        return outgoing

    def _returned(self, epoch: int) -> bool:
        """Note an answer; False when it belongs to an epoch that is over."""
        if epoch != self._epoch or self._in_ring == 0:
            return False
        self._in_ring -= 1
        self._due = time.monotonic() + self._patience if self._in_ring else None
        return True

    def _receive(self, message: Message, tensors: Tensors) -> list[tuple[OnEvent, Event]]:
        told: list[tuple[OnEvent, Event]] = []
        if isinstance(message, Run):
            if isinstance(self._work, Calls) and self._returned(message.epoch):
                self._work.receive(message, tensors)
        elif isinstance(message, State):
            told = self._changed(message)
        elif isinstance(message, Failed):
            # A failure of an earlier epoch has been dealt with when that epoch ended.
            if message.epoch == self._epoch and self._in_ring:
                told = self._lose(f"{message.node} could not run a step: {message.why}")
        elif isinstance(message, Counters):
            self._counters[message.node] = message
            if len(self._counters) == len(self._health.nodes):
                self._counted.set()
        return told

    def _sampled(self, message: Sampled, told: list[tuple[OnEvent, Event]]) -> None:
        """The usual message: tokens."""
        if not isinstance(self._work, Engine) or not self._returned(message.epoch):
            return
        try:
            tokens = self._work.receive(message)
        except IntegrityError as error:
            told += self._lose(str(error))
            return
        for token in tokens:
            caller = self._callers.get(token.id)
            if caller is not None:
                told.append((caller, token))
                if token.finish is not None:
                    del self._callers[token.id]

    def _changed(self, message: State) -> list[tuple[OnEvent, Event]]:
        if not self._health.note(message):
            return []
        self._on_change(message.node, message.state, message.why)
        told: list[tuple[OnEvent, Event]] = []
        if self._health.ready:
            self._ready = True
            self._all_ready.set()
        elif self._ready:
            self._ready = False
            self._all_ready.clear()
            stage = self._health.nodes[message.node].stage
            told = self._lose(f"{message.node} (stage {stage}) was lost: {message.why or message.state}")
        return told

    def _lose(self, why: str) -> list[tuple[OnEvent, Event]]:
        """End everything that runs or waits, and begin a new epoch."""
        self._in_ring, self._due = 0, None
        if isinstance(self._work, Calls):
            self._work.lose(_lost(why))
            return []
        gone = [(self._callers.pop(lost.id, None), lost) for lost in self._work.lose(why)]
        return [(caller, lost) for caller, lost in gone if caller is not None]

    def _tell(self, told: Sequence[tuple[OnEvent, Event]]) -> None:
        for caller, event in told:
            try:
                caller(event)
            except Exception:  # noqa: BLE001 - a caller's bug must not end everyone else's requests
                _log.exception("a request's callback failed")

    def _require_ready(self) -> None:
        if self._broken is not None or self._stopping:
            raise _lost(str(self._broken) if self._broken else _STOPPING)
        if not self._ready:
            raise UnreachableError(
                "not-ready",
                "a stage of this pipeline is not there",
                context=self._health.missing(),
                hint="see `ruvrun status`",
            )


def _lost(why: str) -> UnreachableError:
    return UnreachableError("stage-lost", why, hint="try again when `ruvrun status` says ready")
