"""Links between processes of one machine where something runs short: nothing can be opened, or handed over."""

from __future__ import annotations

import contextlib
import errno
import resource
import secrets
from collections.abc import Iterator

import pytest

from ruvrun.transport import Down, Peer, Up, packets, ring
from ruvrun.transport.samehost import SameHost
from tests.runtime.samehosts import QUICK, calling, first_frame, linked, process
from tests.runtime.transports import LONG, is_down, is_up, wait_for


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
        assert wait_for(first, is_up) == Up("b")
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
        assert wait_for(first, is_up) == Up("b")


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


def test_a_node_is_called_again_once_there_is_room() -> None:
    with process("a") as first, process("b") as second:
        number = second.bind("local", secrets.randbits(62))
        with no_more_files():
            first.connect("b", "local", number)
            assert first.receive(0) == []
        assert first.receive(LONG) == [Up("b")]
