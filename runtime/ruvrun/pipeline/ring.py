"""The head's side of all pipelines: a link to every stage, one from each last stage, and what each stage is doing.

    head -> every stage     the head calls; State, Counters and Failed come back
    head -> a stage 0       Open, Close, Step and Run of its pipeline go in here
    a last stage -> head    the last stage calls; Sampled and Run of its pipeline come out here

Several pipelines of one manifest end at one address of the head: its links tell which node a message is from (by its
key; on one machine, by what it says, as ``transport/samehost.py`` explains), and a node is in one pipeline. So nothing
of a frame changes with their number, and the head has one port however many there are.

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
from collections.abc import Callable
from pathlib import Path

import ruvrun
from ruvrun.elements import Arrays
from ruvrun.frames import NO_TENSORS, Ask, Message, State
from ruvrun.frames import Ring as RingMessage
from ruvrun.manifest import Manifest
from ruvrun.pipeline.health import READY
from ruvrun.pipeline.links import Links, Lost, Opened, Received
from ruvrun.pipeline.sockets import open_sockets
from ruvrun.placement import Endpoints
from ruvrun.session import HEAD, STAGE, Self
from ruvrun.transport import Transport


class Ring:
    """The head's links to all pipelines of a manifest.

    Args:
        manifest: what is served.
        endpoints: where everybody listens.
        bundle: the bundle of the head's node, for its key.
        transport: the edge; by default sockets with that key.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        manifest: Manifest,
        endpoints: Endpoints,
        bundle: Path,
        *,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        head = manifest.head.node
        pipelines = [[placed.node for placed in pipeline.stages] for pipeline in manifest.pipeline]
        self._pipeline = {node: number for number, nodes in enumerate(pipelines) for node in nodes}
        self._firsts = [nodes[0] for nodes in pipelines]
        lasts = [nodes[-1] for nodes in pipelines]
        # Whether the link of each last stage to this process stands.
        self._reports = dict.fromkeys(lasts, False)
        self._said = {node: State(node, "waiting", "no answer yet") for node in self._pipeline}
        self._shown: dict[str, State] = {}
        self._links = Links(
            transport or open_sockets(manifest, head, bundle, endpoints),
            Self(manifest.protocol, manifest.id, head, HEAD, ruvrun.__version__),
            listen=(endpoints.head.host, endpoints.head.port),
            calls={node: (STAGE, (endpoints.nodes[node].host, endpoints.nodes[node].port)) for node in self._pipeline},
            expected={STAGE: lasts},
            clock=clock,
        )

    def connect(self) -> None:
        """Bind, and begin to connect to every stage; returns at once.

        Raises:
            MachineError: the head's link port is taken.
        """
        self._links.open()

    def poll(self, timeout: float | None) -> list[tuple[Message, Arrays, int]]:
        """Wait up to ``timeout`` seconds (None: for ever) and return what came, and of which pipeline: messages of
        stages, and a ``State`` for every change of a stage, ``lost`` included. Returns early, perhaps with nothing,
        after ``wake``.
        """
        came: list[tuple[Message, Arrays, int]] = []
        for happened in self._links.poll(timeout):
            node = happened.peer.node
            if type(happened) is Received and type(happened.message) is not State:
                came.append((happened.message, happened.tensors, self._pipeline[node]))
                continue
            self._note(happened)
            if node in self._said:
                shown = self._state(node)
                if shown != self._shown.get(node):
                    self._shown[node] = shown
                    came.append((shown, NO_TENSORS, self._pipeline[node]))
        return came

    def send(self, message: RingMessage, tensors: Arrays, pipeline: int = 0) -> None:
        """Send to stage 0 of this pipeline; never blocks.

        What cannot go is dropped: then the link is gone, which ``poll`` tells, or the stage will miss a step number.
        """
        self._links.send(self._firsts[pipeline], message, tensors)

    def ask(self, reset: bool) -> None:
        """Ask every stage for its counters; the answers come out of ``poll``."""
        for node in self._said:
            self._links.send(node, Ask(reset))

    def ready(self) -> bool:
        """Whether every stage is ready."""
        return all(self._state(node).state == READY for node in self._said)

    def states(self) -> dict[str, State]:
        """What each stage is doing, by node, in order of the pipelines."""
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
        elif happened.peer.link:  # a last stage's link to us; that it is gone will be told by the stage, or its end
            if isinstance(happened, Opened):
                self._reports[node] = True
        elif isinstance(happened, Opened):
            self._said[node] = State(node, "waiting", "it has not said yet what it is doing")
        elif happened.refused:
            self._said[node] = State(node, "refused", happened.why)
        elif not (happened.was_open and self._said[node].state == "refused"):  # then it has said why it went
            gone = happened.was_open or self._said[node].state == "lost"
            self._said[node] = State(node, "lost" if gone else "waiting", happened.why)

    def _state(self, node: str) -> State:
        said = self._said[node]
        if said.state == READY and not self._reports.get(node, True):
            return State(node, "waiting", "its link to the head does not stand yet")
        return said
