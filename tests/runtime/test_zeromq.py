"""The ZeroMQ transport between nodes of one fleet, against real sockets: what arrives, and what a loss looks like."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from ruvrun.errors import MachineError
from ruvrun.transport import Came, Down, Peer, Up
from ruvrun.transport.outgoing import Timing
from ruvrun.transport.zeromq import ZeroMq
from tests.runtime.fake_ring import wait_until
from tests.runtime.transports import LONG, came, is_down, is_up, texts, wait_for
from tests.runtime.zeromqs import KNOWN, A, B, linked, sockets


def test_known_keys_talk_and_are_known_by_name() -> None:
    with linked() as (first, second, _):
        assert first.send(Peer("b"), [b"head", memoryview(b"body"), b""])
        event = wait_for(second, came)
        assert texts(event) == [b"head", b"body", b""]
        assert isinstance(event, Came)
        assert event.peer.node == "a"
        assert event.peer.link
        assert second.send(event.peer, [b"answer"])
        answer = wait_for(first, came)
        assert (answer.peer, texts(answer)) == (Peer("b"), [b"answer"])  # type: ignore[union-attr] # it is a Came


def test_frames_keep_their_order_and_their_bytes() -> None:
    with linked() as (first, second, _):
        for number in range(200):
            buffer = bytearray(b"%d" % number)
            assert first.send(Peer("b"), [buffer])
            buffer[:] = b"x" * len(buffer)  # what was sent is the sender's again
        assert [texts(wait_for(second, came)) for _ in range(200)] == [[b"%d" % number] for number in range(200)]


def test_a_large_part_arrives_whole() -> None:
    body = bytes(range(256)) * 8192
    with linked() as (first, second, _):
        first.send(Peer("b"), [b"h", body])
        assert texts(wait_for(second, came)) == [b"h", body]


def test_a_peer_that_does_not_read_holds_no_more_than_the_high_water_marks() -> None:
    """Of both ends, and what fits between them; then sends are refused, until it reads again. Nothing is lost."""
    with (
        contextlib.closing(ZeroMq(A, KNOWN, queue=5)) as first,
        contextlib.closing(ZeroMq(B, KNOWN, queue=5)) as second,
    ):
        first.connect("b", "127.0.0.1", second.bind("127.0.0.1", 0))
        wait_for(first, is_up)
        sent, refused = 0, 0
        while refused < 50:  # what is under way to the other end makes room here
            if first.send(Peer("b"), [b"%d" % sent, bytes(1 << 20)]):
                sent, refused = sent + 1, 0
                assert sent < 60, "there is no mark, or it is not kept"
            else:
                refused += 1
                time.sleep(0.002)
        assert sent >= 10
        assert [texts(wait_for(second, came))[0] for _ in range(sent)] == [b"%d" % number for number in range(sent)]
        wait_until(lambda: first.send(Peer("b"), [b"again"]))
        assert texts(wait_for(second, came)) == [b"again"]


def test_a_loss_is_told_and_a_new_link_begins_empty() -> None:
    with sockets(A) as first:
        with sockets(B) as second:
            port = second.bind("127.0.0.1", 0)
            first.connect("b", "127.0.0.1", port)
            wait_for(first, is_up)
        assert wait_for(first, is_down) == Down("b", "the connection was lost")
        assert not first.send(Peer("b"), [b"into the void"])
        first.connect("b", "127.0.0.1", port)  # nobody is there yet
        assert not first.send(Peer("b"), [b"into the void"])
        with sockets(B) as second:
            second.bind("127.0.0.1", port)
            wait_for(first, is_up)
            first.send(Peer("b"), [b"new"])
            assert texts(wait_for(second, came)) == [b"new"]


def test_connecting_again_replaces_the_link() -> None:
    with linked() as (first, second, port):
        first.send(Peer("b"), [b"one"])
        one = wait_for(second, came)
        first.connect("b", "127.0.0.1", port)
        wait_for(first, is_up)
        first.send(Peer("b"), [b"two"])
        two = wait_for(second, came)
        assert isinstance(one, Came)
        assert isinstance(two, Came)
        assert one.peer.node == two.peer.node
        assert one.peer.link != two.peer.link
        second.send(one.peer, [b"to the old one"])
        second.send(two.peer, [b"to the new one"])
        assert texts(wait_for(first, came)) == [b"to the new one"]


def test_a_peer_that_falls_silent_is_lost() -> None:
    """A relay between the two stops passing anything on, while both connections stay open."""
    with sockets(B) as second, sockets(A) as first, socket.create_server(("127.0.0.1", 0)) as relay:
        port = second.bind("127.0.0.1", 0)
        silent = threading.Event()
        threading.Thread(target=pass_on, args=(relay, port, silent), daemon=True).start()
        first.connect("b", "127.0.0.1", relay.getsockname()[1])
        wait_for(first, is_up)
        silent.set()
        began = time.monotonic()
        assert wait_for(first, is_down) == Down("b", "the connection was lost")
        assert time.monotonic() - began < LONG / 2


def pass_on(relay: socket.socket, port: int, silent: threading.Event) -> None:
    near, _ = relay.accept()
    far = socket.create_connection(("127.0.0.1", port))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if not silent.is_set():
                    sink.sendall(piece)

    threading.Thread(target=pump, args=(far, near), daemon=True).start()
    pump(near, far)


def test_the_defaults_notice_a_silent_host_within_six_seconds() -> None:
    timing = Timing()
    assert timing.beat + timing.silence <= 5.5


def test_a_loss_is_told_while_others_keep_talking() -> None:
    """The busy socket is looked at first, but not for ever."""
    with sockets(A) as first, sockets(B) as second, sockets(B) as talker:
        port = first.bind("127.0.0.1", 0)
        first.connect("b", "127.0.0.1", second.bind("127.0.0.1", 0))
        wait_for(first, is_up)
        talker.connect("a", "127.0.0.1", port)
        wait_for(talker, is_up)
        talking = True

        def talk() -> None:
            while talking:
                talker.send(Peer("a"), [b"and another thing"])
                talker.receive(0.001)

        thread = threading.Thread(target=talk)
        thread.start()
        wait_for(first, came)
        second.close()
        assert wait_for(first, is_down) == Down("b", "the connection was lost")
        talking = False
        thread.join()


def test_a_wait_ends_on_time_after_a_frame() -> None:
    with linked() as (first, second, _):
        first.send(Peer("b"), [b"x"])
        wait_for(second, came)
        for timeout in (0.0, 0.01, 0.1):
            assert second.receive(timeout) == []


def test_many_wakes_are_one() -> None:
    with linked() as (first, second, _):
        first.send(Peer("b"), [b"x"])
        wait_for(second, came)
        for _ in range(5000):
            second.wake()
        assert second.receive(LONG) == []
        assert second.receive(0.0) == []
        first.send(Peer("b"), [b"y"])
        assert texts(second.receive(LONG)[0]) == [b"y"]


def test_a_name_nobody_knows() -> None:
    with sockets(A) as first:
        first.connect("b", "no-such-host.invalid", 7070)
        assert wait_for(first, is_down) == Down("b", "the name no-such-host.invalid is not known")


def test_a_name_is_looked_up() -> None:
    with sockets(A) as first, sockets(B) as second:
        port = second.bind("localhost", 0)
        first.connect("b", "localhost", port)
        assert wait_for(first, is_up) == Up("b")


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, sockets(B) as second:
        with pytest.raises(MachineError) as caught:
            second.bind("127.0.0.1", holder.getsockname()[1])
        assert caught.value.ref == "port-taken"
        assert caught.value.exit_code == 7


def test_closing_twice_and_with_last_words() -> None:
    with linked() as (first, second, _):
        first.send(Peer("b"), [b"last words"])
        first.close(grace=LONG)
        first.close()
        assert texts(wait_for(second, came)) == [b"last words"]
