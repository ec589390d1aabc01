"""The head's side of a pipeline: a link to every stage, one from the last stage, and what each stage is doing.

    head -> every stage     the head calls; State, Counters and Failed come back
    head -> stage 0         Open, Close, Step and Run go in here
    last stage -> head      the last stage calls; Sampled and Run come out here

A stage's state, as the driver and ``/health`` see it:

    waiting   no link yet, or the stage waits for its own neighbour
    loading   it says so
    ready     it says so, and can reach the stage behind it; the last one, the head
    lost      its link was open and is gone; the head keeps trying
    refused   one end does not want the other (another build, an unknown key), or the stage cannot run its bundle

What a stage says counts only while its link is open. ``ready`` of the last stage also needs its link to this very
process: what it says may be about a head that is no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import ruvrun
from ruvrun.executors import Array
from ruvrun.frames import NO_TENSORS, Ask, Message, State
from ruvrun.frames import Ring as RingMessage
from ruvrun.manifest import Manifest
from ruvrun.pipeline.health import READY
from ruvrun.pipeline.links import Links, Lost, Opened, Received
from ruvrun.pipeline.sockets import open_sockets
from ruvrun.placement import Endpoints
from ruvrun.session import HEAD, STAGE, Self
from ruvrun.transport import Transport

Tensors = Mapping[str, Array]


class Ring:
    """The head's links to one pipeline.

    Args:
        manifest: what is served.
        endpoints: where everybody listens.
        bundle: the bundle of the head's node, for its key.
        pipeline: which one of the manifest.
        transport: the edge; by default sockets with that key.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        manifest: Manifest,
        endpoints: Endpoints,
        bundle: Path,
        *,
        pipeline: int = 0,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        nodes = [placed.node for placed in manifest.pipeline[pipeline].stages]
        head = manifest.head.node
        self._first, self._last = nodes[0], nodes[-1]
        self._said = {node: State(node, "waiting", "no answer yet") for node in nodes}
        self._shown: dict[str, State] = {}
        self._reports = False
        self._links = Links(
            transport or open_sockets(manifest, head, bundle, endpoints),
            Self(manifest.protocol, manifest.id, head, HEAD, ruvrun.__version__),
            listen=(endpoints.head.host, endpoints.head.port),
            calls={node: (STAGE, (endpoints.nodes[node].host, endpoints.nodes[node].port)) for node in nodes},
            expected={STAGE: [self._last]},
            clock=clock,
        )

    def connect(self) -> None:
        """Bind, and begin to connect to every stage; returns at once.

        Raises:
            MachineError: the head's link port is taken.
        """
        self._links.open()

    def poll(self, timeout: float | None) -> list[tuple[Message, Tensors]]:
        """Wait up to ``timeout`` seconds (None: for ever) and return what came: messages of stages, and a ``State``
        for every change of a stage, ``lost`` included. Returns early, perhaps with nothing, after ``wake``.
        """
        came: list[tuple[Message, Tensors]] = []
        for happened in self._links.poll(timeout):
            if type(happened) is Received and type(happened.message) is not State:
                came.append((happened.message, happened.tensors))
                continue
            self._note(happened)
            node = happened.peer.node
            if node in self._said:
                shown = self._state(node)
                if shown != self._shown.get(node):
                    self._shown[node] = shown
                    came.append((shown, NO_TENSORS))
        return came

    def send(self, message: RingMessage, tensors: Tensors) -> None:
        """Send to stage 0; never blocks.

        What cannot go is dropped: then the link is gone, which ``poll`` tells, or the stage will miss a step number.
        """
        self._links.send(self._first, message, tensors)

    def ask(self, reset: bool) -> None:
        """Ask every stage for its counters; the answers come out of ``poll``."""
        for node in self._said:
            self._links.send(node, Ask(reset))

    def ready(self) -> bool:
        """Whether every stage is ready."""
        return all(self._state(node).state == READY for node in self._said)

    def states(self) -> dict[str, State]:
        """What each stage is doing, by node, in order of the pipeline."""
        return {node: self._state(node) for node in self._said}

    def wake(self) -> None:
        """Make ``poll`` return. Safe in any thread."""
        self._links.wake()

    def close(self) -> None:
        """Close every link."""
        self._links.close()

    def _note(self, happened: Received | Opened | Lost) -> None:
        """Write down what is known of a stage now."""
        node = happened.peer.node
        if isinstance(happened, Received):
            if isinstance(happened.message, State):
                self._said[node] = State(node, happened.message.state, happened.message.why)
        elif happened.peer.link:  # the last stage's link to us; that it is gone will be told by the stage, or its end
            if isinstance(happened, Opened):
                self._reports = True
        elif isinstance(happened, Opened):
            self._said[node] = State(node, "waiting", "it has not said yet what it is doing")
        elif happened.refused:
            self._said[node] = State(node, "refused", happened.why)
        elif not (happened.was_open and self._said[node].state == "refused"):  # then it has said why it went
            gone = happened.was_open or self._said[node].state == "lost"
            self._said[node] = State(node, "lost" if gone else "waiting", happened.why)

    def _state(self, node: str) -> State:
        said = self._said[node]
        if node == self._last and said.state == READY and not self._reports:
            return State(node, "waiting", "its link to the head does not stand yet")
        return said
