"""How much of clients' bodies the head holds at a time, so that a crowd with large tensors cannot fill its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ruvrun.openai import ApiError


class BusyError(ApiError):
    """A refusal for lack of room, and in how many seconds there may be some."""

    def __init__(self, status: int, message: str, *, retry_after: int = 1) -> None:
        super().__init__(status, message, code="busy")
        self.retry_after = retry_after


class Room:
    """Bytes and requests that are in.

    Args:
        most_bytes: of all bodies together; one alone is let in whatever its size.
        most: requests at a time, those that wait for the pipeline included.
    """

    def __init__(self, most_bytes: int, most: int) -> None:
        self._most_bytes = most_bytes
        self._most = most
        self.bytes = 0
        self.requests = 0

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Hold ``size`` bytes for one request. Raises BusyError (503) where there is no room for it."""
        if self.requests and (self.requests >= self._most or self.bytes + size > self._most_bytes):
            raise BusyError(503, f"{self.requests} calls are waiting already, which is as many as there is room for.")
        self.bytes += size
        self.requests += 1
        try:
            yield
        finally:
            self.bytes -= size
            self.requests -= 1
