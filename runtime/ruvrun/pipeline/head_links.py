"""What the driver needs of the links of the head, so that it runs over real ones (``ring``) and over none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ruvrun.elements import Tensors
from ruvrun.frames import Message, Ring


class HeadLinks(Protocol):
    """All methods but ``wake`` are called in the driver's thread only."""

    def connect(self) -> None:
        """Bind, and begin to connect to every stage; returns at once."""

    def poll(self, timeout: float | None) -> Sequence[tuple[Message, Tensors, int]]:
        """What came, as ``Ring.poll`` tells it."""

    def send(self, message: Ring, tensors: Tensors, pipeline: int) -> None:
        """Send to stage 0 of this pipeline; never blocks."""

    def ask(self, reset: bool) -> None:
        """Ask every stage for its counters; the answers come out of ``poll``."""

    def wake(self) -> None:
        """Make ``poll`` return. Safe in any thread."""

    def close(self) -> None:
        """Close every link."""
