"""Links between processes of one user on one machine: frames in shared memory, and a Unix socket that tells of its end.

Two processes on one machine need no packets of a network, and no thread that encrypts them: every hop of ``ZeroMq``
wakes two I/O threads, and where head and stage share a core that is time taken from the model. Here a hop is a copy
into memory that both have, and a counter that wakes the other end.

* **Addresses.** A process listens on a socket in Linux's abstract namespace, named after its user and a number: no file
  to clean up, gone with the process, and, like a port of loopback, private to the network namespace.
* **Trust.** The kernel tells each end which user the other runs as (``SO_PEERCRED``); only the own one is accepted. A
  process of the same user can read every key of this machine's bundles, so a proof by key would prove no more. Which
  node it is, it says in its first packet.
* **Frames.** Each end hands the other a ring (``ring.py``). A frame of one part, which every decoding step is, travels
  in it. A larger one is written once into anonymous memory whose descriptor goes through the socket (``packets.py``);
  the receiver's arrays are views of it, and the ring tells when its turn is. So order is the ring's alone.
* **Room.** What finds the ring full waits at its sender, so many frames and none more, until slots are given back.
* **Loss.** The kernel closes a killed process's sockets at once; what it had put into its ring before is still read.
  One that is stopped (``SIGSTOP``, a debugger) keeps them open, but ``/proc`` tells: it is looked at every ``beat``
  seconds, and given up after ``silence`` seconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Collection, Sequence
from functools import partial

from ruvrun.errors import MachineError
from ruvrun.frames import Buffer
from ruvrun.transport import Down, Event, Peer, Up, packets
from ruvrun.transport.connection import Connection, Gone, address_of, credentials, packet_socket
from ruvrun.transport.outgoing import QUEUE, Timing
from ruvrun.transport.watch import Timer, Watch

_BACKLOG = 64
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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
        self._watch = Watch()
        self._timer = Timer(self._watch, self._look)
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watch.add(self._waker, self._awake)
        self._listener: socket.socket | None = None
        self._callers: set[socket.socket] = set()
        self._connections: set[Connection] = set()
        self._to: dict[str, Connection] = {}
        self._from: dict[bytes, Connection] = {}
        self._dialling: dict[str, int] = {}
        self._happened: list[Event] = []
        self._woken = False
        self._numbered = 0
        self._crowded = False
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
        self._watch.add(listener.fileno(), self._accept)
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
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self._watch.wait(0.0 if self._happened else timeout)
            if self._happened or self._woken:
                events = self._happened.copy()
                self._happened.clear()
                self._woken = False
                return events
            if until is not None:
                timeout = max(0.0, until - time.monotonic())
                if not timeout and not found:
                    return []

    def wake(self) -> None:
        """See ``Transport.wake``."""
        if self._open:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._waker, 1)

    def close(self, grace: float = 0.0) -> None:
        """See ``Transport.close``. What was sent has left already, but for what a full ring had no room for."""
        if not self._open:
            return
        self._open = False
        until = time.monotonic() + grace
        for connection in list(self._connections):
            connection.drain(until)
            self._close(connection)
        for caller in self._callers:
            caller.close()
        if self._listener is not None:
            self._listener.close()
        self._timer.close()
        self._watch.close()
        os.close(self._waker)

    def _awake(self) -> None:
        os.eventfd_read(self._waker)
        self._woken = True

    def _serve(self, connection: Connection) -> None:
        """A packet has come, or the connection is gone; then what came before still counts."""
        try:
            connection.read()
        except Gone as gone:
            connection.hear()
            self._lose(connection, str(gone))

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            made, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _FULL:  # until something is closed it would come, and be refused, again and again
                self._crowded = True
                self._watch.remove(self._listener.fileno())
                self._timer.within(self._timing.beat)
            return  # else it went while it waited
        if credentials(made)[1] != os.getuid():
            made.close()
            return
        made.setblocking(False)
        self._callers.add(made)
        self._watch.add(made.fileno(), partial(self._greet, made))

    def _greet(self, caller: socket.socket) -> None:
        """Whoever called says which node it is, and is heard from now on."""
        came = packets.take(caller)
        if came is None:
            return
        said, handed = came
        self._watch.remove(caller.fileno())
        self._callers.discard(caller)
        node = said[1:].decode("utf-8", "replace")
        if said[:1] != packets.NAME or node not in self._admitted:
            packets.drop(handed)
            caller.close()
            return
        self._numbered += 1
        peer = Peer(node, b"%d" % self._numbered)
        try:
            connection = self._connection(caller, peer, packets.ANSWER)
        except OSError:
            packets.drop(handed)
            caller.close()
            return
        self._from[peer.link] = connection
        try:
            connection.listen(handed)
        except Gone:
            self._close(connection)

    def _dial(self, node: str, port: int) -> None:
        """Try to connect; where nobody listens yet, again a little later."""
        made: socket.socket | None = None
        try:
            made = packet_socket()
            made.connect(address_of(port))
            if credentials(made)[1] != os.getuid():
                made.close()
                del self._dialling[node]
                self._happened.append(Down(node, "another user's process listens there", refused=True))
                return
            self._to[node] = self._connection(made, Peer(node), packets.NAME + self._node.encode())
        except OSError:
            if made is not None:
                made.close()
            self._timer.within(self._timing.retry[0])
            return
        del self._dialling[node]
        self._happened.append(Up(node))

    def _connection(self, connected: socket.socket, peer: Peer, first: bytes) -> Connection:
        """The first packet is sent; see ``Connection`` for what it raises."""
        made = Connection(
            connected, peer, first, self._watch, self._happened, self._lose, most=self._queue, largest=self._largest
        )
        self._watch.add(connected.fileno(), partial(self._serve, made))
        self._connections.add(made)
        self._timer.within(self._timing.beat)
        return made

    def _look(self) -> None:
        """Dial again what does not answer; see whether a peer is stopped."""
        if self._connections:
            self._timer.within(self._timing.beat)
        now = time.monotonic()
        if self._crowded and self._listener is not None:
            self._crowded = False
            self._watch.add(self._listener.fileno(), self._accept)
        for node, port in list(self._dialling.items()):
            self._dial(node, port)
        for connection in list(self._connections):
            if not connection.is_stopped():
                connection.stopped_since = None
            elif connection.stopped_since is None:
                connection.stopped_since = now
            elif now - connection.stopped_since >= self._timing.silence:
                self._lose(connection, "it is stopped")

    def _lose(self, connection: Connection, why: str) -> None:
        """A connection is gone; only of our own do we tell, as ``Transport`` has it."""
        if connection not in self._connections:
            return
        self._close(connection)
        if not connection.peer.link:
            self._happened.append(Down(connection.peer.node, why))

    def _close(self, connection: Connection) -> None:
        self._connections.discard(connection)
        peer = connection.peer
        if peer.link:
            self._from.pop(peer.link, None)
        elif self._to.get(peer.node) is connection:
            del self._to[peer.node]
        connection.close()
