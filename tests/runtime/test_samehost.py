"""Links between processes of one machine, against real sockets: who is let in, what arrives, what a loss looks like."""

from __future__ import annotations

import array
import contextlib
import errno
import itertools
import os
import resource
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ruvrun.errors import MachineError
from ruvrun.frames import Buffer
from ruvrun.transport import Came, Down, Peer, Up, packets, ring
from ruvrun.transport.connection import address_of
from ruvrun.transport.samehost import SameHost
from tests.runtime.samehosts import (
    LONG,
    QUICK,
    calling,
    first_frame,
    frames_of,
    is_down,
    linked,
    process,
    wait_for,
)

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
        came = wait_for(second, lambda event: isinstance(event, Came))
        assert isinstance(came, Came)
        assert came.peer.node == "a"
        assert came.peer.link
        assert second.send(came.peer, [b"answer"])
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
        came = wait_for(second, lambda event: isinstance(event, Came))
        assert isinstance(came, Came)
        import numpy as np

        assert [np.frombuffer(part, np.uint8).ctypes.data % 64 for part in came.parts] == [0, 0, 0]


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
        import threading

        read: list[list[bytes]] = []
        thread = threading.Thread(target=lambda: read.extend(itertools.islice(reader, count)))
        thread.start()
        first.close(grace=LONG)
        thread.join(LONG)
        assert len(read) == count


def test_a_node_nobody_knows_gets_nothing() -> None:
    with process("b") as second, SameHostOf("stranger") as stranger, process("a") as first:
        number = second.bind("local", secrets.randbits(62))
        stranger.connect("b", "local", number)
        assert stranger.receive(LONG) == [Up("b")]
        stranger.send(Peer("b"), [b"evil"])
        first.connect("b", "local", number)
        first.send(Peer("b"), [b"good"])
        assert first_frame(second) == [b"good"]
        assert wait_for(stranger, is_down) == Down("b", "the connection was lost")


@contextlib.contextmanager
def SameHostOf(node: str) -> Iterator[SameHost]:  # noqa: N802 - stands for the class
    transport = SameHost(node, ["a", "b", node], timing=QUICK)
    try:
        yield transport
    finally:
        transport.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_gets_nothing_and_is_not_believed() -> None:
    number = secrets.randbits(62)
    with process("b") as second, process("a") as first:
        second.bind("local", number)
        code = (
            "import os, socket, sys; os.setuid(65534);"
            "made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); made.connect('\\0' + sys.argv[1]);"
            "made.settimeout(20); sys.exit(made.recv(1) != b'')"
        )
        evil = subprocess.Popen([sys.executable, "-c", code, address_of(number)[1:]])
        until = time.monotonic() + LONG
        while evil.poll() is None and time.monotonic() < until:
            assert second.receive(0.1) == []
        assert evil.returncode == 0, "it was not hung up on"
        taken = secrets.randbits(62)
        code = (
            "import os, socket, sys; os.setuid(65534);"
            "made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); made.bind('\\0' + sys.argv[1]);"
            "made.listen(); print('there', flush=True); made.accept()[0].recv(1)"
        )
        argv = [sys.executable, "-c", code, address_of(taken)[1:]]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as squatter:
            assert squatter.stdout is not None
            assert squatter.stdout.readline() == b"there\n"
            first.connect("b", "local", taken)
            assert first.receive(LONG) == [Down("b", "another user's process listens there", refused=True)]


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


def test_two_processes_cannot_listen_in_one_place() -> None:
    with process("a") as first, process("b") as second:
        number = first.bind("local", secrets.randbits(62))
        with pytest.raises(MachineError, match="another process"):
            second.bind("local", number)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing in this process can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_frame_that_cannot_leave_ends_the_link_and_no_process() -> None:
    """A frame lost in silence would be waited for until a deadline, and an exception would end the head."""
    with linked() as (first, second, number):
        assert first.send(Peer("b"), [b"before"])
        with no_more_files():
            assert not first.send(Peer("b"), [b"head", bytes(ring.LARGEST)])
        assert first_frame(second) == [b"before"]
        assert wait_for(first, is_down) == Down("b", "the connection was lost")
        first.connect("b", "local", number)
        assert wait_for(first, lambda event: isinstance(event, Up)) == Up("b")
        assert first.send(Peer("b"), [b"after", bytes(ring.LARGEST)])
        assert first_frame(second) == [b"after", bytes(ring.LARGEST)]


def test_a_frame_that_waits_and_cannot_leave_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many descriptors may be on their way as a process may have open, and there are many frames in a full queue."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ETOOMANYREFS, "too many references: cannot splice")

    with linked() as (first, second, number):
        for _ in range(50):  # more than the ring holds
            assert first.send(Peer("b"), [b"head", bytes(60_000)])
        with monkeypatch.context() as patch:
            patch.setattr(packets, "hand", refuse)
            while second.receive(0):
                pass
            assert wait_for(first, is_down) == Down("b", "the connection was lost")
        first.connect("b", "local", number)
        assert wait_for(first, lambda event: isinstance(event, Up)) == Up("b")


def test_where_nobody_can_be_let_in_it_is_tried_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with linked() as (_, second, number):
        tried: list[int] = []
        accept = SameHost._accept

        def counted(self: SameHost) -> None:
            tried.append(1)
            accept(self)

        monkeypatch.setattr(SameHost, "_accept", counted)
        with calling(number) as (_, sending):
            sending.put(ring.FRAME, b"hello")
            with no_more_files():
                assert second.receive(2 * QUICK.beat) == []
            assert 0 < len(tried) < 10
            assert first_frame(second) == [b"hello"]


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


def test_a_node_is_called_again_once_there_is_room() -> None:
    with process("a") as first, process("b") as second:
        number = second.bind("local", secrets.randbits(62))
        with no_more_files():
            first.connect("b", "local", number)
            assert first.receive(0) == []
        assert first.receive(LONG) == [Up("b")]


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
