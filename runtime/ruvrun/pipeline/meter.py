"""What a stage counts while it works: seconds busy, seconds waiting between steps, and the time of a step.

By the clock, and by what the thread had of its core: where processes take turns on one, the two are not the same, and
only the second is the stage's own.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

from ruvrun.frames import Counters

KEPT = 4096
SAMPLED = 5
"""Of one step in so many it is asked what the thread had: with cold caches, to ask the kernel takes 10 us. It is a
prime, so that it falls on each of several groups that take turns.
"""


class Meter:
    """Counters since the last reset. ``clock`` returns seconds, ``own`` the CPU seconds of the thread that steps.

    ``wait`` is the time between the end of one step and the start of the next, so neither the time before the
    first step nor that after the last one counts. A step that fails is not counted.
    """

    def __init__(self, clock: Callable[[], float], own: Callable[[], float] = time.thread_time) -> None:
        self._clock, self._own = clock, own
        self.reset()

    def reset(self) -> None:
        """Count anew."""
        self.busy = 0.0
        self.wait = 0.0
        self.steps = 0
        self._ended: float | None = None
        self._times: deque[float] = deque(maxlen=KEPT)
        self._own_times: deque[float] = deque(maxlen=KEPT)

    @property
    def step_ms(self) -> float:
        """Median milliseconds of a step, of the last 4,096; 0 before the first."""
        return statistics.median(self._times) * 1e3 if self._times else 0.0

    @property
    def own_ms(self) -> float:
        """Median milliseconds that the thread worked in one of those steps that were asked: other threads of a back end
        are not in it.
        """
        return statistics.median(self._own_times) * 1e3 if self._own_times else 0.0

    def counters(self, node: str, wire_bytes: int, peak_rss_bytes: int) -> Counters:
        """All of it as it is told to the head."""
        times = (self.step_ms, peak_rss_bytes, self.own_ms)
        return Counters(node, self.busy, self.wait, self.steps, wire_bytes, *times)

    def start(self) -> tuple[float, float | None]:
        """A step begins; what is returned goes into ``done``."""
        return self._clock(), None if self.steps % SAMPLED else self._own()

    def done(self, began: tuple[float, float | None]) -> None:
        """The step that ``began`` has ended well."""
        (start, own), end = began, self._clock()
        if own is not None:
            self._own_times.append(self._own() - own)
        if self._ended is not None:
            self.wait += start - self._ended
        self.busy += end - start
        self.steps += 1
        self._ended = end
        self._times.append(end - start)
