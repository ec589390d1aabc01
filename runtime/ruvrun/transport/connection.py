"""One connection between two processes of one user on this machine: a packet socket, and what waits to go into it.

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
from collections.abc import Sequence

from ruvrun.frames import Buffer
from ruvrun.transport import Peer, packets
from ruvrun.transport.packets import Packet

# Plain numbers: arithmetic with flags that are an enumeration costs more than the call.
_NO_SIGNAL = int(socket.MSG_NOSIGNAL)
_TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_CREDENTIALS = struct.Struct("3i")
_STOPPED = "TtZX"


class Gone(Exception):  # noqa: N818 - not an error: what ``read`` found, and why the connection is of no use any more
    """The connection is gone, or the peer sent what is no packet."""


class Connection:
    """A socket that is connected, and registered for reading with the owner's ``epoll``.

    ``peer`` is None until a caller has said who it is; ``most`` frames may wait for room in the socket.
    """

    def __init__(self, connected: socket.socket, peer: Peer | None, epoll: select.epoll, most: int) -> None:
        self.socket = connected
        self.number = connected.fileno()
        self.peer = peer
        self.stopped_since: float | None = None
        self._pid = credentials(connected)[0]
        self._epoll = epoll
        self._most = most
        self._queue: deque[Packet] = deque()
        epoll.register(connected, select.EPOLLIN)

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send a frame, now or as soon as there is room; False where the peer is gone or has not read for too long.

        A frame that the kernel refuses (no descriptor or no memory is left) ends the connection: both ends are told of
        that at once, and of a frame that is missing only by a deadline.
        """
        packet: Packet
        if len(parts) == 1 and len(parts[0]) < packets.LARGEST:
            packet = packets.ONE + parts[0], -1
        else:
            try:
                packet = packets.as_memory(parts)
            except OSError:
                self._end()
                return False
        if not self._queue:
            try:
                if packet[1] < 0:
                    self.socket.send(packet[0], _NO_SIGNAL)
                else:
                    packets.put(self.socket, packet)
            except BlockingIOError:
                pass
            except OSError:
                packets.drop(packet)
                self._end()
                return False
            else:
                return True
        if len(self._queue) >= self._most:
            packets.drop(packet)
            return False
        self._queue.append(packet)
        self._epoll.modify(self.socket, select.EPOLLIN | select.EPOLLOUT)
        return True

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        while self._queue:
            try:
                packets.put(self.socket, self._queue[0])
            except BlockingIOError:
                return
            except OSError:
                self._forget()
                self._end()
                break
            self._queue.popleft()
        self._epoll.modify(self.socket, select.EPOLLIN)

    def drain(self, until: float) -> None:
        """Wait for room for what waits, until a time of the monotonic clock."""
        room = select.poll()  # not select.select: that knows no descriptor above 1023
        room.register(self.socket, select.POLLOUT)
        while self._queue and (left := until - time.monotonic()) > 0:
            if not room.poll(left * 1000):
                return
            self.flush()

    def read(self, room: list[memoryview], largest: int) -> tuple[bytes, list[Buffer]] | None:
        """Kind and parts of the next packet; None when there is none.

        Args:
            room: one buffer that holds any packet.
            largest: bytes of the largest part that may come.

        Raises:
            Gone: see there.
        """
        try:
            size, ancillary, flags, _ = self.socket.recvmsg_into(room, packets.FD_SPACE)
        except BlockingIOError:
            return None
        except OSError:
            size, ancillary, flags = 0, [], 0
        if size and not ancillary and not flags & _TRUNCATED:
            kind = bytes(room[0][:1])
            if kind != packets.MEMORY:
                return kind, [bytes(room[0][1:size])]
        handed = packets.descriptor(ancillary) if ancillary else -1
        if size == 0 or flags & _TRUNCATED:
            if handed >= 0:
                os.close(handed)
            raise Gone("the connection was lost" if size == 0 else "it sent what is no packet")
        parts = packets.from_memory(handed, bytes(room[0][:size]), largest)
        if parts is None:
            raise Gone("it sent what is no packet")
        return packets.MEMORY, parts

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
        self.socket.close()

    def _forget(self) -> None:
        for packet in self._queue:
            packets.drop(packet)
        self._queue.clear()

    def _end(self) -> None:
        """End the connection, if it has not ended: ``read`` will find that, here and at the other end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def packet_socket() -> socket.socket:
    """A socket that is not connected yet and never blocks."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # the kernel gives what it allows
    return made


def address_of(number: int) -> str:
    """Where a process of this user listens under ``number``."""
    return f"\0ruvrun/{os.getuid()}/{number}"


def credentials(connected: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the kernel knows them."""
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user
