"""How many requests may wait for space, and how long one may take.

Requests are served in the order in which they came, and nobody is passed over, so who comes late waits for all who came
before. A queue without an end would promise what it cannot keep: its last client has long hung up when its turn comes.
So it has one, and who finds it full is told when to come again: a request ends every ``usual / running`` seconds, where
``usual`` is what requests took lately, and with it a place is free.

A deadline counts from the moment the request was read, time in the queue included. It ends the request wherever it
stands, and what it held is free at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ruvrun.openai import ApiError
from ruvrun.server.room import BusyError

TIMEOUT = "x-request-timeout"
_LONGEST_RETRY = 60
_LATELY = 0.1


@dataclass(frozen=True)
class Limits:
    """What a service bounds.

    Args:
        queue: requests that may wait for space; a request of several prompts counts each. None is any number.
        seconds: what a request may take at most; None is without end.
    """

    queue: int | None = None
    seconds: float | None = None

    def deadline(self, asked: str | None) -> float | None:
        """Seconds that a request gets which ``asked`` for so many in its header, ``X-Request-Timeout``.

        Raises:
            ApiError: 400, where that is no number above 0.
        """
        if asked is None:
            return self.seconds
        try:
            seconds = float(asked)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise ApiError(400, f"X-Request-Timeout must be a number of seconds above 0, not {asked[:40]!r}.")
        return seconds if self.seconds is None else min(seconds, self.seconds)


class Queue:
    """The end of the queue.

    Args:
        most: requests that may wait; None is any number.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._usual = 0.0

    def took(self, seconds: float) -> None:
        """A request was answered to its end in so many seconds."""
        self._usual += (seconds - self._usual) * (_LATELY if self._usual else 1.0)

    def check(self, load: tuple[int, int], more: int) -> None:
        """Whether ``more`` prompts may come where so many run and wait; the first to wait may bring any number.

        Raises:
            BusyError: 429, with the seconds after which a place should be free.
        """
        running, waiting = load
        if self._most is not None and waiting and waiting + more > self._most:
            seconds = math.ceil(self._usual / max(1, running))
            raise BusyError(
                429,
                f"{waiting} requests are waiting already, and at most {self._most} may.",
                retry_after=min(max(1, seconds), _LONGEST_RETRY),
            )
