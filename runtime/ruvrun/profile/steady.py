"""Run several cases in turn, again and again, until the median of each is known well enough.

In turn, so that a machine that slows down for a second slows all of them alike, and none is left with its warm caches.
How well a median is known is judged by its own standard error, from the spread of what was measured: a quiet machine is
done after a few rounds, a busy one goes on until its time is over, and what is then left of the spread is told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

MOST = 100


@dataclass(frozen=True)
class Case:
    """Something that is measured: ``run`` returns a time, of which there shall be at least ``least``."""

    run: Callable[[], float]
    least: int


def steady(
    cases: Sequence[Case],
    *,
    seconds: float,
    rough: float,
    fine: float = 0.0,
    done: Callable[[int], None] = lambda _rounds: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """All that was measured of each case.

    Args:
        cases: run in turn; one that is known well enough sits out.
        seconds: after so long only what has not been run often enough at all is run.
        rough: what the standard error of a median may be, as a share of it.
        fine: what it may be in any case, however short the time is that is measured.
        done: told of every round.
        clock: seconds.
    """
    found: list[list[float]] = [[] for _ in cases]
    until = clock() + seconds
    rounds = 0
    while True:
        late = clock() >= until
        waiting = [number for number, case in enumerate(cases) if _wanted(case, found[number], rough, fine, late)]
        if not waiting:
            return found
        for number in waiting:
            found[number].append(cases[number].run())
        rounds += 1
        done(rounds)


def _wanted(case: Case, times: Sequence[float], rough: float, fine: float, late: bool) -> bool:
    if len(times) < case.least:
        return True
    return not late and len(times) < MOST and doubt(times) > max(fine, rough * float(np.median(times)))


def doubt(times: Sequence[float]) -> float:
    """The standard error of the median of ``times``, where they spread as usual; 0 of one alone."""
    if len(times) < 2:
        return 0.0
    low, high = np.quantile(times, (0.25, 0.75))
    # A quarter lies beyond 0.6745 deviations on either side; a median's error is 1.2533 of a mean's.
    return float(1.2533 * (high - low) / (2 * 0.6745) / math.sqrt(len(times)))


def spread(times: Sequence[float]) -> float:
    """(90th - 10th percentile) / median."""
    low, middle, high = np.quantile(times, (0.1, 0.5, 0.9))
    return round(float((high - low) / middle), 4) if middle else 0.0
