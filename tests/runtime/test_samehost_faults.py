"""What a process of this machine may not send: it loses that connection, and nothing else happens."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ruvrun.transport import Peer, packets, ring
from ruvrun.transport.connection import address_of, packet_socket
from tests.runtime.samehosts import calling, first_frame, frames_of, linked
from tests.runtime.transports import LONG


def is_hung_up(on: socket.socket) -> bool:
    """Whether nothing but an answer comes, and then the end."""
    on.settimeout(LONG)
    with contextlib.suppress(ConnectionResetError):
        while on.recv(1):
            pass
    return True


@pytest.mark.parametrize(
    "sent",
    [
        [packets.MEMORY],
        [packets.NAME + b"a"],
        [packets.NAME + b"\xff" * 10],
        [packets.NAME + b"a" * 2000],
        [packets.ANSWER],
    ],
)
def test_who_does_not_say_who_it_is_and_hand_over_a_ring_gets_nothing(sent: list[bytes]) -> None:
    with linked() as (first, second, number), packet_socket() as evil:
        evil.connect(address_of(number))
        for data in sent:
            evil.send(data)
        first.send(Peer("b"), [b"good"])
        assert first_frame(second) == [b"good"]
        second.receive(0)
        assert is_hung_up(evil)


def says_its_name_again(made: socket.socket, sending: ring.Sending) -> None:
    packets.hand(made, packets.NAME + b"c", sending.handed)


def hands_over_another_ring(made: socket.socket, sending: ring.Sending) -> None:
    packets.hand(made, packets.ANSWER, sending.handed)


def hands_over_nothing(made: socket.socket, sending: ring.Sending) -> None:
    made.send(packets.MEMORY)


def hands_over_more_than_the_ring_tells_of(made: socket.socket, sending: ring.Sending) -> None:
    for _ in range(ring.SLOTS + 1):
        packets.hand(made, packets.MEMORY, sending.handed[:1])


def tells_of_a_frame_that_does_not_come(made: socket.socket, sending: ring.Sending) -> None:
    sending.put(ring.LENGTHS, struct.pack("<Q", 100))


def writes_a_length_that_no_slot_has(made: socket.socket, sending: ring.Sending) -> None:
    sending.put(ring.FRAME, b"this one")
    head = struct.pack("<II", ring.FRAME, len(b"this one"))
    with mmap.mmap(sending.handed[0], 0) as memory:
        at = memory.find(head, 16)  # the first is of what was well begun
        memory[at : at + 8] = struct.pack("<II", ring.FRAME, ring.LARGEST + 1)


@pytest.mark.parametrize(
    "does",
    [
        says_its_name_again,
        hands_over_another_ring,
        hands_over_nothing,
        hands_over_more_than_the_ring_tells_of,
        tells_of_a_frame_that_does_not_come,
        writes_a_length_that_no_slot_has,
    ],
)
def test_who_does_what_it_may_not_loses_that_connection_alone(
    does: Callable[[socket.socket, ring.Sending], None],
) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    with linked() as (first, second, number), calling(number) as (evil, sending):
        sending.put(ring.FRAME, b"well begun")
        assert first_frame(second) == [b"well begun"]
        does(evil, sending)
        first.send(Peer("b"), [b"good"])
        assert first_frame(second) == [b"good"]
        second.receive(0)
        assert is_hung_up(evil)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


@pytest.mark.parametrize("wrong", ["memory cut short", "memory not sealed", "no memory", "no bell", "no room"])
def test_a_ring_is_taken_only_where_it_is_one(wrong: str) -> None:
    """Memory that its maker may cut short would end this process, and a pipe for a counter might keep it waiting."""
    before = len([*Path("/proc/self/fd").iterdir()])
    with linked() as (first, second, number), contextlib.ExitStack() as stack:
        sending = stack.enter_context(contextlib.closing(ring.Sending()))
        evil = stack.enter_context(packet_socket())
        one, other = os.pipe()
        size = os.fstat(sending.handed[0]).st_size
        memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        for opened in (one, other, memory):
            stack.callback(os.close, opened)
        os.ftruncate(memory, size if "sealed" in wrong else size - 1)
        if "short" in wrong:
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        place = {"no memory": (one, 0), "no bell": (one, 1), "no room": (other, 2)}.get(wrong, (memory, 0))
        handed = [*sending.handed]
        handed[place[1]] = place[0]
        evil.connect(address_of(number))
        packets.hand(evil, packets.NAME + b"c", handed)
        first.send(Peer("b"), [b"good"])
        assert first_frame(second) == [b"good"]
        second.receive(0)
        assert is_hung_up(evil)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


@pytest.mark.parametrize(
    ("sizes", "size", "seal", "kept"),
    [
        ((100, 28), 192, True, True),
        ((100, 28), 192, False, False),  # its sender could cut it short under us
        ((100, 128), 192, True, False),
        ((1 << 60,), 192, True, False),
        ((2 << 20,), 4 << 20, True, False),  # above ``largest``
        ((), 192, True, False),
        ((0,), 0, True, False),
    ],
)
def test_memory_is_taken_only_as_it_is_said_to_be(sizes: Sequence[int], size: int, seal: bool, kept: bool) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    with linked(largest=1 << 20) as (_, second, number), calling(number) as (evil, sending):
        memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, size)
        if seal:
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        packets.hand(evil, packets.MEMORY, [memory])
        os.close(memory)
        sending.put(ring.LENGTHS, struct.pack(f"<{len(sizes)}Q", *sizes))
        sending.put(ring.FRAME, b"next")
        if kept:
            frames = frames_of(second)
            assert [len(part) for part in next(frames)] == [*sizes]
            assert next(frames) == [b"next"]
            del frames  # and with it the memory
        else:
            evil.settimeout(0.0)
            hung_up = False
            until = time.monotonic() + LONG
            while not hung_up and time.monotonic() < until:
                assert second.receive(0.05) == []
                with contextlib.suppress(BlockingIOError):
                    hung_up = evil.recv(1) == b""
            assert hung_up
    assert len([*Path("/proc/self/fd").iterdir()]) == before
