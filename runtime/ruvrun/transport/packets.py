"""The packets of a connection on one host, and what is handed over with them.

::

    0x01        memory: the parts of a frame that is too large for a slot of the ring, in which their lengths then are
    0x02, name  the first packet of a caller: which node it is, and its ring
    0x03        the answer: the listener's ring

The memory of a frame is anonymous (``memfd``) and sealed: nobody can write to it or cut it short any more, not even its
maker, so a receiver may map it and read it in place. Each part begins on a multiple of 64.
"""

from __future__ import annotations

import array
import errno
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Sequence

from ruvrun.frames import Buffer
from ruvrun.transport import ring

MEMORY, NAME, ANSWER = b"\x01", b"\x02", b"\x03"
_LONGEST = 1024
_FD_SPACE = socket.CMSG_SPACE(ring.HANDED * struct.calcsize("i"))
_TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_ALIGNMENT = 64
_MOST_PARTS = ring.LARGEST // 8
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def hand(to: socket.socket, data: bytes, handed: Sequence[int]) -> None:
    """Send a packet with descriptors, which stay the sender's as well.

    Raises:
        OSError: the peer is gone, or too many are on their way.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handed))]
    to.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def take(connected: socket.socket) -> tuple[bytes, tuple[int, ...]] | None:
    """The next packet, and the descriptors that came with it, now the caller's; None where there is none.

    The packet is empty where the connection is gone, or what came is none of ours.
    """
    try:
        data, ancillary, flags, _ = connected.recvmsg(_LONGEST, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return None
    except OSError:
        return b"", ()
    handed = array.array("i")
    for level, kind, numbers in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            handed.frombytes(numbers[: len(numbers) - len(numbers) % handed.itemsize])
    if flags & _TRUNCATED:
        drop(handed)
        return b"", ()
    return data, tuple(handed)


def drop(handed: Sequence[int]) -> None:
    """Close descriptors."""
    for number in handed:
        os.close(number)


def as_memory(parts: Sequence[Buffer]) -> tuple[bytes, int]:
    """The lengths of the parts (u64 each), and a descriptor of sealed memory that holds them.

    Raises:
        OSError: no descriptor or no memory is left, or there are too many parts.
    """
    if len(parts) > _MOST_PARTS:
        raise OSError(errno.E2BIG, f"a frame of {len(parts)} parts")
    views = [memoryview(part) for part in parts]
    views = [view.cast("B") if view.nbytes else view for view in views]
    handed = os.memfd_create("ruvrun-frame", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        offset = 0
        for view in views:
            start = offset
            while offset < start + view.nbytes:
                offset += os.pwrite(handed, view[offset - start :], offset)
            offset = _aligned(offset)
        os.ftruncate(handed, max(offset, 1))
        fcntl.fcntl(handed, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(handed)
        raise
    return struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views)), handed


def from_memory(lengths: bytes, handed: int, largest: int) -> list[Buffer] | None:
    """The parts that lie in the memory behind a descriptor, as views of it; None where that is not so."""
    try:
        count, odd = divmod(len(lengths), 8)
        if odd or not count:
            return None
        sizes = struct.unpack(f"<{count}Q", lengths)
        if max(sizes) > largest or fcntl.fcntl(handed, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            return None
        total = max(sum(map(_aligned, sizes)), 1)
        if os.fstat(handed).st_size < total:
            return None
        mapped = memoryview(mmap.mmap(handed, total, mmap.MAP_PRIVATE, mmap.PROT_READ))
    except OSError:
        return None
    finally:
        os.close(handed)
    parts, offset = [], 0
    for size in sizes:
        parts.append(mapped[offset : offset + size])
        offset += _aligned(size)
    return list(parts)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
