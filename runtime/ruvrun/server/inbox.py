"""From the driver's thread into the event loop, cheaply.

The driver's thread must not wait and shares its core with a stage. So its callback appends to a queue, and
wakes the loop only if no wake-up is on its way already: all tokens of a step arrive with one.

The flag needs no lock. The thread appends before it looks at the flag, the loop lowers the flag before it
empties the queue: an event that did not raise the flag was in the queue before the loop looked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from ruvrun.engine import Lost, Token
from ruvrun.server.ending import hung_up


class Gone:
    """The client hung up."""


Event = Token | Lost | Gone


class Inboxes:
    """All inboxes of one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: deque[tuple[Inbox, Event]] = deque()
        self._waking = False

    def open(self) -> Inbox:
        """A new inbox; to be called in the loop."""
        self._loop = asyncio.get_running_loop()
        return Inbox(self)

    def post(self, inbox: Inbox, event: Event) -> None:
        """Put an event into an inbox, from any thread."""
        self._queue.append((inbox, event))
        if not self._waking and self._loop is not None:
            self._waking = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who would read this
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False
        while self._queue:
            inbox, event = self._queue.popleft()
            inbox.put(event)


class Inbox:
    """The events of one HTTP request, in order."""

    def __init__(self, inboxes: Inboxes) -> None:
        self._inboxes = inboxes
        self._events: list[Event] = []
        self._filled = asyncio.Event()

    def post(self, event: Event) -> None:
        """Add an event, from any thread."""
        self._inboxes.post(self, event)

    def put(self, event: Event) -> None:
        """Add an event, in the loop."""
        self._events.append(event)
        self._filled.set()

    async def take(self) -> list[Event]:
        """All events that are there, at least one."""
        await self._filled.wait()
        self._filled.clear()
        events, self._events = self._events, []
        return events


async def watch(receive: Any, inbox: Inbox) -> None:
    """Put ``Gone`` into the inbox when the client hangs up (ASGI ``receive``, after the body was read)."""
    await hung_up(receive)
    inbox.put(Gone())
