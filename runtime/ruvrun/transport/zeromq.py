"""Links over TCP with ZeroMQ: encrypted, authenticated, and dropped when the other side falls silent.

A process has one ROUTER, to which its peers connect, and a DEALER for each peer it connects to. ZeroMQ's own thread
does the handshakes, the encryption and the heartbeats, so a process that computes for seconds is not taken for dead.

* Both sides prove their keys (CURVE). The ROUTER admits the manifest's keys only (``zap.py``, bound first), a DEALER
  accepts the one key that its peer must have. What the ROUTER receives carries the name that ZAP gave.
* A stranger gets nothing and costs next to nothing: ``HANDSHAKE_IVL`` closes what does not finish its handshake, and
  ``MAXMSGSIZE`` bounds what it can make us allocate on the way.
* A killed peer is noticed at once, by the closed connection; a frozen or unplugged one by heartbeats, after
  ``beat + silence`` seconds. A DEALER's monitor tells; ZeroMQ would reconnect by itself, but keep what was queued, so
  a lost DEALER is closed and the caller connects anew.
* Nothing blocks: sends do not wait, high-water marks are far above what the ring holds, and nothing lingers.

Copies: what is sent is copied (a step is some kilobytes, and the arrays belong to the executor, which overwrites them
in the next one); what is received is a view of ZeroMQ's own buffer.

All sockets are in one poller, made once. What a frame costs here is one poll and a receive per part.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.utils.monitor

from ruvrun.errors import MachineError
from ruvrun.frames import Buffer
from ruvrun.transport import Came, Down, Event, Peer, Up
from ruvrun.transport.keys import KeyPair
from ruvrun.transport.resolve import resolve
from ruvrun.transport.zap import DOMAIN, start_zap

Socket = zmq.Socket[bytes]

_QUEUE = 1000
_MOST_PEERS = 256
_FAILED: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "it does not know this node's key",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the encrypted handshake failed",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the encrypted handshake failed",
}
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
for _event in _FAILED:
    _WATCHED |= _event


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


@dataclass
class _Link:
    """Our connection to a node: its socket, the socket's monitor, and whether the handshake is done."""

    node: str
    dealer: Socket
    monitor: Socket
    up: bool = False


