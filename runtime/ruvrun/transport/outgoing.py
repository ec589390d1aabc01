"""One outgoing ZeroMQ link: a DEALER that accepts one key only, and the monitor that tells how it is.

Also what every socket between nodes has in common: the times after which silence ends a link, and the limits.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import zmq
import zmq.utils.monitor

from ruvrun.transport import Down, Up
from ruvrun.transport.keys import KeyPair

Socket = zmq.Socket[bytes]

QUEUE = 1000
"""Frames that wait on a link whose other end does not read, before a send is refused; no send ever blocks."""

_FAILED: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not know this node's key",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the encrypted handshake failed",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the encrypted handshake failed",
}
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
for _event in _FAILED:
    _WATCHED |= _event
_numbers = itertools.count()


@dataclass(frozen=True)
class Timing:
    """Seconds: between heartbeats, of silence until a peer counts as gone, for a handshake and a TCP connect, and
    between attempts to connect (the first, and the longest).
    """

    beat: float = 1.0
    silence: float = 4.0
    handshake: float = 5.0
    connect: float = 2.0
    retry: tuple[float, float] = (0.1, 1.0)


class Outgoing:
    """A link to ``node``, which must hold ``server_key``; it connects at once and again until the handshake is done.

    ``dealer`` and ``monitor`` are for the owner's poller; ``up`` tells whether the handshake is done; ``limits`` as for
    ``limited``.
    """

    def __init__(
        self,
        context: zmq.Context[Socket],
        node: str,
        keys: KeyPair,
        server_key: str,
        where: tuple[str, int],
        timing: Timing,
        limits: tuple[int, int],
    ) -> None:
        self.node = node
        self.up = False
        self.dealer = dealer = limited(context.socket(zmq.DEALER), timing, limits)
        dealer.curve_serverkey = server_key.encode()
        dealer.curve_publickey = keys.public.encode()
        dealer.curve_secretkey = keys.secret.encode()
        dealer.setsockopt(zmq.CONNECT_TIMEOUT, milliseconds(timing.connect))
        dealer.setsockopt(zmq.RECONNECT_IVL, milliseconds(timing.retry[0]))
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, milliseconds(timing.retry[1]))
        address, port = where
        if ":" in address:
            dealer.ipv6 = True
            address = f"[{address}]"
        endpoint = f"inproc://monitor-{next(_numbers)}"
        dealer.monitor(endpoint, _WATCHED)
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.linger = 0
        self.monitor.connect(endpoint)
        dealer.connect(f"tcp://{address}:{port}")

    def news(self) -> Up | Down | None:
        """What the monitor has to tell; after ``Down`` the link is to be closed."""
        event = zmq.utils.monitor.recv_monitor_message(self.monitor, zmq.NOBLOCK)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.up = True
            return Up(self.node)
        if event == zmq.EVENT_DISCONNECTED and not self.up:
            return None  # it will try again by itself
        why = _FAILED.get(event, "the connection was lost")
        return Down(self.node, why, event == zmq.EVENT_HANDSHAKE_FAILED_AUTH)

    def close(self, grace: float) -> None:
        """Close both sockets; what was sent gets ``grace`` seconds to leave."""
        self.dealer.disable_monitor()
        self.monitor.close()
        self.dealer.close(linger=milliseconds(grace))


def limited(socket: Socket, timing: Timing, limits: tuple[int, int]) -> Socket:
    """``socket`` with the limits and times of every link: bytes of the largest part, and frames that may wait."""
    socket.linger = 0
    socket.maxmsgsize, socket.sndhwm = limits
    socket.rcvhwm = socket.sndhwm
    socket.handshake_ivl = milliseconds(timing.handshake)
    socket.heartbeat_ivl = milliseconds(timing.beat)
    socket.heartbeat_timeout = milliseconds(timing.silence)
    socket.heartbeat_ttl = milliseconds(timing.silence)
    return socket


def milliseconds(seconds: float) -> int:
    """Rounded up."""
    return math.ceil(seconds * 1000)
