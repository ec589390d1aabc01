"""The packets of a link on one host: bytes that travel in them, and memory whose descriptor goes along.

::

    0x00, bytes                     a frame of one part
    0x01, length of each part (u64) a frame whose parts lie in the memory that comes with it, each on a multiple of 64
    0x02, name                      the first packet of a caller: which node it is

The memory is anonymous (``memfd``) and sealed: nobody can write to it or cut it short any more, not even its maker, so
a receiver may map it and read it in place.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Sequence

from ruvrun.frames import Buffer

ONE, MEMORY, NAME = b"\x00", b"\x01", b"\x02"
# Bytes; what is larger goes as memory, which takes three times as long as 72 KB in a packet: the kernel makes it, seals
# it, hands it over and maps it. Of these the default send buffer holds two, and the kernel has whole pages for each.
LARGEST = 80 << 10
FD_SPACE = socket.CMSG_LEN(struct.calcsize("i"))
_ALIGNMENT = 64
_NO_SIGNAL = int(socket.MSG_NOSIGNAL)
_MOST_PARTS = LARGEST // 8 - 1  # whose lengths a packet holds
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
Packet = tuple[bytes, int]  # its bytes, and the descriptor that goes with it or -1


def put(to: socket.socket, packet: Packet) -> None:
    """Send a packet; what goes with it is closed once it is on its way."""
    data, handed = packet
    if handed < 0:
        to.send(data, _NO_SIGNAL)
        return
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handed]))]
    to.sendmsg([data], rights, _NO_SIGNAL)
    os.close(handed)


def drop(packet: Packet) -> None:
    """Forget a packet that was not sent."""
    if packet[1] >= 0:
        os.close(packet[1])


def descriptor(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """The descriptor that came with a packet, or -1."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found = array.array("i", data[: struct.calcsize("i")])
            return int(found[0])
    return -1


def as_memory(parts: Sequence[Buffer]) -> Packet:
    """The parts in sealed memory.

    Raises:
        OSError: no descriptor or no memory is left.
    """
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
    return MEMORY + struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views)), handed


def from_memory(handed: int, packet: bytes, largest: int) -> list[Buffer] | None:
    """The parts that lie in the memory behind a descriptor, as views of it; None where that is not so."""
    if handed < 0:
        return None
    lengths = packet[1:]
    try:
        count, odd = divmod(len(lengths), 8)
        sizes = struct.unpack(f"<{count}Q", lengths) if not odd and 0 < count <= _MOST_PARTS else (largest + 1,)
        if packet[:1] != MEMORY or max(sizes) > largest or fcntl.fcntl(handed, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
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
