"""Calls of a graph pipeline: what the engine is for decoders, for graphs that keep no state between calls.

A call is one message around the ring. As many as the window allows are under way, the others wait their turn.
Numbers and epochs are as in the engine: every message of an epoch is counted from 0, ``lose`` begins the next.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ruvrun.elements import Tensors, Value, copied
from ruvrun.errors import InputError, UnreachableError
from ruvrun.frames import Run


@dataclass(frozen=True)
class Call:
    """One call, where its outputs go, and how often it was in a ring that was lost."""

    id: int
    tensors: Tensors
    result: Future[dict[str, Value]]
    losses: int = 0

    def fail(self, error: UnreachableError) -> None:
        """End without outputs."""
        if self.result.set_running_or_notify_cancel():
            self.result.set_exception(error)


class Calls:
    """All calls of one pipeline.

    Args:
        stages: stages of the pipeline.
        epoch: the first epoch, above any that the stages have seen.
        largest: bytes of the largest tensor that a link carries.
    """

    def __init__(self, *, stages: int, epoch: int = 1, largest: int = sys.maxsize) -> None:
        self._largest = largest
        self.window = 2 * stages
        self.epoch = epoch
        self._numbered = 0
        self._waiting: deque[Call] = deque()
        self._flying: dict[int, Call] = {}

    @property
    def running(self) -> int:
        """Calls in the ring."""
        return len(self._flying)

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._waiting)

    @property
    def first_waiting(self) -> int | None:
        """The call that waits the longest."""
        return self._waiting[0].id if self._waiting else None

    @property
    def has_room(self) -> bool:
        """Whether one more call would go at once."""
        return len(self._flying) + len(self._waiting) < self.window

    def withdraw(self) -> Call:
        """Take back the call that waits the longest."""
        return self._waiting.popleft()

    def add(self, call: Call) -> None:
        """Take a call; first come, first served.

        Raises:
            InputError: one of its tensors is more than a link carries.
        """
        if why := too_large(call.tensors, self._largest):
            raise InputError("input-too-large", why, hint="send it in pieces, or export the model with its sizes fixed")
        self._waiting.append(call)

    def step(self) -> tuple[Run, Tensors] | None:
        """The next message to send, with its tensors; None when there is none until something returns."""
        while self._waiting and self._waiting[0].result.cancelled():  # who asked has gone
            self._waiting.popleft()
        if not self._waiting or len(self._flying) == self.window:
            return None
        call = self._waiting.popleft()
        self._flying[call.id] = call
        message = Run(self.epoch, self._numbered, call.id)
        self._numbered += 1
        return message, call.tensors

    def receive(self, message: Run, tensors: Tensors) -> None:
        """Take what returned; the arrays may be views of what will be overwritten."""
        call = self._flying.pop(message.id, None) if message.epoch == self.epoch else None
        if call is None or not call.result.set_running_or_notify_cancel():
            return
        if message.refused:
            call.result.set_exception(refusal(message))
        else:
            call.result.set_result({name: copied(value) for name, value in tensors.items()})

    def abandon(self) -> list[Call]:
        """A stage was lost: a new epoch begins without anyone. Whose calls were under way or waited is returned."""
        alive = [replace(call, losses=call.losses + 1) for call in self._flying.values()] + list(self._waiting)
        self._flying.clear()
        self._waiting.clear()
        self.epoch += 1
        self._numbered = 0
        return alive

    def lose(self, error: UnreachableError) -> None:
        """As ``abandon``, and every call ends with ``error``."""
        for call in self.abandon():
            call.fail(error)


def too_large(tensors: Tensors, largest: int) -> str:
    """Which of ``tensors`` no link carries, as a sentence; empty when they all may go.

    A peer ends the connection on which more comes than the manifest lets it expect, and with it all other calls.
    """
    for name, value in tensors.items():
        for array in value if isinstance(value, list) else [value]:
            if array is not None and array.nbytes > largest:
                return f"{name} has {array.nbytes} bytes, and a link of this build carries {largest} of a tensor"
    return ""


def refusal(message: Run) -> InputError:
    """What the caller of a refused call is told."""
    return InputError(
        "graph-run-failed",
        "the graph refused these inputs",
        context=[message.refused],
        hint="compare names, types and shapes with the model's",
    )
