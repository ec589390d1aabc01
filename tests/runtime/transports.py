"""What tests of transports wait for, whichever transport it is."""

from __future__ import annotations

import time
from collections.abc import Callable

from ruvrun.transport import Came, Down, Event, Transport, Up

LONG = 20.0  # a safety net: nothing waits for a time to pass


def wait_for(transport: Transport, wanted: Callable[[Event], bool]) -> Event:
    """The first event that is wanted; those before it are dropped."""
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        for event in transport.receive(0.1):
            if wanted(event):
                return event
    raise AssertionError("it did not happen")


def is_up(event: Event) -> bool:
    return isinstance(event, Up)


def is_down(event: Event) -> bool:
    return isinstance(event, Down)


def came(event: Event) -> bool:
    return isinstance(event, Came)


def texts(event: Event) -> list[bytes]:
    assert isinstance(event, Came)
    return [bytes(part) for part in event.parts]
