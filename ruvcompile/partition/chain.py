"""The best cut of a chain of units, exactly, in time and memory that grow with the units as n log n.

The units stand in one topological order, so every prefix is a downset and every cut is convex. Give the first i
units to the first j devices, the j-th of which holds units i'..i. With ``work`` the running sum of its unit times
and ``end[i] = work[i] + (handing on behind unit i)``, its time is ``end[i] - work[i']``, and

    best[j][i] = min over i' of  combine(best[j-1][i'], end[i] - work[i'])

with ``max`` for throughput and ``+`` for latency, over the i' that are legal borders (else ``best`` is infinite)
and not before ``first[i]``, the first from which the units up to i fit the device's memory. Taking a unit away
never makes a stage larger, so ``first`` moves one way only and is found with two pointers.

1. For throughput, the least bottleneck. On the way from i down to ``first[i]`` the least ``best[j-1]`` so far only
   falls, and the stage's time only grows; where the two cross is the minimum. A table of range minima answers each
   step of a binary search for it, for all i at once.
2. Under that bottleneck (none for latency), the least sum, again from a table of range minima; of equal sums the
   one with the earlier cut. So the result does not depend on anything but the problem.

The bound needs no order: no partition is faster than all work spread evenly over the devices' best speeds, nor
than the largest unit at its fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ruvcompile.partition.problem import Device, Partition, Problem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SLACK = 1 + 1e-9
"""Sums of the same times in another order differ in the last digits."""


def solve(problem: Problem) -> Partition | None:
    """The best partition with exactly one stage per device; None where none fits."""
    count = len(problem.unit_bytes)
    usable = np.array([True, *(border.legal for border in problem.borders), True])
    stages = _stages(problem)
    bound = np.inf
    if problem.objective == "throughput":
        bound = _bottleneck(stages, usable) * _SLACK
    chosen: list[Ints] = []
    total = np.full(count + 1, np.inf)
    total[0] = 0.0
    for stage in stages:
        total, before = _least_sum(stage, total, bound)
        total[~usable] = np.inf
        chosen.append(before)
    if not np.isfinite(total[count]):
        return None
    cuts: list[int] = []
    end = count
    for before in reversed(chosen):
        end = int(before[end])
        cuts.append(end)
    return evaluate(problem, tuple(reversed(cuts[:-1])))


def evaluate(problem: Problem, cuts: Sequence[int]) -> Partition:
    """What given cuts cost; they may be illegal or too large, which the caller has to ask."""
    bounds = [0, *cuts, len(problem.unit_bytes)]
    size = np.concatenate([[0], np.cumsum(problem.unit_bytes, dtype=np.int64)])
    pairs = np.array([(each.first, each.second, each.size) for each in problem.shared], np.int64).reshape(-1, 3)
    stage_ms, stage_bytes = [], []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        work, end = _times(problem, number)
        stage_ms.append(float(end[stop] - work[start]))
        within = (pairs[:, 0] >= start) & (pairs[:, 1] < stop)
        stage_bytes.append(int(size[stop] - size[start] - pairs[within, 2].sum() + problem.runtime_bytes))
    bound = lower_bound(problem)
    value = max(stage_ms) if problem.objective == "throughput" else sum(stage_ms)
    gap = (value - bound) / value if value > 0 else 0.0
    return Partition(tuple(cuts), tuple(stage_ms), tuple(stage_bytes), bound, max(0.0, gap))


def lower_bound(problem: Problem) -> float:
    """A value that no partition of the problem beats, in any order of the units and whatever the memory."""
    times = np.array([device.unit_ms for device in problem.devices])
    fastest = times.min(0)
    if problem.objective == "latency":
        return float(fastest.sum())
    return float(max(fastest.sum() / len(problem.devices), fastest.max(initial=0.0)))


@dataclass(frozen=True)
class _Stage:
    """One device's times and memory, each ``[units + 1]``: see the module's text."""

    work: Floats
    end: Floats
    first: Ints


def _stages(problem: Problem) -> list[_Stage]:
    fitting: dict[int, Ints] = {}
    found = []
    for number, device in enumerate(problem.devices):
        if device.memory not in fitting:
            fitting[device.memory] = _first_fitting(problem, device)
        found.append(_Stage(*_times(problem, number), fitting[device.memory]))
    return found


def _times(problem: Problem, number: int) -> tuple[Floats, Floats]:
    """``work`` and ``end`` of a device; the last one hands nothing on."""
    device = problem.devices[number]
    work = np.concatenate([[0.0], np.cumsum(device.unit_ms)])
    if number == len(problem.devices) - 1:
        return work, work
    wire = np.array([0, *(border.wire_bytes for border in problem.borders), 0], float)
    return work, work + device.send_ms_per_byte * wire


def _first_fitting(problem: Problem, device: Device) -> Ints:
    """For every end the first start from which the units fit the device's memory; the end itself where none does."""
    earlier: dict[int, list[tuple[int, int]]] = {}
    later: dict[int, list[tuple[int, int]]] = {}
    for each in problem.shared:
        earlier.setdefault(each.second, []).append((each.first, each.size))
        later.setdefault(each.first, []).append((each.second, each.size))
    room, held, start = device.memory - problem.runtime_bytes, 0, 0
    found = np.zeros(len(problem.unit_bytes) + 1, np.int64)
    for last, size in enumerate(problem.unit_bytes):
        held += size - sum(both for other, both in earlier.get(last, ()) if other >= start)
        while held > room and start <= last:
            held -= problem.unit_bytes[start] - sum(both for other, both in later.get(start, ()) if other <= last)
            start += 1
        found[last + 1] = start
    return found