class ZeroMq:
    """A ``Transport`` over TCP.

    Args:
        keys: of this node.
        admitted: every node's public key, by name; the only peers there are.
        largest: bytes of the largest part that may come.
        timing: see ``Timing``.
    """

    def __init__(
        self, keys: KeyPair, admitted: Mapping[str, str], *, largest: int = 64 << 20, timing: Timing | None = None
    ) -> None:
        self._keys = keys
        self._admitted = dict(admitted)
        self._largest = largest
        self._timing = timing or Timing()
        self._context = zmq.Context()
        self._zap = start_zap(self._context, {key: node for node, key in admitted.items()})
        self._poller = zmq.Poller()
        self._router: Socket | None = None
        self._links: dict[str, _Link] = {}
        self._sources: dict[Any, Callable[[], list[Event]]] = {}
        self._peers: dict[bytes, Peer] = {}
        self._numbers = itertools.count()
        self._resolved: deque[tuple[int, str, str, int, str]] = deque()
        self._wanted: dict[str, int] = {}
        self._lock = threading.Lock()
        self._open = True
        self._woken, self._waker = self._pair()
        self._watch(self._woken, self._awake)

    def bind(self, host: str, port: int) -> int:
        """Listen on loopback if ``host`` is loopback, else on every interface; see ``Transport.bind``."""
        router = self._socket(zmq.ROUTER)
        router.curve_server = True
        router.curve_secretkey = self._keys.secret.encode()
        router.zap_domain = DOMAIN
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        where = "127.0.0.1" if host == "localhost" or _is_loopback(host) else "*"
        try:
            router.bind(f"tcp://{where}:{port}" if port else f"tcp://{where}:*")
        except zmq.ZMQError as error:
            router.close()
            taken = error.errno == zmq.EADDRINUSE
            raise MachineError(
                "port-taken" if taken else "port-refused",
                f"cannot listen on port {port}: {'it is taken' if taken else error.strerror}",
                hint="end what holds it, or give this node another port in nodes.toml",
            ) from None
        self._router = router
        self._watch(router, self._from_router)
        return int(str(router.getsockopt_string(zmq.LAST_ENDPOINT)).rpartition(":")[2])

    def connect(self, node: str, host: str, port: int) -> None:
        """See ``Transport.connect``. A host name is looked up beforehand, in a thread: it may take seconds."""
        self._drop(node)
        number = self._wanted[node] = next(self._numbers)
        if _is_address(host):
            self._dial(node, host, port)
            return

        def done(address: str, why: str) -> None:
            self._resolved.append((number, node, address, port, why))
            self.wake()

        resolve(host, done)

    def send(self, peer: Peer, parts: Sequence[Buffer]) -> bool:
        """See ``Transport.send``. A peer that is gone loses the frame without a word."""
        if peer.link:
            if self._router is None:
                return False
            socket = self._router
            parts = (peer.link, *parts)
        else:
            link = self._links.get(peer.node)
            if link is None or not link.up:
                return False
            socket = link.dealer
        last = len(parts) - 1
        try:
            for number, part in enumerate(parts):
                socket.send(part, zmq.NOBLOCK | zmq.SNDMORE if number < last else zmq.NOBLOCK)
        except zmq.Again:  # only before the first part: the parts of a frame go together
            return False
        return True

    def receive(self, timeout: float | None) -> list[Event]:
        """See ``Transport.receive``."""
        events: list[Event] = []
        for socket, _ in self._poller.poll(None if timeout is None else math.ceil(timeout * 1000)):
            source = self._sources.get(socket)  # none: its link was dropped by an event before it in this list
            if source is not None:
                events += source()
        return events

    def wake(self) -> None:
        """See ``Transport.wake``."""
        with self._lock, contextlib.suppress(zmq.Again):  # no room: it is awake as it is
            if self._open:
                self._waker.send(b"", zmq.NOBLOCK)

    def close(self, grace: float = 0.0) -> None:
        """See ``Transport.close``."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._waker.close()
        for node in list(self._links):
            self._drop(node, grace)
        for socket in (self._router, self._woken):
            if socket is not None:
                socket.close(linger=int(grace * 1000))
        self._context.term()
        self._zap.join(1.0)

    def _from_router(self) -> list[Event]:
        assert self._router is not None
        link = self._router.recv(zmq.NOBLOCK)
        return self._frame(self._router, self._peers.get(link), link)

    def _frame(self, socket: Socket, peer: Peer | None, link: bytes = b"") -> list[Event]:
        """Read the rest of a frame."""
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        if peer is None:
            peer = self._meet(link, frame)
        parts: list[Buffer] = [frame.buffer]
        while frame.more:
            frame = socket.recv(zmq.NOBLOCK, copy=False)
            parts.append(frame.buffer)
        return [Came(peer, parts)]

    def _meet(self, link: bytes, frame: zmq.Frame) -> Peer:
        """The peer behind a connection: ZAP wrote the node's name on every message of it."""
        if len(self._peers) >= _MOST_PEERS:
            self._peers.clear()  # connections of long ago; those that live are met again
        peer = self._peers[link] = Peer(str(frame.get("User-Id")), link)
        return peer

    def _dial(self, node: str, address: str, port: int) -> None:
        dealer = self._socket(zmq.DEALER)
        dealer.curve_serverkey = self._admitted[node].encode()
        dealer.curve_publickey = self._keys.public.encode()
        dealer.curve_secretkey = self._keys.secret.encode()
        dealer.setsockopt(zmq.CONNECT_TIMEOUT, _ms(self._timing.connect))
        dealer.setsockopt(zmq.RECONNECT_IVL, _ms(self._timing.retry[0]))
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, _ms(self._timing.retry[1]))
        if ":" in address:
            dealer.ipv6 = True
            address = f"[{address}]"
        endpoint = f"inproc://monitor-{next(self._numbers)}"
        dealer.monitor(endpoint, _WATCHED)
        monitor = self._context.socket(zmq.PAIR)
        monitor.linger = 0
        monitor.connect(endpoint)
        link = self._links[node] = _Link(node, dealer, monitor)
        peer = Peer(node)
        self._watch(monitor, lambda: self._from_monitor(link))
        self._watch(dealer, lambda: self._frame(dealer, peer))
        dealer.connect(f"tcp://{address}:{port}")

    def _from_monitor(self, link: _Link) -> list[Event]:
        event = zmq.utils.monitor.recv_monitor_message(link.monitor, zmq.NOBLOCK)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            link.up = True
            return [Up(link.node)]
        if event == zmq.EVENT_DISCONNECTED and not link.up:
            return []  # it will try again by itself
        self._drop(link.node)
        why = _FAILED.get(event, "the connection was lost")
        return [Down(link.node, why, event == zmq.EVENT_HANDSHAKE_FAILED_AUTH)]

    def _awake(self) -> list[Event]:
        with contextlib.suppress(zmq.Again):
            while True:
                self._woken.recv(zmq.NOBLOCK)
        events: list[Event] = []
        while self._resolved:
            number, node, address, port, why = self._resolved.popleft()
            if number != self._wanted.get(node):
                continue
            if why:
                events.append(Down(node, why))
            else:
                self._dial(node, address, port)
        return events

    def _drop(self, node: str, grace: float = 0.0) -> None:
        self._wanted.pop(node, None)
        link = self._links.pop(node, None)
        if link is None:
            return
        for socket in (link.dealer, link.monitor):
            self._poller.unregister(socket)
            del self._sources[socket]
        link.dealer.disable_monitor()
        link.monitor.close()
        link.dealer.close(linger=int(grace * 1000))

    def _watch(self, socket: Socket, source: Callable[[], list[Event]]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._sources[socket] = source

    def _socket(self, kind: int) -> Socket:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = _QUEUE
        socket.maxmsgsize = self._largest
        socket.handshake_ivl = _ms(self._timing.handshake)
        socket.heartbeat_ivl = _ms(self._timing.beat)
        socket.heartbeat_timeout = _ms(self._timing.silence)
        socket.heartbeat_ttl = _ms(self._timing.silence)
        return socket

    def _pair(self) -> tuple[Socket, Socket]:
        """The two ends of a pipe inside this process."""
        ends = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        for end in ends:
            end.linger = 0
        ends[0].bind("inproc://wake")
        ends[1].connect("inproc://wake")
        return ends


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))
