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

**Waiting.** While a pipeline works, all that comes is the next step, through the ROUTER, every few milliseconds. Asking
all sockets each time would cost a tenth of a hop, so after a frame from the ROUTER it alone is waited for, at most
``_HOT`` seconds, and the others get their turn every ``_LOOK`` seconds: they bring news of links, which can wait that
long. When nothing comes, everything is waited for in one poll. ``wake`` comes through the ROUTER too, so it is not
late.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from ruvrun.errors import MachineError
from ruvrun.frames import Buffer
from ruvrun.transport import Came, Down, Event, Peer
from ruvrun.transport.keys import KeyPair
from ruvrun.transport.outgoing import QUEUE, Outgoing, Socket, Timing, limited, milliseconds
from ruvrun.transport.resolve import resolve
from ruvrun.transport.zap import DOMAIN, start_zap

_HOT = 0.02
_LOOK = 0.05
_WAKE = b"wake"
_INSIDE = "inproc://inbound"
_MOST_PEERS = 256


# The binding's own method and plain numbers: a frame is sent in every step, and flags that are an enumeration cost more
# than the call.
_send = zmq.backend.Socket.send
_END = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


class ZeroMq:
    """A ``Transport`` over TCP.

    Args:
        keys: of this node.
        admitted: every node's public key, by name; the only peers there are.
        largest: bytes of the largest part that may come.
        queue: frames that may wait on each link.
        timing: see ``Timing``.
    """

    def __init__(
        self,
        keys: KeyPair,
        admitted: Mapping[str, str],
        *,
        largest: int = 64 << 20,
        queue: int = QUEUE,
        timing: Timing | None = None,
    ) -> None:
        self._keys = keys
        self._admitted = dict(admitted)
        self._limits = largest, queue
        self._timing = timing or Timing()
        self._context = zmq.Context()
        self._zap = start_zap(self._context, {key: node for node, key in admitted.items()})
        self._poller = zmq.Poller()
        self._links: dict[str, Outgoing] = {}
        self._sources: dict[Any, Callable[[], list[Event]]] = {}
        self._peers: dict[bytes, Peer] = {}
        self._numbers = itertools.count()
        self._resolved: deque[tuple[int, str, str, int, str]] = deque()
        self._wanted: dict[str, int] = {}
        self._lock = threading.Lock()
        self._open = True
        self._waking = False
        self._hot_until = 0.0
        self._router = self._inbound()
        self._watch(self._router, self._from_router)
        self._waker = self._context.socket(zmq.DEALER)
        self._waker.linger = 0
        self._waker.routing_id = _WAKE
        self._waker.connect(_INSIDE)

    def bind(self, host: str, port: int) -> int:
        """Listen on loopback if ``host`` is loopback, else on every interface; see ``Transport.bind``."""
        where = "127.0.0.1" if host == "localhost" or _is_loopback(host) else "*"
        try:
            self._router.bind(f"tcp://{where}:{port}" if port else f"tcp://{where}:*")
        except zmq.ZMQError as error:
            taken = error.errno == zmq.EADDRINUSE
            raise MachineError(
                "port-taken" if taken else "port-refused",
                f"cannot listen on port {port}: {'it is taken' if taken else error.strerror}",
                hint="end what holds it, or give this node another port in nodes.toml",
            ) from None
        return int(str(self._router.getsockopt_string(zmq.LAST_ENDPOINT)).rpartition(":")[2])

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
            socket = self._router
            parts = (peer.link, *parts)
        else:
            link = self._links.get(peer.node)
            if link is None or not link.up:
                return False
            socket = link.dealer
        *before, last = parts
        try:
            for part in before:
                _send(socket, part, _MORE)
            _send(socket, last, _END)
        except zmq.Again:  # only before the first part: the parts of a frame go together
            return False
        return True

    def receive(self, timeout: float | None) -> list[Event]:
        """See ``Transport.receive``."""
        if self._hot_until and (timeout is None or timeout > _HOT):
            if time.monotonic() < self._hot_until:
                try:
                    return self._frame_of(self._router.recv())
                except zmq.Again:  # nothing for _HOT seconds
                    if timeout is not None:
                        timeout -= _HOT
            self._hot_until = 0.0
        events: list[Event] = []
        for socket, _ in self._poller.poll(None if timeout is None else math.ceil(timeout * 1000)):
            source = self._sources.get(socket)  # none: its link was dropped by an event before it in this list
            if source is not None:
                events += source()
        return events

    def wake(self) -> None:
        """See ``Transport.wake``."""
        with self._lock:
            if self._open and not self._waking:
                self._waking = True
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
        self._router.close(linger=milliseconds(grace))
        self._context.term()
        self._zap.join(1.0)

    def _from_router(self) -> list[Event]:
        self._hot_until = time.monotonic() + _LOOK
        return self._frame_of(self._router.recv(zmq.NOBLOCK))

    def _frame_of(self, link: bytes) -> list[Event]:
        """The frame that the ROUTER has of this connection."""
        if link == _WAKE:
            self._router.recv(zmq.NOBLOCK)
            return self._awake()
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
        link = self._links[node] = Outgoing(
            self._context, node, self._keys, self._admitted[node], (address, port), self._timing, self._limits
        )
        peer = Peer(node)
        self._watch(link.monitor, lambda: self._news(link))
        self._watch(link.dealer, lambda: self._frame(link.dealer, peer))

    def _news(self, link: Outgoing) -> list[Event]:
        event = link.news()
        if isinstance(event, Down):
            self._drop(link.node)
        return [] if event is None else [event]

    def _awake(self) -> list[Event]:
        with self._lock:
            self._waking = False
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
        link.close(grace)

    def _watch(self, socket: Socket, source: Callable[[], list[Event]]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._sources[socket] = source

    def _inbound(self) -> Socket:
        """The ROUTER, which so far only this process can reach."""
        router = limited(self._context.socket(zmq.ROUTER), self._timing, self._limits)
        router.curve_server = True
        router.curve_secretkey = self._keys.secret.encode()
        router.zap_domain = DOMAIN
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        router.rcvtimeo = milliseconds(_HOT)
        router.bind(_INSIDE)
        return router


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_loopback
