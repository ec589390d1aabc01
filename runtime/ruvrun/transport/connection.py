"""One connection between two processes of one user on this machine: a packet socket, a ring each way, and what waits.

Also what its two ends need before it stands: an address, and who is at the other end.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ruvrun.frames import Buffer
from ruvrun.transport import Came, Event, Peer, packets, ring
from ruvrun.transport.watch import Watch

_CREDENTIALS = struct.Struct("3i")
_STOPPED = "TtZX"


class Gone(Exception):  # noqa: N818 - not an error: what was found, and why the connection is of no use any more
    """The connection is gone, or the peer sent what it may not."""


class Connection:
    """A socket that is connected, and a ring of our own, which is handed over at once.

    Args:
        connected: the socket.
        peer: who is at the other end.
        first: the packet that the ring goes with.
        watch: the owner's.
        happened: where frames that came are written down.
        lose: called where the peer sent what it may not, with a reason.
        most: frames that may wait for room in the ring.
        largest: bytes of the largest part that may come.

    Raises:
        OSError: no descriptor or no memory is left.
    """

    def __init__(
        self,
        connected: socket.socket,
        peer: Peer,
        first: bytes,
        watch: Watch,
        happened: list[Event],
        lose: Callable[[Connection, str], object],
        *,
        most: int,
        largest: int,
    ) -> None:
        self.socket = connected
        self.number = connected.fileno()
        self.peer = peer
        self.stopped_since: float | None = None
        self._pid = credentials(connected)[0]
        self._watch = watch
        self._happened = happened
        self._lose = lose
        self._most = most
        self._largest = largest
        self._in: ring.Receiving | None = None
        self._memories: deque[int] = deque()
        self._queue: deque[tuple[int, bytes, int]] = deque()
        self._out = ring.Sending()
        try:
            with contextlib.suppress(ConnectionError):  # it has gone already; what it said before still counts
                packets.hand(connected, first, self._out.handed)
        except OSError:
            self._out.close()
            raise

    def listen(self, handed: tuple[int, ...]) -> None:
        """The peer has handed over its ring.

        Raises:
            Gone: it is none.
        """
        if self._in is not None or len(handed) != ring.HANDED:
            packets.drop(handed)
            raise Gone("it sent what is no packet")
        try:
            self._in = ring.Receiving(*handed)
        except (OSError, ValueError):
            raise Gone("it sent what is no ring") from None
        self._watch.add_counter(self._in.bell, partial(self.hear, 1))

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send a frame, now or as soon as there is room; False where the peer has not read for too long.

        A frame that the kernel refuses (no descriptor or no memory is left) ends the connection: both ends are told of
        that at once, and of a frame that is missing only by a deadline.
        """
        if len(parts) == 1 and len(whole := bytes(parts[0])) <= ring.LARGEST:
            if not self._queue and self._out.put(ring.FRAME, whole):
                return True
            kind, data, handed = ring.FRAME, whole, -1
        else:
            try:
                data, handed = packets.as_memory(parts)
            except OSError:
                self._end()
                return False
            kind = ring.LENGTHS
        if not self._queue and self._out.has_room():
            return self._put(kind, data, handed)
        if len(self._queue) >= self._most:
            if handed >= 0:
                os.close(handed)
            return False
        if not self._queue:
            self._watch.add(self._out.room, self.flush)
        self._queue.append((kind, data, handed))
        return True

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        while self._queue and self._out.has_room():
            if not self._put(*self._queue.popleft()):
                self._forget()
        if not self._queue:
            self._watch.remove(self._out.room)

    def drain(self, until: float) -> None:
        """Wait for room for what waits, until a time of the monotonic clock."""
        room = select.poll()  # not select.select: that knows no descriptor above 1023
        room.register(self._out.room, select.POLLIN)
        room.register(self.socket, 0)  # that the peer is gone is told unasked
        while self._queue and (left := until - time.monotonic()) > 0:
            if [number for number, _ in room.poll(left * 1000)] != [self._out.room]:
                return
            self.flush()

    def hear(self, woken: int = 0) -> None:
        """Write down the frames that have come; ``woken`` as in ``ring.Receiving.take``."""
        if self._in is None:
            return
        try:
            for kind, data in self._in.take(woken):
                self._happened.append(Came(self.peer, [data] if kind == ring.FRAME else self._large(data)))
        except (OSError, ValueError):
            self._lose(self, "it sent what is no frame")
        except Gone as gone:
            self._lose(self, str(gone))

    def read(self) -> bool:
        """Take the next packet; whether there was one.

        Raises:
            Gone: it is none, or the end.
        """
        came = packets.take(self.socket)
        if came is None:
            return False
        data, handed = came
        if data == packets.ANSWER:
            self.listen(handed)
        elif data == packets.MEMORY and len(handed) == 1 and len(self._memories) < ring.SLOTS:
            self._memories.append(handed[0])
        else:
            packets.drop(handed)
            raise Gone("it sent what is no packet" if data else "the connection was lost")
        return True

    def is_stopped(self) -> bool:
        """Whether the peer's process is there and does not run, by its state letter in ``/proc/PID/stat``."""
        try:
            with open(f"/proc/{self._pid}/stat", "rb") as file:  # noqa: PTH123 - every second, for every connection
                text = file.read().rpartition(b")")[2]  # its name, in parentheses, may hold anything
        except OSError:
            return False
        return text[1:2].decode() in _STOPPED

    def close(self) -> None:
        """Close it; what was not sent is dropped."""
        self._forget()
        packets.drop(self._memories)
        self._memories.clear()
        if self._in is not None:
            self._watch.remove(self._in.bell)
            self._in.close()
        self._watch.remove(self._out.room)
        self._out.close()
        self._watch.remove(self.number)
        self.socket.close()

    def _put(self, kind: int, data: bytes, handed: int) -> bool:
        if handed >= 0:
            try:
                packets.hand(self.socket, packets.MEMORY, [handed])
            except OSError:
                self._end()
                return False
            finally:
                os.close(handed)
        self._out.put(kind, data)
        return True

    def _large(self, lengths: bytes) -> list[Buffer]:
        """The parts of a frame whose memory comes, or came, as a packet."""
        while not self._memories:
            if not self.read():
                raise ValueError("lengths of a frame that did not come")
        parts = packets.from_memory(lengths, self._memories.popleft(), self._largest)
        if parts is None:
            raise ValueError("lengths of another frame")
        return parts

    def _forget(self) -> None:
        packets.drop([handed for *_, handed in self._queue if handed >= 0])
        self._queue.clear()

    def _end(self) -> None:
        """End the connection, if it has not ended: ``read`` will find that, here and at the other end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def packet_socket() -> socket.socket:
    """A socket that is not connected yet and never blocks."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def address_of(number: int) -> str:
    """Where a process of this user listens under ``number``."""
    return f"\0ruvrun/{os.getuid()}/{number}"


def credentials(connected: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the kernel knows them."""
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user
