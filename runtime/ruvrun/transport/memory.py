"""A transport inside one process, for tests: links stand and fall when a test says so.

``Wire`` is the world that the transports of a test share. Everything happens in the order of the calls and nothing
takes time; ``receive`` waits only when nothing has happened. What ``ZeroMq`` promises holds here too: order, whole
frames, nothing of an old link on a new one.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ruvrun.errors import MachineError
from ruvrun.frames import Buffer
from ruvrun.transport import Came, Down, Event, Peer, Up


@dataclass
class _Link:
    """A connection of ``owner`` to whoever listens on ``port``; ``to`` is who does, once it stands."""

    owner: MemoryTransport
    node: str
    port: int
    name: bytes
    to: MemoryTransport | None = None


class Wire:
    """Who listens where, and who is connected to whom. Methods may be called in any thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.listening: dict[int, MemoryTransport] = {}
        self.links: list[_Link] = []
        self.numbers = itertools.count(1)
        self._cut: set[int] = set()

    def transport(self, node: str) -> MemoryTransport:
        """A process of ``node``."""
        return MemoryTransport(self, node)

    def cut(self, port: int, why: str = "the connection was lost") -> None:
        """Nobody reaches ``port`` from now on, and every link to it is lost."""
        with self.changed:
            self._cut.add(port)
            self.lose([link for link in self.links if link.port == port], why)

    def mend(self, port: int) -> None:
        """``port`` can be reached again."""
        with self.changed:
            self._cut.discard(port)
            self.meet()

    def lose(self, links: Sequence[_Link], why: str) -> None:
        """These links are gone; owners of those that stood are told."""
        for link in links:
            self.links.remove(link)
            if link.to is not None:
                link.owner.put(Down(link.node, why))

    def meet(self) -> None:
        """Let every link stand whose other end is there."""
        for link in self.links:
            if link.to is None and link.port in self.listening and link.port not in self._cut:
                link.to = self.listening[link.port]
                link.owner.put(Up(link.node))


class MemoryTransport:
    """A ``Transport`` on a ``Wire``."""

    def __init__(self, wire: Wire, node: str) -> None:
        self.node = node
        self._wire = wire
        self._events: deque[Event] = deque()
        self._woken = False
        self._port = 0

    def bind(self, host: str, port: int) -> int:
        """See ``Transport.bind``; ``host`` does not matter here."""
        del host
        with self._wire.changed:
            port = port or next(number for number in itertools.count(1) if number not in self._wire.listening)
            if port in self._wire.listening:
                raise MachineError("port-taken", f"cannot listen on port {port}: it is taken", hint="take another")
            self._port = port
            self._wire.listening[port] = self
            self._wire.meet()
        return port

    def connect(self, node: str, host: str, port: int) -> None:
        """See ``Transport.connect``."""
        del host
        with self._wire.changed:
            for link in [link for link in self._wire.links if link.owner is self and link.node == node]:
                self._wire.links.remove(link)
            name = b"%d" % next(self._wire.numbers)
            self._wire.links.append(_Link(self, node, port, name))
            self._wire.meet()

    def send(self, peer: Peer, parts: Sequence[Buffer]) -> bool:
        """See ``Transport.send``."""
        copied = [bytes(part) for part in parts]
        with self._wire.changed:
            for link in self._wire.links:
                if link.to is None:
                    continue
                if peer.link and link.name == peer.link and link.to is self:
                    link.owner.put(Came(Peer(link.node), copied))
                    return True
                if not peer.link and link.owner is self and link.node == peer.node:
                    link.to.put(Came(Peer(self.node, link.name), copied))
                    return True
        return False

    def receive(self, timeout: float | None) -> list[Event]:
        """See ``Transport.receive``."""
        with self._wire.changed:
            self._wire.changed.wait_for(lambda: self._events or self._woken, timeout)
            self._woken = False
            events = list(self._events)
            self._events.clear()
            return events

    def wake(self) -> None:
        """See ``Transport.wake``."""
        with self._wire.changed:
            self._woken = True
            self._wire.changed.notify_all()

    def close(self, grace: float = 0.0) -> None:
        """See ``Transport.close``."""
        del grace
        with self._wire.changed:
            mine = [link for link in self._wire.links if link.owner is self]
            for link in mine:
                self._wire.links.remove(link)
            if self._wire.listening.get(self._port) is self:
                del self._wire.listening[self._port]
            self._wire.lose([link for link in self._wire.links if link.to is self], "the connection was lost")

    def put(self, event: Event) -> None:
        """Something happened to this process."""
        with self._wire.changed:
            self._events.append(event)
            self._wire.changed.notify_all()
