"""Processes of one machine, as transports in one test: linked ones, and a caller of its own mind."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator, Sequence

from ruvrun.transport import Came, Transport, Up, packets, ring
from ruvrun.transport.connection import address_of, packet_socket
from ruvrun.transport.outgoing import Timing
from ruvrun.transport.samehost import SameHost
from tests.runtime.transports import LONG

QUICK = Timing(beat=0.05, silence=0.2, retry=(0.02, 0.1))


@contextlib.contextmanager
def process(node: str, known: Sequence[str] = ("a", "b", "c"), **options: object) -> Iterator[SameHost]:
    transport = SameHost(node, known, timing=QUICK, **options)  # type: ignore[arg-type] # a test's options
    try:
        yield transport
    finally:
        transport.close()


@contextlib.contextmanager
def linked(**options: object) -> Iterator[tuple[SameHost, SameHost, int]]:
    """``a`` connected to ``b``, and b's number."""
    with process("a") as first, process("b", **options) as second:
        number = second.bind("local", secrets.randbits(62))
        first.connect("b", "local", number)
        assert first.receive(LONG) == [Up("b")]
        yield first, second, number


def frames_of(transport: Transport) -> Iterator[list[bytes]]:
    """What comes, for ever."""
    while True:
        for event in transport.receive(LONG):
            if isinstance(event, Came):
                yield [bytes(part) for part in event.parts]


def first_frame(transport: Transport) -> list[bytes]:
    return next(frames_of(transport))


@contextlib.contextmanager
def calling(number: int, name: bytes = b"c") -> Iterator[tuple[socket.socket, ring.Sending]]:
    """A caller of its own mind: its socket, and the ring that it has handed over with its name."""
    with contextlib.closing(ring.Sending()) as sending, packet_socket() as made:
        made.connect(address_of(number))
        packets.hand(made, packets.NAME + name, sending.handed)
        yield made, sending
