"""Links between processes of one user on one machine: Unix sockets, and memory that is handed over.

Two processes on one machine need no packets of a network, and no thread that encrypts them: every hop of ``ZeroMq``
wakes two I/O threads, and where head and stage share a core that is time taken from the model. Here a hop is one
``send`` and one ``recvmsg``.

* **Addresses.** A process listens on a socket in Linux's abstract namespace, named after its user and a number: no file
  to clean up, gone with the process, and, like a port of loopback, private to the network namespace.
* **Trust.** The kernel tells each end which user the other runs as (``SO_PEERCRED``); only the own one is accepted. A
  process of the same user can read every key of this machine's bundles, so a proof by key would prove no more. Which
  node it is, it says in its first packet.
* **Frames.** A packet socket (``SEQPACKET``) keeps messages whole and in order. A frame of one part, which every
  decoding step is, travels in the packet. A larger one is written once into anonymous memory whose descriptor travels
  (``packets.py``); the receiver's arrays are views of it. So nothing depends on how much a socket holds, and no
  receiver has to be reading.
* **Loss.** The kernel closes a killed process's sockets at once. One that is stopped (``SIGSTOP``, a debugger) keeps
  them open, but ``/proc`` tells: it is looked at every ``beat`` seconds, and given up after ``silence`` seconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Collection, Sequence

from ruvrun.errors import MachineError
from ruvrun.frames import Buffer
from ruvrun.transport import Came, Down, Event, Peer, Up, packets
from ruvrun.transport.connection import Connection, Gone, address_of, credentials, packet_socket
from ruvrun.transport.outgoing import QUEUE, Timing

_BACKLOG = 64
_NEVER = float("inf")
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_READABLE = int(select.EPOLLIN)


class SameHost:
    """A ``Transport`` between processes of one user on this machine.

    Args:
        node: which node this process is of.
        admitted: the nodes there are.
        largest: bytes of the largest part that may come.
        queue: frames that may wait on each link.
        timing: see ``Timing``.
    """

    def __init__(
        self,
        node: str,
        admitted: Collection[str],
        *,
        largest: int = 64 << 20,
        queue: int = QUEUE,
        timing: Timing | None = None,
    ) -> None:
        self._node = node
        self._admitted = frozenset(admitted)
        self._largest = largest
        self._queue = queue
        self._timing = timing or Timing()
        self._epoll = select.epoll()
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._waker, select.EPOLLIN)
        self._listener: socket.socket | None = None
        self._connections: dict[int, Connection] = {}
        self._to: dict[str, Connection] = {}
        self._from: dict[bytes, Connection] = {}
        self._dialling: dict[str, int] = {}
        self._pending: list[Event] = []
        self._numbered = 0
        self._due = _NEVER
        self._crowded = False
        self._room = [memoryview(bytearray(packets.LARGEST + 1))]
        self._open = True

    def bind(self, host: str, port: int) -> int:
        """Listen under the number ``port``; see ``Transport.bind``. ``host`` is this machine."""
        del host
        listener = packet_socket()
        try:
            listener.bind(address_of(port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            taken = error.errno == errno.EADDRINUSE
            raise MachineError(
                "port-taken" if taken else "port-refused",
                f"cannot listen for links of this machine: {'another process does' if taken else error.strerror}",
                hint="end it, or start again",
            ) from None
        self._listener = listener
        self._epoll.register(listener, select.EPOLLIN)
        return port

    def connect(self, node: str, host: str, port: int) -> None:
        """See ``Transport.connect``."""
        del host
        if (old := self._to.get(node)) is not None:
            self._close(old)
        self._dialling[node] = port
        self._dial(node, port)

    def send(self, peer: Peer, parts: Sequence[Buffer]) -> bool:
        """See ``Transport.send``."""
        connection = self._from.get(peer.link) if peer.link else self._to.get(peer.node)
        return connection is not None and connection.send(parts)

    def receive(self, timeout: float | None) -> list[Event]:
        """See ``Transport.receive``."""
        until = _NEVER if timeout is None else time.monotonic() + timeout
        while True:
            now = time.monotonic()
            if now >= self._due:
                self._look(now)
            soonest = self._due if self._due < until else until
            if self._pending:
                soonest = now
            ready = self._epoll.poll(None if soonest == _NEVER else soonest - now if soonest > now else 0.0)
            woken = False
            for number, mask in ready:
                connection = self._connections.get(number)
                if connection is not None:
                    self._serve(connection, mask)
                elif number == self._waker:
                    os.eventfd_read(self._waker)
                    woken = True
                elif self._listener is not None and number == self._listener.fileno():
                    self._accept()
            if self._pending or woken or (not ready and time.monotonic() >= until):
                events, self._pending = self._pending, []
                return events

    def wake(self) -> None:
        """See ``Transport.wake``."""
        if self._open:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._waker, 1)

    def close(self, grace: float = 0.0) -> None:
        """See ``Transport.close``. What was sent has left already, but for what a full socket had no room for."""
        if not self._open:
            return
        self._open = False
        until = time.monotonic() + grace
        for connection in list(self._connections.values()):
            connection.drain(until)
            self._close(connection)
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()
        os.close(self._waker)

    def _serve(self, connection: Connection, mask: int) -> None:
        """What the kernel has of this connection."""
        if mask != _READABLE:
            if mask & select.EPOLLOUT:
                connection.flush()
            if not mask & ~select.EPOLLOUT:
                return
        try:
            came = connection.read(self._room, self._largest)
        except Gone as gone:
            self._lose(connection, str(gone))
            return
        if came is None:
            return
        kind, parts = came
        peer = connection.peer
        if peer is not None and kind != packets.NAME:
            self._pending.append(Came(peer, parts))
        elif peer is None and kind == packets.NAME:
            self._meet(connection, bytes(parts[0]).decode("utf-8", "replace"))
        else:
            self._lose(connection, "it sent what is no packet")

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            made, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _FULL:  # until something is closed it would come, and be refused, again and again
                self._crowded = True
                self._epoll.unregister(self._listener)
                self._due = min(self._due, time.monotonic() + self._timing.beat)
            return  # else it went while it waited
        if credentials(made)[1] != os.getuid():
            made.close()
            return
        made.setblocking(False)
        self._add(Connection(made, None, self._epoll, self._queue))

    def _meet(self, connection: Connection, node: str) -> None:
        if node not in self._admitted:
            self._close(connection)
            return
        self._numbered += 1
        connection.peer = Peer(node, b"%d" % self._numbered)
        self._from[connection.peer.link] = connection

    def _dial(self, node: str, port: int) -> None:
        """Try to connect; where nobody listens yet, again a little later."""
        made: socket.socket | None = None
        try:
            made = packet_socket()
            made.connect(address_of(port))
            ours = credentials(made)[1] == os.getuid()
            if ours:
                made.send(packets.NAME + self._node.encode())
        except OSError:
            if made is not None:
                made.close()
            self._due = min(self._due, time.monotonic() + self._timing.retry[0])
            return
        del self._dialling[node]
        if not ours:
            made.close()
            self._pending.append(Down(node, "another user's process listens there", refused=True))
            return
        self._to[node] = Connection(made, Peer(node), self._epoll, self._queue)
        self._add(self._to[node])
        self._pending.append(Up(node))

    def _add(self, connection: Connection) -> None:
        self._connections[connection.number] = connection
        self._due = min(self._due, time.monotonic() + self._timing.beat)

    def _look(self, now: float) -> None:
        """Dial again what does not answer; see whether a peer is stopped."""
        self._due = now + self._timing.beat if self._connections else _NEVER
        if self._crowded and self._listener is not None:
            self._crowded = False
            self._epoll.register(self._listener, select.EPOLLIN)
        for node, port in list(self._dialling.items()):
            self._dial(node, port)
        for connection in list(self._connections.values()):
            if not connection.is_stopped():
                connection.stopped_since = None
            elif connection.stopped_since is None:
                connection.stopped_since = now
            elif now - connection.stopped_since >= self._timing.silence:
                self._lose(connection, "it is stopped")

    def _lose(self, connection: Connection, why: str) -> None:
        """A connection is gone; only of our own do we tell, as ``Transport`` has it."""
        self._close(connection)
        if connection.peer is not None and not connection.peer.link:
            self._pending.append(Down(connection.peer.node, why))

    def _close(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
        if connection.peer is not None:
            if connection.peer.link:
                self._from.pop(connection.peer.link, None)
            elif self._to.get(connection.peer.node) is connection:
                del self._to[connection.peer.node]
        connection.close()
