"""The ZeroMQ transport against real sockets: who is admitted, what a stranger gets, and what a loss looks like."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from ruvrun.errors import InputError, IntegrityError, MachineError
from ruvrun.transport import Came, Down, Event, Peer, Transport, Up
from ruvrun.transport.keys import KeyPair, make_keypair, read_keys, write_keys
from ruvrun.transport.memory import Wire
from ruvrun.transport.outgoing import Timing
from ruvrun.transport.zeromq import ZeroMq

LONG = 20.0  # a safety net: nothing below waits for a time to pass
A, B, STRANGER = make_keypair(), make_keypair(), make_keypair()
KNOWN = {"a": A.public, "b": B.public}
QUICK = Timing(beat=0.1, silence=0.3, handshake=0.5, connect=0.5, retry=(0.02, 0.1))


@contextlib.contextmanager
def sockets(keys: KeyPair, known: dict[str, str] | None = None, **options: object) -> Iterator[ZeroMq]:
    transport = ZeroMq(keys, known or KNOWN, timing=QUICK, **options)  # type: ignore[arg-type] # a test's options
    try:
        yield transport
    finally:
        transport.close()


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


@contextlib.contextmanager
def linked() -> Iterator[tuple[ZeroMq, ZeroMq, int]]:
    """``a`` connected to ``b``, and b's port."""
    with sockets(A) as first, sockets(B) as second:
        port = second.bind("127.0.0.1", 0)
        first.connect("b", "127.0.0.1", port)
        assert wait_for(first, is_up) == Up("b")
        yield first, second, port


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


def nothing_comes(transport: Transport, proof: ZeroMq, port: int) -> None:
    """A peer with a good key gets through afterwards, and nothing came before it."""
    proof.connect("b", "127.0.0.1", port)
    wait_for(proof, is_up)
    proof.send(Peer("b"), [b"good"])
    assert texts(wait_for(transport, came)) == [b"good"]


def test_a_key_that_is_not_of_the_fleet_gets_nothing_and_is_told_why() -> None:
    with sockets(B) as second, sockets(STRANGER) as stranger, sockets(A) as first:
        port = second.bind("127.0.0.1", 0)
        stranger.connect("b", "127.0.0.1", port)
        assert wait_for(stranger, is_down) == Down("b", "it does not know this node's key", refused=True)
        assert not stranger.send(Peer("b"), [b"evil"])
        nothing_comes(second, first, port)


def test_a_bare_socket_with_a_fresh_key_gets_nothing() -> None:
    """What a stranger would really use: no code of ours on its side."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    with sockets(B) as second, sockets(A) as first:
        port = second.bind("127.0.0.1", 0)
        dealer.linger = 0
        dealer.curve_serverkey = B.public.encode()
        dealer.curve_publickey, dealer.curve_secretkey = STRANGER.public.encode(), STRANGER.secret.encode()
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart([b"evil"])
        nothing_comes(second, first, port)
        assert not dealer.poll(0)
    context.destroy()


@pytest.mark.parametrize("mechanism", ["none", "plain"])
def test_a_peer_without_encryption_gets_nothing(mechanism: str) -> None:
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    with sockets(B) as second, sockets(A) as first:
        port = second.bind("127.0.0.1", 0)
        dealer.linger = 0
        if mechanism == "plain":
            dealer.plain_username, dealer.plain_password = b"a", b"a"
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart([b"evil"])
        nothing_comes(second, first, port)
        assert not dealer.poll(0)
    context.destroy()


def test_a_listener_with_another_key_than_the_manifest_says_is_not_believed() -> None:
    with sockets(STRANGER, {"a": A.public}) as impostor, sockets(A) as first:
        port = impostor.bind("127.0.0.1", 0)
        first.connect("b", "127.0.0.1", port)
        for _ in range(10):
            assert not any(map(is_up, first.receive(0.02)))
        assert not first.send(Peer("b"), [b"secret"])


def test_a_peer_that_never_finishes_its_handshake_is_dropped() -> None:
    with sockets(B) as second, socket.socket() as raw:
        port = second.bind("127.0.0.1", 0)
        raw.connect(("127.0.0.1", port))
        raw.settimeout(LONG)
        while raw.recv(4096):  # ZeroMQ's greeting, and then the end
            pass


def test_a_stranger_cannot_make_us_allocate() -> None:
    """A part larger than the limit ends the connection, even though its sender is one of the fleet."""
    with sockets(B, largest=1000) as second, sockets(A) as first:
        port = second.bind("127.0.0.1", 0)
        first.connect("b", "127.0.0.1", port)
        wait_for(first, is_up)
        first.send(Peer("b"), [b"x" * 100_000])
        assert isinstance(wait_for(first, is_down), Down)
        nothing_comes(second, first, port)


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


def test_no_peer_may_call_itself_the_waker() -> None:
    """A routing id that is in use is refused, so a wake never comes from outside."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    with sockets(B) as second, sockets(A) as first:
        port = second.bind("127.0.0.1", 0)
        dealer.linger = 0
        dealer.routing_id = b"wake"
        dealer.curve_serverkey = B.public.encode()
        dealer.curve_publickey, dealer.curve_secretkey = A.public.encode(), A.secret.encode()
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart([b"one", b"two"])
        nothing_comes(second, first, port)
    context.destroy()


