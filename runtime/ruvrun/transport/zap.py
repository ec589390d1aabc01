"""Who may connect: the answer to ZeroMQ's question about every peer's key (ZAP, RFC 27).

CURVE proves that a peer holds the secret of the public key it shows, and nothing more: without this, a stranger with
a fresh key pair would be admitted. ZeroMQ asks over a socket inside the process, once per handshake, and lets nobody
in before the answer. The answer names the node that the key belongs to; every message of that connection then
carries the name, and no peer can claim another.

The questions are answered by a thread of its own, because a stage that is busy or loading must still let its peers
connect. It sleeps except during handshakes, and ends with the context.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import zmq
import zmq.utils.z85

DOMAIN = b"ruvrun"
_ENDPOINT = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


def start_zap(context: zmq.Context[zmq.Socket[bytes]], admitted: Mapping[str, str]) -> threading.Thread:
    """Answer for ``context`` from now on; returns once the socket is bound, so that no socket can be open before.

    Args:
        context: ends the thread when it is terminated.
        admitted: public key (Z85) to the name of the node it belongs to.
    """
    names = {zmq.utils.z85.decode(key.encode()): node for key, node in admitted.items()}
    socket = context.socket(zmq.REP)
    socket.linger = 0
    socket.bind(_ENDPOINT)
    thread = threading.Thread(target=_answer, args=(socket, names), name="zap", daemon=True)
    thread.start()
    return thread


def _answer(socket: zmq.Socket[bytes], names: Mapping[bytes, str]) -> None:
    try:
        while True:
            socket.send_multipart(_reply(socket.recv_multipart(), names))
    except zmq.ContextTerminated:
        socket.close()


def _reply(question: list[bytes], names: Mapping[bytes, str]) -> list[bytes]:
    version, request, domain, _address, _identity, mechanism, *credentials = question
    node = names.get(credentials[0]) if mechanism == b"CURVE" and len(credentials) == 1 else None
    if version != _VERSION or domain != DOMAIN or node is None:
        return [_VERSION, request, b"400", b"this key is not one of the fleet", b"", b""]
    return [_VERSION, request, b"200", b"", node.encode(), b""]
