"""Every stage's counters: asked for in one thread, gathered in that of the driver, as the stages answer."""

from __future__ import annotations

import threading

from ruvrun.frames import Counters


class Tally:
    """Counters of so many stages. ``begin``, ``note`` and ``found`` are called under the driver's lock.

    Attributes:
        due: whether the stages have to be asked, and are to reset their counters; None: neither.
    """

    def __init__(self, stages: int) -> None:
        self.due: bool | None = None
        self._stages = stages
        self._found: dict[str, Counters] = {}
        self._complete = threading.Event()

    def begin(self, reset: bool) -> None:
        """Forget what was told; the stages are to be asked."""
        self._found = {}
        self._complete.clear()
        self.due = reset

    def note(self, counters: Counters) -> None:
        """A stage has answered."""
        self._found[counters.node] = counters
        if len(self._found) == self._stages:
            self._complete.set()

    def wait(self, timeout: float) -> None:
        """Wait until all have, but no longer than ``timeout`` seconds."""
        self._complete.wait(timeout)

    def found(self) -> dict[str, Counters]:
        """What has been told until now, by node name."""
        return dict(self._found)
