"""What a link between two nodes can do, measured over the transport that serves: ZeroMQ, encrypted, the fleet's keys.

One end answers (``answer``), the other measures (``measure_link``) and does all the counting, so that no clock but its
own is read::

    measures                                answers
    ping + 64 bytes       ->                                    half the median round trip is the latency
                          <-   pong + the same
    push + 1 MiB          ->                                    bytes/s towards the answering end
                          <-   got
    pull                  ->                                    bytes/s from it
                          <-   body + 1 MiB
    done                  ->                                    it says so, and ends
                          <-   bye

A few large frames are always under way, as in a pipeline that is busy, so that the link and not the waiting is seen.
How many there are depends on how long the first one took: a slow link is not kept busy for minutes.

A frame that is none of these is ignored: the nodes of a service that runs may call meanwhile, and try again later.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from ruvrun.costs import LinkCost
from ruvrun.errors import UnreachableError
from ruvrun.frames import Buffer
from ruvrun.placement import Endpoint
from ruvrun.profile.ends import End, peer_of
from ruvrun.transport import Came, Down, Peer, Transport, Up
from ruvrun.transport.reach import Unreached, try_port

PINGS = 200
PING_BYTES = 64
BODY_BYTES = 1 << 20
"""Of a large frame; any manifest lets parts of this size through (``sockets.largest_part``)."""

UNDER_WAY = 4
BATCHES = 5
BATCH_SECONDS = 0.3
MOST_FRAMES = 64
SILENCE = 10.0
"""Seconds without an answer after which the peer is given up."""

_MARK = b"ruvrun link 1 "
_PING, _PONG, _PUSH, _GOT, _PULL, _BODY, _DONE, _BYE = (
    _MARK + word for word in (b"ping", b"pong", b"push", b"got", b"pull", b"body", b"done", b"bye")
)


def answer(end: End, say: Callable[[str], None]) -> str:
    """Answer at this node's port until some other end is done; returns the name of the node that measured.

    Raises:
        MachineError: the port is taken, as it is while the node serves.
    """
    body = bytes(BODY_BYTES)
    at = end.endpoints.nodes[end.node]
    transport = end.transport
    try:
        port = transport.bind(at.host, at.port)
        say(f"{end.node} answers at port {port}: `ruvrun profile ... --peer {end.node}` on another node; Ctrl-C ends")
        while True:
            for event in transport.receive(None):
                if not isinstance(event, Came) or not event.peer.link:
                    continue
                word = bytes(event.parts[0]) if len(event.parts[0]) <= len(_MARK) + 8 else b""
                if word == _PING:
                    transport.send(event.peer, [_PONG, *event.parts[1:]])
                elif word == _PUSH:
                    transport.send(event.peer, [_GOT])
                elif word == _PULL:
                    transport.send(event.peer, [_BODY, body])
                elif word == _DONE:
                    transport.send(event.peer, [_BYE])
                    transport.close(grace=1.0)
                    return event.peer.node
    finally:
        transport.close()


def measure_link(end: End, named: str) -> list[LinkCost]:
    """Both directions between this node and the peer ``named``, which must be answering; ``source`` is 0.

    Raises:
        UsageError: see ``peer_of``.
        UnreachableError: which of the ways: name unknown, no route, refused, timed out, key unknown, no answer.
    """
    peer, at = peer_of(end, named)
    if (trouble := try_port(at.host, at.port)) is not None:
        raise _unreached(peer, at, trouble)
    transport = end.transport
    try:
        transport.connect(peer, at.host, at.port)
        caller = _Caller(transport, peer, at)
        caller.open()
        trips = [caller.trip() for _ in range(PINGS)]
        trip = statistics.median(trips)
        there, back = caller.rates([_PUSH, bytes(BODY_BYTES)], trip), caller.rates([_PULL], trip)
        caller.leave()
    finally:
        transport.close(grace=1.0)
    return [
        LinkCost(
            sender=sender,
            receiver=receiver,
            latency_ms=round(1e3 * trip / 2, 6),
            bytes_per_s=round(statistics.median(rates)),
            source=0,
            spread=round(max(_spread(trips), _spread(rates)), 4),
        )
        for sender, receiver, rates in ((end.node, peer, there), (peer, end.node, back))
    ]


class _Caller:
    """The end that measures."""

    def __init__(self, transport: Transport, peer: str, at: Endpoint) -> None:
        self._transport = transport
        self._peer = Peer(peer)
        self._where = f"{peer} ({at.host}:{at.port})"

    def open(self) -> None:
        """Wait until the link stands and the other end has answered once."""
        until = time.monotonic() + SILENCE
        while (left := until - time.monotonic()) > 0:
            for event in self._transport.receive(left):
                if isinstance(event, Up):
                    self.trip()
                    return
                self._check(event)
        raise self._silent("does not speak as a node of this build does", "is it this node's port in nodes.toml?")

    def trip(self) -> float:
        """Seconds of one round trip of a small frame."""
        start = time.perf_counter()
        self.ask([_PING, bytes(PING_BYTES)])
        return time.perf_counter() - start

    def rates(self, frame: Sequence[Buffer], trip: float) -> list[float]:
        """Bytes per second, batch by batch, of the large frames that are sent or asked for by ``frame``."""
        once = self._batch(frame, 1)
        count = max(UNDER_WAY, min(MOST_FRAMES, round(BATCH_SECONDS / once)))
        took = (self._batch(frame, count) for _ in range(BATCHES))
        # The last answer has its own way to go, which is no part of what the link carries per second.
        return [count * BODY_BYTES / max(seconds - trip, seconds / 2) for seconds in took]

    def ask(self, frame: Sequence[Buffer]) -> None:
        """Send a frame, and wait for its answer."""
        self._send(frame)
        self._answers()

    def leave(self) -> None:
        """Say that this was all. The other end goes then, and its last word may be lost with the link."""
        self._send([_DONE])
        until = time.monotonic() + SILENCE
        while (left := until - time.monotonic()) > 0:
            if any(isinstance(event, Came | Down) for event in self._transport.receive(left)):
                return

    def _batch(self, frame: Sequence[Buffer], count: int) -> float:
        start, sent, back = time.perf_counter(), 0, 0
        while back < count:
            while sent < count and sent - back < UNDER_WAY:
                self._send(frame)
                sent += 1
            back += self._answers()
        return time.perf_counter() - start

    def _send(self, frame: Sequence[Buffer]) -> None:
        if not self._transport.send(self._peer, frame):
            raise self._silent("is gone", "is its `ruvrun profile --answer` still there?")

    def _answers(self) -> int:
        """How many answers came, at least one."""
        until = time.monotonic() + SILENCE
        while (left := until - time.monotonic()) > 0:
            came = 0
            for event in self._transport.receive(left):
                self._check(event)
                came += isinstance(event, Came)
            if came:
                return came
        raise self._silent(
            f"has not answered for {SILENCE:.0f} s", f"run `ruvrun profile DIR --answer` on {self._peer.node}"
        )

    def _check(self, event: Came | Up | Down) -> None:
        if not isinstance(event, Down):
            return
        if event.refused:
            raise UnreachableError(
                "peer-key-unknown",
                f"{self._where}: key unknown: {event.why}",
                hint="copy the bundles of one build to both machines, manifest and node/ included",
            )
        raise self._silent(f"was lost: {event.why}", "is its `ruvrun profile --answer` still there?")

    def _silent(self, what: str, hint: str) -> UnreachableError:
        return UnreachableError("peer-silent", f"{self._where} {what}", hint=hint)


def _unreached(peer: str, at: Endpoint, found: Unreached) -> UnreachableError:
    hints = {
        "name unknown": "correct its address in nodes.toml, or use its IP number",
        "refused": f"run `ruvrun profile DIR --answer` on {peer} first",
        "timed out": "is it on, and does its firewall let this port through?",
        "no route": "check the cable, the network and the address",
    }
    detail = f" ({found.detail})" if found.detail else ""
    return UnreachableError(
        f"peer-{found.trouble.replace(' ', '-')}",
        f"{peer} ({at.host}:{at.port}): {found.trouble}{detail}",
        hint=hints[found.trouble],
    )


def _spread(values: Sequence[float]) -> float:
    return float((np.quantile(values, 0.9) - np.quantile(values, 0.1)) / statistics.median(values))
