"""How a measurement is made: threads, cores, company, time; and how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ruvrun.backends import CPU
from ruvrun.bundle import StageSpec
from ruvrun.executors.openvino.forms import device_of
from ruvrun.machine import has_cpu_quota

Tell = Callable[[str, int, int], None]
"""Told of progress: what is being measured, how much of it is done, out of how much."""


def silent(_what: str, _done: int, _total: int) -> None:
    """A ``Tell`` that says nothing."""


@dataclass(frozen=True)
class Conditions:
    """What holds for a whole measurement.

    Attributes:
        threads: of the back end.
        beside: stage processes that work at the same time on this machine, this one included.
        cpus: cores of this process, then of each companion; empty: wherever the machine puts them.
        seconds: after so long a measurement whose spread is still too large ends all the same.
        rough: what the error of a median may be, relative to it, before a measurement may end.
        fine: what it may be in any case, in ms.
        rows: of the largest step there will be, where it is more than is measured anyway.
        brief: for a second back end of a machine whose first one is measured: no ring of processes, as what a step
            costs beside its units is the same; and one load, where counting the time of kernels costs next to nothing.
    """

    threads: int = 1
    beside: int = 1
    cpus: tuple[tuple[int, ...], ...] = field(default=())
    seconds: float = 4.0
    rough: float = 0.01
    fine: float = 0.005
    brief: bool = False
    rows: int = 0


def clock_of(spec: StageSpec, conditions: Conditions) -> Callable[[], float]:
    """What the steps of a stage are timed by, in seconds.

    A single thread's own time is what it needs, also where others take its core now and then. Several threads wait for
    each other, and a thread for a device, and these have no time in common but the clock's; and where a quota stops a
    process part of the time, that is how fast it is.
    """
    own = conditions.threads == 1 and device_of(spec) == CPU and not has_cpu_quota()
    return time.thread_time if own else time.perf_counter
