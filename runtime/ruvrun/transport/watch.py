"""What a process waits for: descriptors, a time, and what is to be done about each.

The time is a descriptor, too (``timerfd``): a wait with a timeout of its own would have the kernel start a timer and
stop it again at every hop.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable

_AT_ONCE = 64  # more are told of the next time


class Watch:
    """Descriptors, each with a function that takes what is there; it must not mind that nothing is."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sources: dict[int, Callable[[], object]] = {}

    def add(self, number: int, source: Callable[[], object]) -> None:
        """Call ``source`` whenever this descriptor is readable, or its other end is gone."""
        self._epoll.register(number, select.EPOLLIN)
        self._sources[number] = source

    def add_counter(self, number: int, source: Callable[[], object]) -> None:
        """Call ``source`` once whenever this counter was raised since the last time; nobody has to read it."""
        self._epoll.register(number, select.EPOLLIN | select.EPOLLET)
        self._sources[number] = source

    def remove(self, number: int) -> None:
        """No longer; it need not have been added. To be called before the descriptor is closed: another process may
        hold it, too, and then it would be waited for still.
        """
        if self._sources.pop(number, None) is not None:
            self._epoll.unregister(number)

    def wait(self, timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds (None: for ever), and do what is to be done; whether there was anything."""
        ready = self._epoll.poll(timeout, _AT_ONCE)
        for number, _ in ready:
            source = self._sources.get(number)  # none: removed by one before it
            if source is not None:
                source()
        return bool(ready)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._epoll.close()


class Timer:
    """A time at which something is to be done: the earliest that was asked for since it was last done.

    Args:
        watch: that waits for it.
        do: what is to be done.
    """

    def __init__(self, watch: Watch, do: Callable[[], object]) -> None:
        self._do = do
        self._due = float("inf")
        self._number = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._number < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        watch.add(self._number, self._rung)

    def within(self, seconds: float) -> None:
        """Do it in so many seconds at the latest."""
        due = time.monotonic() + seconds
        if due < self._due:
            self._due = due
            whole = int(seconds)
            # A time of nothing would stop it.
            setting = (ctypes.c_long * 4)(0, 0, whole, max(1, int((seconds - whole) * 1e9)))
            _libc.timerfd_settime(self._number, 0, setting, None)

    def close(self) -> None:
        """It is not done any more."""
        os.close(self._number)

    def _rung(self) -> None:
        try:
            os.read(self._number, 8)
        except BlockingIOError:
            return
        self._due = float("inf")
        self._do()


_libc = ctypes.CDLL(None, use_errno=True)
