"""The driver: the one thread in the head that owns the engines and the ring.

Other threads (the HTTP server's event loop, a benchmark) hand in requests and get events; nothing else ever
touches a link. A turn of the loop is::

    wait for what the links bring  ->  engine.receive  ->  engine.step, send  ->  tell the callers

The messages go out before the callers are told, because the stages wait for the former and only people for
the latter. The wait has no time-out unless a step is in the ring, and then one so long that it never passes
in a healthy fleet: when nothing happens, nothing runs. The head shares its core with the first stage, so every
microsecond here is one less for the model.

What can go wrong, and what then happens:

1. A stage is not ``ready`` any more (killed, unplugged, or it lost its own neighbour). The engine begins a new epoch,
   and its sequences go on at another pipeline or wait for the stage, whose absence is bounded; then they end
   (``Lost``). New requests are refused until every stage is ready again. Nothing has to be restarted.
2. A stage says that it could not run a step (``Failed``). The same, but the stages stay ready, so that it goes on soon.
3. All links stand and yet no answer comes. After a deadline that the plan's times make generous, the same as 2.

Pipelines of graphs have no sequences: a call is one message, and several in flight fill the pipeline.

A manifest of several pipelines has a ``Lane`` for each. A new request goes to the one with the least to do
(``spread``), and 1 to 3 happen to one lane alone: the others keep their sequences, and take what comes and, in case 1,
what that lane had. All lanes are driven by this one thread: what a step costs here is a small part of what it costs a
stage, and several threads would only take turns at the interpreter.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from ruvrun.elements import Tensors, Value
from ruvrun.engine import Engine, Request
from ruvrun.errors import InputError, UnreachableError
from ruvrun.frames import Counters, Failed, Message, Run, Sampled, State
from ruvrun.manifest import Manifest
from ruvrun.pipeline.calls import Call, Calls
from ruvrun.pipeline.head_links import HeadLinks
from ruvrun.pipeline.health import Health
from ruvrun.pipeline.lane import Event as Event
from ruvrun.pipeline.lane import Lane, OnEvent, Told, absence_of, patience_of, stage_lost, tell
from ruvrun.pipeline.spread import come_back, least_busy, leave, level, overdue
from ruvrun.pipeline.tally import Tally

_STOPPING = "the service is stopping"


class Driver:
    """Drives all pipelines of a manifest. Every public method may be called in any thread.

    Args:
        manifest: what is served; its plan's times set the deadline of a step.
        ring: the head's links.
        work: the engine of a decoder, or the calls of a graph; one for each pipeline, in order.
        on_change: told (name, state, why) whenever a stage's state changes, in the driver's thread.
        serving: whether lost stages are waited for: somebody starts them again.
    """

    def __init__(
        self,
        manifest: Manifest,
        ring: HeadLinks,
        *work: Engine | Calls,
        on_change: Callable[[str, str, str], None] = lambda _name, _state, _why: None,
        serving: bool = False,
    ) -> None:
        self._id = manifest.id
        self._ring = ring
        self._lanes = tuple(
            Lane(number, own, patience_of(manifest, number), absence_of(manifest, number) if serving else 0.0)
            for number, own in enumerate(work)
        )
        self._decodes = isinstance(work[0], Engine)
        self._on_change = on_change
        self._health = Health(manifest.pipeline)
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self._tally = Tally(len(self._health.nodes))
        self._all_ready = threading.Event()
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
            raise stage_lost(_STOPPING)
        return ready

    def next_id(self) -> int:
        """A number that no other request of this head has."""
        return next(self._ids)

    def submit(self, request: Request, on_event: OnEvent) -> None:
        """Take a request. ``on_event`` is called in the driver's thread and must not block: ``Token`` for every
        token, the last with ``finish``; or ``Lost`` once.

        Raises:
            InputError: the request cannot be served (a prompt longer than the context).
            UnreachableError: no pipeline has all its stages.
        """
        if not self._decodes:
            raise InputError("not-a-decoder", "this model takes tensors, not text", hint="use `ruvrun run --input`")
        with self._lock:
            lane = self._choose(request.prompt if len(self._lanes) > 1 else ())
            assert isinstance(lane.work, Engine)
            lane.work.add(request)
            lane.callers[request.id] = on_event
        self._ring.wake()

    def cancel(self, id: int) -> None:
        """Forget a request; no more is computed for it. Unknown and finished ones are ignored."""
        with self._lock:
            if not any(lane.cancel(id) for lane in self._lanes):
                return
        self._ring.wake()

    def call(self, tensors: Tensors) -> Future[dict[str, Value]]:
        """Run a graph once, later: several calls fill the pipeline. One that is cancelled in time is never sent.

        Raises:
            UnreachableError: no pipeline has all its stages. That one was lost on the way, the future tells.
        """
        if self._decodes:
            raise InputError("not-a-graph", "this model is a decoder", hint="use `ruvrun run --prompt`")
        with self._lock:
            lane = self._choose()
            assert isinstance(lane.work, Calls)
            call = Call(self.next_id(), tensors, Future())
            lane.work.add(call)
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
        """The body of GET /health; ``status`` is ``ready`` when every stage is, ``degraded`` when a pipeline is."""
        with self._lock:
            return self._health.body(self._id)

    def load(self) -> tuple[int, int]:
        """How many requests run, and how many wait for space."""
        with self._lock:
            running = sum(lane.work.running for lane in self._lanes)
            return running, sum(lane.work.waiting + len(lane.kept) for lane in self._lanes)

    def put_backs(self) -> int:
        """How often a sequence was put back, as space ran out, since the head began."""
        return sum(lane.work.put_backs for lane in self._lanes if isinstance(lane.work, Engine))

    def counters(self, *, reset: bool = False, timeout: float = 5.0) -> dict[str, Counters]:
        """Every stage's counters since the last reset, by node name; a stage that does not answer is left out."""
        with self._lock:
            self._tally.begin(reset)
        self._ring.wake()
        self._tally.wait(timeout)
        with self._lock:
            return self._tally.found()

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
            told: Told = []
            with self._lock:
                for lane in self._lanes:
                    told += lane.lose(why)
            tell(told)
            self._all_ready.set()
            self._ring.close()

    def _loop(self) -> None:
        ring, lock, lanes, tally = self._ring, self._lock, self._lanes, self._tally
        several = len(lanes) > 1
        told: Told = []
        while not self._stopping:
            due: float | None = None
            for lane in lanes:
                with lock:
                    outgoing = lane.next()
                for message, tensors in outgoing:
                    ring.send(message, tensors, lane.number)
                if lane.due is not None and (due is None or lane.due < due):
                    due = lane.due
            if tally.due is not None:
                ring.ask(tally.due)
                tally.due = None
            if told:
                tell(told)
            arrived = ring.poll(None if due is None else max(0.0, due - time.monotonic()))
            told = []
            with lock:
                for received, arrays, number in arrived:
                    if type(received) is Sampled:
                        lanes[number].sampled(received, told)
                    else:
                        told += self._receive(received, arrays, lanes[number])
                if due is not None and (several or not arrived):  # what one lane awaits, others' messages do not bring
                    now = time.monotonic()
                    for lane in lanes:
                        told += overdue(lane, lanes, now)
                if several:
                    level(lanes)
        tell(told)

    def _receive(self, message: Message, tensors: Tensors, lane: Lane) -> Told:
        if isinstance(message, Run):
            lane.ran(message, tensors)
        elif isinstance(message, State):
            return self._changed(message, lane)
        elif isinstance(message, Failed):
            if why := lane.failed(message):
                return leave(lane, self._lanes, why)
        elif isinstance(message, Counters):
            self._tally.note(message)
        return []

    def _changed(self, message: State, lane: Lane) -> Told:
        if not self._health.note(message):
            return []
        self._on_change(message.node, message.state, message.why)
        if self._health.whole(lane.number):
            come_back(lane, self._lanes)
            if self._health.ready:
                self._all_ready.set()
        elif lane.ready:
            lane.ready = False
            self._all_ready.clear()
            stage = self._health.nodes[message.node].stage
            return leave(lane, self._lanes, f"{message.node} (stage {stage}) was lost: {message.why or message.state}")
        return []

    def _choose(self, prompt: tuple[int, ...] = ()) -> Lane:
        """The lane that gets the next request."""
        if self._broken is not None or self._stopping:
            raise stage_lost(str(self._broken) if self._broken else _STOPPING)
        lane = least_busy(self._lanes, prompt)
        if lane is None:
            raise UnreachableError(
                "not-ready",
                "a stage of this pipeline is not there" if len(self._lanes) == 1 else "no pipeline has all its stages",
                context=self._health.missing(),
                hint="see `ruvrun status`",
            )
        return lane
