"""What a stage counts while it works: seconds busy, seconds waiting between steps, and the time of a step."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

KEPT = 4096


class Meter:
    """Counters since the last reset. ``clock`` returns seconds.

    ``wait`` is the time between the end of one step and the start of the next, so neither the time before the
    first step nor that after the last one counts. A step that fails is not counted.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Count anew."""
        self.busy = 0.0
        self.wait = 0.0
        self.steps = 0
        self._ended: float | None = None
        self._times: deque[float] = deque(maxlen=KEPT)

    @property
    def step_ms(self) -> float:
        """Median milliseconds of a step, of the last 4,096; 0 before the first."""
        return statistics.median(self._times) * 1e3 if self._times else 0.0

    def start(self) -> float:
        """A step begins; what is returned goes into ``done``."""
        return self._clock()

    def done(self, start: float) -> None:
        """The step that began at ``start`` has ended well."""
        end = self._clock()
        if self._ended is not None:
            self.wait += start - self._ended
        self.busy += end - start
        self.steps += 1
        self._ended = end
        self._times.append(end - start)
