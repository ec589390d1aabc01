"""What a process waits for: descriptors, and what is to be done when one of them is readable."""

from __future__ import annotations

import select
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
