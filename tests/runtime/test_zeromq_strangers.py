"""The ZeroMQ transport against real sockets of others: who is admitted, and what a stranger gets, which is nothing."""

from __future__ import annotations

import socket

import pytest
import zmq

from ruvrun.transport import Down, Peer
from tests.runtime.transports import LONG, is_down, is_up, wait_for
from tests.runtime.zeromqs import STRANGER, A, B, nothing_comes, sockets


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


def test_loopback_is_not_open_to_the_network() -> None:
    with sockets(B) as second:
        port = second.bind("127.0.0.1", 0)
        with socket.socket() as other:
            other.bind(("127.0.0.2", port))  # would be taken if we listened on every address
