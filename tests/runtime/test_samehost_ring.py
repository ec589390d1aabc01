"""The ring between two processes of one machine, by itself: what goes in comes out, in order, while there is room."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.transport import ring


@contextlib.contextmanager
def both_ends() -> Iterator[tuple[ring.Sending, ring.Receiving]]:
    with contextlib.ExitStack() as stack:
        sending = stack.enter_context(contextlib.closing(ring.Sending()))
        yield sending, stack.enter_context(contextlib.closing(ring.Receiving(*map(os.dup, sending.handed))))


@dataclass(frozen=True)
class Put:
    kind: int
    data: bytes


class Wake:
    """Whatever is there is taken, and the receiver was woken where anything was put since it was the last time."""


class Take:
    """Whatever is there is taken, by one who looks unasked."""


_PUT = st.builds(Put, st.sampled_from([ring.FRAME, ring.LENGTHS]), st.binary(max_size=200))


@given(st.lists(_PUT | st.just(Wake()) | st.just(Take()), max_size=80))
def test_what_goes_in_comes_out_in_order_and_as_long_as_there_is_room(steps: list[Put | Wake | Take]) -> None:
    with both_ends() as (sending, receiving):
        inside: deque[tuple[int, bytes]] = deque()
        rung = False
        for step in [*steps, Take()]:
            if isinstance(step, Wake):
                assert receiving.take(rung) == [*inside]
                inside.clear()
                rung = False
            elif isinstance(step, Take):
                assert receiving.take() == [*inside]
                inside.clear()
            elif sending.put(step.kind, step.data):
                inside.append((step.kind, step.data))
                rung = True
            else:
                assert len(inside) > ring.SLOTS // 2
            assert len(inside) <= ring.SLOTS


def test_what_can_be_seen_before_it_is_counted_is_not_taken() -> None:
    """On some processors a number may be seen before the frame that it stands for is there."""
    with both_ends() as (sending, receiving):
        sending.put(ring.FRAME, b"one")
        assert receiving.take(1) == [(ring.FRAME, b"one")]
        sending.put(ring.FRAME, b"two")
        assert os.eventfd_read(sending.handed[1]) == 2  # as if neither were counted yet
        assert receiving.take() == []
        assert receiving.take(1) == [(ring.FRAME, b"two")]


def test_what_is_finished_while_it_is_looked_at_is_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is there, and what else stands before it is still the last frame's, until the bell is read."""
    with both_ends() as (sending, receiving):
        for _ in range(ring.SLOTS):
            sending.put(ring.LENGTHS, b"short")
            assert receiving.take(1) == [(ring.LENGTHS, b"short")]
        sending._memory[:8] = (ring.SLOTS + 1).to_bytes(8, "little")
        read = os.eventfd_read

        def finished(number: int) -> int:
            monkeypatch.undo()
            assert sending.put(ring.FRAME, b"one that is longer")
            return read(number)

        monkeypatch.setattr(os, "eventfd_read", finished)
        assert receiving.take() == [(ring.FRAME, b"one that is longer")]


def test_the_largest_fits_in_every_slot() -> None:
    with both_ends() as (sending, receiving):
        largest = [bytes([number]) * ring.LARGEST for number in range(2 * ring.SLOTS)]
        for data in largest:
            assert sending.put(ring.FRAME, data)
            assert receiving.take() == [(ring.FRAME, data)]


def test_a_full_ring_takes_no_more_until_it_was_read() -> None:
    with both_ends() as (sending, receiving):
        for _ in range(ring.SLOTS):
            assert sending.put(ring.FRAME, b"x")
        assert not sending.put(ring.FRAME, b"y")
        assert not sending.has_room()
        assert receiving.take() == [(ring.FRAME, b"x")] * ring.SLOTS
        assert sending.put(ring.FRAME, b"y")


def test_what_is_in_the_ring_outlives_its_sender() -> None:
    with contextlib.closing(ring.Sending()) as sending:
        handed = [*map(os.dup, sending.handed)]
        sending.put(ring.FRAME, b"last")
    with contextlib.closing(ring.Receiving(*handed)) as receiving:
        assert receiving.take() == [(ring.FRAME, b"last")]


def test_neither_end_can_cut_the_memory_short() -> None:
    with both_ends() as (sending, _), pytest.raises(PermissionError):
        os.ftruncate(sending.handed[0], 4096)