def test_a_name_nobody_knows() -> None:
    with sockets(A) as first:
        first.connect("b", "no-such-host.invalid", 7070)
        assert wait_for(first, is_down) == Down("b", "the name no-such-host.invalid is not known")


def test_a_name_is_looked_up() -> None:
    with sockets(A) as first, sockets(B) as second:
        port = second.bind("localhost", 0)
        first.connect("b", "localhost", port)
        assert wait_for(first, is_up) == Up("b")


def test_loopback_is_not_open_to_the_network() -> None:
    with sockets(B) as second:
        port = second.bind("127.0.0.1", 0)
        with socket.socket() as other:
            other.bind(("127.0.0.2", port))  # would be taken if we listened on every address


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, sockets(B) as second:
        with pytest.raises(MachineError) as caught:
            second.bind("127.0.0.1", holder.getsockname()[1])
        assert caught.value.ref == "port-taken"
        assert caught.value.exit_code == 7


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


def test_closing_twice_and_with_last_words() -> None:
    with linked() as (first, second, _):
        first.send(Peer("b"), [b"last words"])
        first.close(grace=LONG)
        first.close()
        assert texts(wait_for(second, came)) == [b"last words"]


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


def test_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "link.key"
    write_keys(path, A)
    assert path.read_text() == f"{A.public}\n{A.secret}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_keys(path) == A
    write_keys(path, B)
    assert read_keys(path) == B
    assert [one.name for one in tmp_path.iterdir()] == ["link.key"]
    assert A.secret not in repr(A)


@pytest.mark.parametrize(
    ("text", "mode", "kind", "ref"),
    [
        (None, 0o600, InputError, "key-missing"),
        ("", 0o600, InputError, "key-wrong"),
        ("a key\n", 0o600, InputError, "key-wrong"),
        ("\xff", 0o600, InputError, "key-wrong"),
        (f"{A.public}\n{A.secret}\n", 0o644, IntegrityError, "key-exposed"),
        (f"{B.public}\n{A.secret}\n", 0o600, IntegrityError, "key-pair-wrong"),
        (f"{A.public}\n{'~' * 40}\n", 0o600, IntegrityError, "key-pair-wrong"),
    ],
)
def test_a_key_file_that_is_none(tmp_path: Path, text: str | None, mode: int, kind: type, ref: str) -> None:
    path = tmp_path / "link.key"
    if text is not None:
        path.write_text(text, "latin-1")
        path.chmod(mode)
    with pytest.raises(kind) as caught:
        read_keys(path)
    assert caught.value.ref == ref
    assert A.secret not in str(caught.value)
