"""The links of one process: transport, frames and sessions put together, and kept up for ever.

Whoever drives this (the head's ring, a stage) sees messages that may come, of peers that belong here, and two changes:
a link ``Opened``, a link was ``Lost``. It never sees a connection, a Hello or a garbled part, and never has to
connect again: a link that is lost, refused or silent is made anew until it stands.

An outgoing link, from its first day::

    connect -> Up: Hello -> Welcome: Opened -> ... messages ... -> Down: Lost -> wait a little -> connect
                         -> Refused: Lost(refused) -> wait longer -> connect (its bundle may have been updated)
                         -> no answer: it waits, since a peer that loads may be busy
    ... messages ... -> Refused (we said what may not come): Lost(refused) -> wait longer -> connect
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from ruvrun import frames
from ruvrun.elements import Arrays
from ruvrun.executors import Array
from ruvrun.frames import Message, Refused
from ruvrun.session import Caller, Listener, Phase, RemoteLinkError, Self
from ruvrun.transport import Came, Down, Peer, Transport, Up

Address = tuple[str, int]

RETRY = 0.2
RETRY_REFUSED = 3.0
# A name may have got a new address meanwhile, and a half-open connection is not worth waiting for.
RETRY_UNANSWERED = 20.0


class Received(msgspec.Struct, frozen=True):
    """A message that may come on this link."""

    peer: Peer
    message: Message
    tensors: dict[str, Array]


class Opened(msgspec.Struct, frozen=True):
    """A link is open: ours to ``peer`` (``peer.link`` is empty), or the peer's to us."""

    peer: Peer
    role: str
    software: str


class Lost(msgspec.Struct, frozen=True):
    """A link is gone, or did not come to be; ``refused`` if one end does not want the other.

    ``was_open`` tells whether messages may have been lost with it.
    """

    peer: Peer
    why: str
    refused: bool
    was_open: bool


Happened = Received | Opened | Lost


@dataclass
class _Outgoing:
    """Our link to a node: where, how it stands, and when to connect again if it does not."""

    peer: Peer
    address: Address
    role: str
    session: Caller
    due: float | None = None


