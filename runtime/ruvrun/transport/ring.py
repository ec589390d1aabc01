"""A ring in shared memory: how frames go from one process to another of this machine.

Some slots in one piece of memory, and two counters of the kernel's (``eventfd``). The sender writes a frame into the
next slot and counts it on ``bell``, which wakes the receiver; the receiver copies it out and gives slots back on
``room``, half a ring at a time. So a hop of a step is two calls of the kernel, one that wakes and one that waits,
whatever the step carries, and no buffer is made for it.

**Order.** In which order a processor lets others see its writes is its own affair, but what was written before a count
is there for whoever was woken by it, or has read it. Waking tells of one frame at least, so as many may be taken as
often as the receiver was woken. Where more seem to be there, by their numbers, ``bell`` is read: that is the rare case.

**Pages.** A core that has slept finds its caches and tables of pages cold, so few pages are touched: what says where
frames are stands in the first one, and every slot begins with a page.

**Trust.** The memory is sealed against being cut short, so no access can fail. Its sender could still write into a slot
that is being read: a length is read once, and a frame is looked at only after it was copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from pathlib import Path

SLOTS = 8
LARGEST = 80 << 10
"""Bytes that a slot holds: a decoding step of many rows."""

FRAME, LENGTHS = 0, 1
"""What is in a slot: a frame of one part, or the lengths of the parts of one that lies elsewhere (``packets.py``)."""

HANDED = 3
"""Descriptors of a ring: memory, bell, room."""

_HEAD = struct.Struct("<QII")  # which frame is in a slot, from 1 on; what it is, and its bytes
_PAGE = 4096
_SIZE = _PAGE + SLOTS * LARGEST
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Sending:
    """The end that writes; it makes the ring. ``handed`` is what the other end needs, and stays this one's as well.

    Raises:
        OSError: no descriptor or no memory is left.
    """

    __slots__ = "_bell", "_free", "_memory", "_number", "_opened", "handed", "room"

    def __init__(self) -> None:
        with contextlib.ExitStack() as opened:
            memory = os.memfd_create("ruvrun-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            opened.callback(os.close, memory)
            os.ftruncate(memory, _SIZE)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            self._memory = opened.enter_context(mmap.mmap(memory, _SIZE))
            bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            opened.callback(os.close, bell)
            self.room = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            opened.callback(os.close, self.room)
            self._opened = opened.pop_all()
        self.handed = memory, bell, self.room
        self._bell = bell
        self._free = SLOTS
        self._number = 0

    def has_room(self) -> bool:
        """Whether a slot is free; if not, ``room`` becomes readable once one is."""
        if not self._free:
            with contextlib.suppress(BlockingIOError):
                self._free = os.eventfd_read(self.room)
        return self._free > 0

    def put(self, kind: int, data: bytes) -> bool:
        """Send at most ``LARGEST`` bytes, if there is room; whether there was."""
        if not self._free and not self.has_room():
            return False
        slot, size = self._number % SLOTS, len(data)
        self._number += 1
        self._free -= 1
        at = _PAGE + slot * LARGEST
        self._memory[at : at + size] = data
        _HEAD.pack_into(self._memory, slot * _HEAD.size, self._number, kind, size)
        os.eventfd_write(self._bell, 1)
        return True

    def close(self) -> None:
        """Let it go; the other end can still read what is in it."""
        self._opened.close()


class Receiving:
    """The end that reads, by what the other one handed over; it is closed with it.

    Raises:
        OSError, ValueError: that is no ring.
    """

    __slots__ = "_counted", "_memory", "_opened", "_room", "_taken", "_woken", "bell"

    def __init__(self, memory: int, bell: int, room: int) -> None:
        self.bell, self._room = bell, room
        with contextlib.ExitStack() as opened:
            for number in (self.bell, self._room):
                opened.callback(os.close, number)
            try:
                if fcntl.fcntl(memory, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(memory).st_size != _SIZE:
                    raise ValueError("this is not the memory of a ring")
                if not (_is_counter(self.bell) and _is_counter(self._room)):
                    raise ValueError("these are not the counters of a ring")
                self._memory = opened.enter_context(mmap.mmap(memory, _SIZE, prot=mmap.PROT_READ))
            finally:
                os.close(memory)
            self._opened = opened.pop_all()
        self._taken = 0
        self._woken = 0
        self._counted = 0

    def take(self, woken: int = 0) -> list[tuple[int, bytes]]:
        """What is in each slot that has been filled, and its bytes.

        Args:
            woken: 1 where ``bell`` was rung since the last time (edge-triggered), so that there is one frame more.

        Raises:
            ValueError: more bytes than a slot has.
        """
        self._woken += woken
        found: list[tuple[int, bytes]] = []
        while True:
            slot = self._taken % SLOTS
            number, kind, size = _HEAD.unpack_from(self._memory, slot * _HEAD.size)
            if number != self._taken + 1:
                return found
            if number > self._woken and number > self._counted:
                with contextlib.suppress(BlockingIOError):
                    self._counted += os.eventfd_read(self.bell)
                if number > self._counted:
                    return found  # it is being written
                # What else stands there was perhaps not yet, when the number was seen.
                _, kind, size = _HEAD.unpack_from(self._memory, slot * _HEAD.size)
            if size > LARGEST:
                raise ValueError(f"{size} bytes in a slot of {LARGEST}")
            at = _PAGE + slot * LARGEST
            found.append((kind, self._memory[at : at + size]))
            self._taken = number
            if not number % (SLOTS // 2):
                os.eventfd_write(self._room, SLOTS // 2)

    def close(self) -> None:
        """Let it go."""
        self._opened.close()


def _is_counter(number: int) -> bool:
    return str(Path(f"/proc/self/fd/{number}").readlink()) == "anon_inode:[eventfd]"
