"""The edge where parts become packets: six methods, so that the code above runs over sockets or over memory.

A transport gives every process one place where peers connect to it (``bind``), and lets it connect to peers. It
carries lists of parts whole or not at all, keeps their order, tells when an outgoing link stands and when it is gone
(``Up``, ``Down``), and knows each peer by the name that belongs to its key. It never blocks except in ``receive``.

It does not repair: after ``Down`` a link is dead until ``connect`` makes a new one, which begins with empty queues.
So nothing of an old link is ever delivered on a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ruvrun.frames import Buffer


class Peer(msgspec.Struct, frozen=True):
    """A way to a peer: the node that its key belongs to, and which of its connections.

    ``link`` is empty for our own connection to that node.
    """

    node: str
    link: bytes = b""


class Came(msgspec.Struct, frozen=True):
    """A frame came from ``peer``."""

    peer: Peer
    parts: Sequence[Buffer]


class Up(msgspec.Struct, frozen=True):
    """Our link to ``node`` stands: keys are exchanged, nothing has been said yet."""

    node: str


class Down(msgspec.Struct, frozen=True):
    """Our link to ``node`` is gone; ``why`` completes "lost: node, ...". ``refused`` if it never stood, because the
    peer does not want our key.
    """

    node: str
    why: str
    refused: bool = False


Event = Came | Up | Down


class Transport(Protocol):
    """All methods but ``wake`` belong to one thread."""

    def bind(self, host: str, port: int) -> int:
        """Listen; returns the port, which is chosen where 0 was asked for.

        Raises:
            MachineError: the port is taken, or not ours to take.
        """

    def connect(self, node: str, host: str, port: int) -> None:
        """Begin to connect to ``node``, and keep trying until it is there; an earlier link to it is dropped."""

    def send(self, peer: Peer, parts: Sequence[Buffer]) -> bool:
        """Send a frame; the parts are free to change afterwards. False where it cannot go: no link, or no room."""

    def receive(self, timeout: float | None) -> list[Event]:
        """What happened, in order; waits up to ``timeout`` seconds (None: for ever) for the first, or for ``wake``."""

    def wake(self) -> None:
        """Make ``receive`` return. Safe in any thread, also after ``close``."""

    def close(self, grace: float = 0.0) -> None:
        """Close everything; what was sent gets ``grace`` seconds to leave."""


__all__ = ["Came", "Down", "Event", "Peer", "Transport", "Up"]
