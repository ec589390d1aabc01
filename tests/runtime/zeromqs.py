"""Nodes of a fleet with keys, as ZeroMQ transports in one test; and a stranger's key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ruvrun.transport import Peer, Transport, Up
from ruvrun.transport.keys import KeyPair, make_keypair
from ruvrun.transport.outgoing import Timing
from ruvrun.transport.zeromq import ZeroMq
from tests.runtime.transports import came, is_up, texts, wait_for

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


@contextlib.contextmanager
def linked() -> Iterator[tuple[ZeroMq, ZeroMq, int]]:
    """``a`` connected to ``b``, and b's port."""
    with sockets(A) as first, sockets(B) as second:
        port = second.bind("127.0.0.1", 0)
        first.connect("b", "127.0.0.1", port)
        assert wait_for(first, is_up) == Up("b")
        yield first, second, port


def nothing_comes(transport: Transport, proof: ZeroMq, port: int) -> None:
    """A peer with a good key gets through afterwards, and nothing came before it."""
    proof.connect("b", "127.0.0.1", port)
    wait_for(proof, is_up)
    proof.send(Peer("b"), [b"good"])
    assert texts(wait_for(transport, came)) == [b"good"]
