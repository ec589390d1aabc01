"""What every transport promises: that of tests, in memory, keeps it as the real ones do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ruvrun.transport import Came, Down, Peer, Transport, Up
from ruvrun.transport.memory import Wire
from ruvrun.transport.zeromq import ZeroMq
from tests.runtime.transports import LONG, texts
from tests.runtime.zeromqs import KNOWN, QUICK, A


def transports() -> list[Callable[[], Transport]]:
    return [lambda: ZeroMq(A, KNOWN, timing=QUICK), lambda: Wire().transport("a")]


@pytest.mark.parametrize("make", transports(), ids=["zeromq", "memory"])
def test_wake_ends_a_wait_from_any_thread(make: Callable[[], Transport]) -> None:
    transport = make()
    assert transport.receive(0.0) == []
    transport.wake()
    assert transport.receive(LONG) == []
    thread = threading.Thread(target=transport.wake)
    thread.start()
    assert transport.receive(None) == []
    thread.join()
    transport.close()
    transport.wake()  # a thread that comes late does no harm


def test_the_memory_double_keeps_the_promises() -> None:
    wire = Wire()
    first, second = wire.transport("a"), wire.transport("b")
    first.connect("b", "", 7)
    assert not first.send(Peer("b"), [b"too early"])
    second.bind("", 7)
    assert first.receive(0) == [Up("b")]
    first.send(Peer("b"), [b"one"])
    wire.cut(7)
    assert first.receive(0) == [Down("b", "the connection was lost")]
    first.connect("b", "", 7)
    assert first.receive(0) == []
    wire.mend(7)
    assert first.receive(0) == [Up("b")]
    first.send(Peer("b"), [b"two"])
    one, two = second.receive(0)
    assert (texts(one), texts(two)) == ([b"one"], [b"two"])
    assert isinstance(one, Came)
    assert isinstance(two, Came)
    assert not second.send(one.peer, [b"x"])
    assert second.send(two.peer, [b"y"])
    assert first.receive(0) == [Came(Peer("b"), [b"y"])]
    second.close()
    assert first.receive(0) == [Down("b", "the connection was lost")]