class Links:
    """See the module's essay.

    Args:
        transport: the edge.
        me: what this process says of itself.
        listen: where peers connect to.
        calls: the nodes to connect to, with their roles and addresses.
        expected: the nodes that may connect to us, by role.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        transport: Transport,
        me: Self,
        *,
        listen: Address,
        calls: Mapping[str, tuple[str, Address]],
        expected: Mapping[str, Collection[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sent_bytes = 0
        self._transport = transport
        self._me = me
        self._listen = listen
        self._expected = expected
        self._clock = clock
        self._outgoing = {
            node: _Outgoing(Peer(node), address, role, Caller(me, node, role))
            for node, (role, address) in calls.items()
        }
        self._incoming: dict[bytes, tuple[Peer, Listener]] = {}
        self._due: float | None = None

    def open(self) -> None:
        """Listen, and begin to connect to everybody.

        Raises:
            MachineError: the port is taken, or not ours to take.
        """
        self._transport.bind(*self._listen)
        for node in self._outgoing:
            self._connect(node)

    def poll(self, timeout: float | None) -> list[Happened]:
        """What happened, in order; waits up to ``timeout`` seconds for the first (None: for ever), or for ``wake``."""
        if self._due is not None:
            now = self._clock()
            if self._due <= now:
                self._connect_due(now)
            if self._due is not None:
                left = max(0.0, self._due - now)
                timeout = left if timeout is None else min(timeout, left)
        happened: list[Happened] = []
        for event in self._transport.receive(timeout):
            if isinstance(event, Came):
                if event.peer.link:
                    self._from_caller(event, happened)
                else:
                    self._from_listener(event, happened)
            elif isinstance(event, Up):
                self._up(event.node)
            else:
                self._down(event, happened)
        return happened

    def is_open(self, node: str) -> bool:
        """Whether our link to ``node`` is open."""
        return self._outgoing[node].session.phase is Phase.OPEN

    def send(self, node: str, message: Message, tensors: Arrays = frames.NO_TENSORS) -> bool:
        """Send over our link to ``node``; False where it cannot go now."""
        link = self._outgoing[node]
        session = link.session
        if type(message) not in session.sends:  # nothing is, while it is not open
            if session.phase is not Phase.OPEN:
                return False
            session.sending(message)
        parts = frames.encode(message, tensors)
        self.sent_bytes += len(parts[0]) if len(parts) == 1 else frames.size(parts)
        return self._transport.send(link.peer, parts)

    def answer(self, peer: Peer, message: Message) -> bool:
        """Send back over a link that a peer opened to us; False where it cannot go now."""
        known = self._incoming.get(peer.link)
        if known is None or known[1].phase is not Phase.OPEN:
            return False
        known[1].sending(message)
        return self._transport.send(peer, frames.encode(message))

    def wake(self) -> None:
        """Make ``poll`` return. Safe in any thread."""
        self._transport.wake()

    def close(self, grace: float = 0.0) -> None:
        """Close everything; last words get ``grace`` seconds to leave."""
        self._transport.close(grace)

    def _from_caller(self, event: Came, happened: list[Happened]) -> None:
        peer = event.peer
        known = self._incoming.get(peer.link)
        session = known[1] if known is not None else Listener(self._me, peer.node, self._expected)
        try:
            message, tensors = frames.decode(event.parts)
            if type(message) in session.receives:  # the usual case
                happened.append(Received(peer, message, tensors))
                return
            answer = session.receive(message)
        except (frames.FrameError, RemoteLinkError) as error:
            if session.phase is Phase.OPEN:
                # From now on what it says on this link is ignored, so it is told to begin a new one.
                self._transport.send(peer, frames.encode(Refused(self._me.node, error.message)))
                self._forget(peer, session, error.message, happened)
            return
        if answer is not None:
            self._transport.send(peer, frames.encode(answer))
            if session.phase is Phase.OPEN:
                for other, older in list(self._incoming.values()):  # a link that the peer has given up
                    if other.node == peer.node and older.peer_role == session.peer_role:
                        self._forget(other, older, "it connected again", happened)
                self._incoming[peer.link] = peer, session
                happened.append(Opened(peer, session.peer_role, session.peer_software))
            elif session.phase is Phase.REFUSED:
                happened.append(Lost(peer, session.why, refused=True, was_open=False))

    def _forget(self, peer: Peer, session: Listener, why: str, happened: list[Happened]) -> None:
        session.close()
        self._incoming.pop(peer.link, None)
        happened.append(Lost(peer, why, refused=False, was_open=True))

    def _from_listener(self, event: Came, happened: list[Happened]) -> None:
        node = event.peer.node
        session = self._outgoing[node].session
        before = session.phase
        try:
            message, tensors = frames.decode(event.parts)
            session.receive(message)
        except (frames.FrameError, RemoteLinkError) as error:
            self._over(node, error.message, happened, pause=RETRY_REFUSED)
            return
        if session.phase is Phase.OPEN and before is Phase.OPEN:
            happened.append(Received(event.peer, message, tensors))
        elif session.phase is Phase.OPEN:
            self._outgoing[node].due = None
            self._plan()
            happened.append(Opened(event.peer, session.peer_role, session.peer_software))
        elif session.phase is Phase.REFUSED and before is not Phase.REFUSED:
            self._over(node, session.why, happened, pause=RETRY_REFUSED, refused=True, was_open=before is Phase.OPEN)

    def _up(self, node: str) -> None:
        link = self._outgoing[node]
        self._transport.send(Peer(node), frames.encode(link.session.hello()))
        link.due = None  # it is there; how long it takes to say so is its own affair
        self._plan()

    def _down(self, event: Down, happened: list[Happened]) -> None:
        if self._outgoing[event.node].session.phase is not Phase.CLOSED:  # else: given up before, and told
            pause = RETRY_REFUSED if event.refused else RETRY
            self._over(event.node, event.why, happened, pause=pause, refused=event.refused)

    def _over(
        self,
        node: str,
        why: str,
        happened: list[Happened],
        *,
        pause: float,
        refused: bool = False,
        was_open: bool | None = None,
    ) -> None:
        link = self._outgoing[node]
        if was_open is None:
            was_open = link.session.phase is Phase.OPEN
        link.session.close()
        link.due = self._clock() + pause
        self._plan()
        happened.append(Lost(Peer(node), why, refused=refused, was_open=was_open))

    def _connect_due(self, now: float) -> None:
        for node, link in self._outgoing.items():
            if link.due is not None and link.due <= now:
                self._connect(node)

    def _connect(self, node: str) -> None:
        link = self._outgoing[node]
        link.session = Caller(self._me, node, link.role)
        link.due = self._clock() + RETRY_UNANSWERED
        self._plan()
        self._transport.connect(node, *link.address)

    def _plan(self) -> None:
        due = [link.due for link in self._outgoing.values() if link.due is not None]
        self._due = min(due) if due else None
