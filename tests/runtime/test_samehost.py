"""Links between processes of one machine, against real sockets: what arrives, and what a loss looks like."""

from __future__ import annotations

import array
import itertools
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ruvrun.frames import Buffer
from ruvrun.transport import Came, Down, Peer, Up, ring
from tests.runtime.samehosts import first_frame, frames_of, linked, process
from tests.runtime.transports import LONG, came, is_down, wait_for

ROOT = Path(__file__).parents[2]
LISTENS = """
import sys
from ruvrun.transport.outgoing import Timing
from ruvrun.transport.samehost import SameHost
listener = SameHost("b", ["a", "b"])
listener.bind("local", int(sys.argv[1]))
print("listening", flush=True)
while True:
    listener.receive(None)
"""


def test_both_ends_talk_and_are_known_by_name() -> None:
    with linked() as (first, second, _):
        assert first.send(Peer("b"), [b"question"])
        question = wait_for(second, came)
        assert isinstance(question, Came)
        assert question.peer.node == "a"
        assert question.peer.link
        assert second.send(question.peer, [b"answer"])
        assert first.receive(LONG) == [Came(Peer("b"), [b"answer"])]


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [bytes(ring.LARGEST)],
        [bytes(ring.LARGEST + 1)],
        [b"head", b"", b"body" * 3, memoryview(bytes(range(256)) * 8192)],
        [b"head", memoryview(array.array("d", [1.5, 2.5]))],
    ],
)
def test_a_frame_arrives_as_it_was_sent(parts: Sequence[Buffer]) -> None:
    with linked() as (first, second, _):
        assert first.send(Peer("b"), parts)
        assert first_frame(second) == [bytes(part) for part in parts]


def test_parts_that_come_as_memory_begin_where_kernels_want_them() -> None:
    with linked() as (first, second, _):
        first.send(Peer("b"), [b"odd", bytes(100_001), bytes(8)])
        frame = wait_for(second, came)
        assert isinstance(frame, Came)
        assert [np.frombuffer(part, np.uint8).ctypes.data % 64 for part in frame.parts] == [0, 0, 0]


def test_what_was_sent_is_the_senders_again() -> None:
    with linked() as (first, second, _):
        for size in (10, 100_000):
            buffer = bytearray(b"1" * size)
            first.send(Peer("b"), [buffer])
            buffer[:] = b"2" * size
            assert first_frame(second) == [b"1" * size]


def test_a_receiver_that_does_not_read_holds_nobody_up_and_loses_nothing() -> None:
    """Many times what a socket holds, small and large in turn, before the first is read."""
    sent = [[b"%d" % number * 5000] if number % 3 else [b"head", bytes(200_000)] for number in range(300)]
    with linked() as (first, second, _):
        for parts in sent:
            assert first.send(Peer("b"), parts)
        arrived: list[Sequence[Buffer]] = []
        until = time.monotonic() + LONG
        while len(arrived) < len(sent) and time.monotonic() < until:
            first.receive(0)  # what had no room goes out here
            arrived += [event.parts for event in second.receive(0.01) if isinstance(event, Came)]
        assert [[bytes(part) for part in parts] for parts in arrived] == sent


def test_a_link_whose_other_end_does_not_read_takes_so_many_frames_and_none_more() -> None:
    with process("a", queue=5) as first, process("b") as second:
        number = second.bind("local", secrets.randbits(62))
        first.connect("b", "local", number)
        assert first.receive(LONG) == [Up("b")]
        sent = 0
        while first.send(Peer("b"), [b"%d," % sent + bytes(50_000)]):
            sent += 1
        assert sent == ring.SLOTS + 5
        coming = threading.Thread(target=lambda: [first.receive(0.05) for _ in range(40)])
        coming.start()
        frames = frames_of(second)
        assert [int(next(frames)[0].split(b",")[0]) for _ in range(sent)] == list(range(sent))
        coming.join()


def test_last_words_leave_even_through_a_full_socket() -> None:
    with linked() as (first, second, _):
        count = next(number for number in itertools.count() if not first.send(Peer("b"), [bytes(60_000)]))
        reader = frames_of(second)
        read: list[list[bytes]] = []
        thread = threading.Thread(target=lambda: read.extend(itertools.islice(reader, count)))
        thread.start()
        first.close(grace=LONG)
        thread.join(LONG)
        assert len(read) == count


def test_whoever_listens_later_is_found() -> None:
    number = secrets.randbits(62)
    with process("a") as first, process("b") as second:
        first.connect("b", "local", number)
        assert first.receive(0) == []
        second.bind("local", number)
        assert first.receive(LONG) == [Up("b")]


def test_a_loss_is_told_and_a_new_link_begins_empty() -> None:
    with process("a") as first:
        number = secrets.randbits(62)
        with process("b") as second:
            second.bind("local", number)
            first.connect("b", "local", number)
            assert first.receive(LONG) == [Up("b")]
            first.send(Peer("b"), [b"old"])
        assert first.receive(LONG) == [Down("b", "the connection was lost")]
        assert not first.send(Peer("b"), [b"lost"])
        with process("b") as second:
            second.bind("local", number)
            first.connect("b", "local", number)
            assert first.receive(LONG) == [Up("b")]
            first.send(Peer("b"), [b"new"])
            assert first_frame(second) == [b"new"]


def test_connecting_again_replaces_the_link() -> None:
    with linked() as (first, second, number):
        first.send(Peer("b"), [b"one"])
        assert first_frame(second) == [b"one"]
        first.connect("b", "local", number)
        assert first.receive(LONG) == [Up("b")]
        first.send(Peer("b"), [b"two"])
        assert first_frame(second) == [b"two"]


@pytest.mark.parametrize(
    ("how", "why"), [(signal.SIGKILL, "the connection was lost"), (signal.SIGSTOP, "it is stopped")]
)
def test_a_process_that_is_killed_or_stopped_is_lost(how: signal.Signals, why: str) -> None:
    number = secrets.randbits(62)
    argv = [sys.executable, "-c", LISTENS, str(number)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as listener, process("a") as first:
        try:
            assert listener.stdout is not None
            assert listener.stdout.readline() == b"listening\n"
            first.connect("b", "local", number)
            assert first.receive(LONG) == [Up("b")]
            listener.send_signal(how)
            assert wait_for(first, is_down) == Down("b", why)
        finally:
            listener.kill()


def test_what_was_said_before_the_end_still_counts() -> None:
    """Its words lie in memory that both have, and are read although whoever said them is gone."""
    with process("b") as second:
        number = second.bind("local", secrets.randbits(62))
        with process("a") as first:
            first.connect("b", "local", number)
            for parts in ([b"one"], [b"two", bytes(100_000)], [b"three"]):
                first.send(Peer("b"), parts)
        frames = frames_of(second)
        assert [next(frames)[0] for _ in range(3)] == [b"one", b"two", b"three"]


def test_a_frame_of_very_many_parts_arrives() -> None:
    """As a long sequence of tensors is."""
    parts = [b"head", *(b"%d" % number for number in range(3000))]
    with linked() as (first, second, _):
        assert first.send(Peer("b"), parts)
        assert first_frame(second) == parts


def test_many_wakes_are_one() -> None:
    with process("a") as first:
        for _ in range(100):
            first.wake()
        assert first.receive(LONG) == []
        assert first.receive(0) == []
    first.wake()
    first.close()