def _bottleneck(stages: Sequence[_Stage], usable: npt.NDArray[np.bool_]) -> float:
    """The least time of the slowest stage of any partition; infinite where none fits."""
    best = np.full(len(usable), np.inf)
    best[0] = 0.0
    places = np.arange(len(usable))
    for stage in stages:
        table = _Minima(best)
        low, high = stage.first.copy(), np.maximum(places, stage.first)
        # The first start behind which the units before are done later than the stage itself takes.
        while (low < high).any():
            middle = (low + high) // 2
            later = best[table.first_least(middle, places)] >= stage.end - stage.work[middle]
            open_ = low < high
            high, low = np.where(open_ & later, middle, high), np.where(open_ & ~later, middle + 1, low)
        value = np.full(len(usable), np.inf)
        for start in (low, low - 1):
            start = np.clip(start, stage.first, places)
            here = np.maximum(best[table.first_least(start, places)], stage.end - stage.work[start])
            value = np.where(start < places, np.minimum(value, here), value)
        value[~usable] = np.inf
        best = value
    return float(best[-1])


def _least_sum(stage: _Stage, total: Floats, bound: float) -> tuple[Floats, Ints]:
    """The least sum up to each end when ``stage`` comes next and takes no longer than ``bound``; and its start."""
    places = np.arange(len(total))
    start = np.maximum(stage.first, np.searchsorted(stage.work, stage.end - bound, side="left"))
    open_ = total - stage.work
    before = _Minima(open_).first_least(start, places)
    return np.where(start < places, stage.end + open_[before], np.inf), before


class _Minima:
    """Where the minimum of any range of an array lies, the first of equal ones; made in n log n."""

    def __init__(self, values: Floats) -> None:
        self._values = values
        self._rows = [np.arange(len(values))]
        width = 1
        while 2 * width <= len(values):
            left, right = self._rows[-1][:-width], self._rows[-1][width:]
            self._rows.append(np.where(values[left] <= values[right], left, right))
            width *= 2

    def first_least(self, start: Ints, stop: Ints) -> Ints:
        """For each range, ``stop`` excluded, the index of its least value; ``start`` where it is empty."""
        start = np.minimum(start, len(self._values) - 1)
        length = np.maximum(stop - start, 1)
        level = np.frexp(length)[1] - 1
        found = np.empty(len(start), np.int64)
        for each in np.unique(level):
            those = level == each
            row = self._rows[each]
            left, right = row[start[those]], row[start[those] + length[those] - (1 << int(each))]
            found[those] = np.where(self._values[left] <= self._values[right], left, right)
        return found


__all__ = ["evaluate", "lower_bound", "solve"]
