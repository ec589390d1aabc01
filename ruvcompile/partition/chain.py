"""The best cut of a chain of units, exactly.

The units stand in one topological order, so every prefix is a downset and every cut is convex. For devices in
order, ``best[j][i]`` is the least value of giving the first i units to the first j devices:

    best[j][i] = min over i' < i of  combine(best[j-1][i'], time of units i'..i on device j)

with ``max`` for throughput and ``+`` for latency. Only legal borders and stages that fit their device's memory
take part. A stage's time is its units and handing its cut on. The search is exact
over this order; it costs (units^2 x devices) array operations, a few ms for hundreds of units.

The bound needs no order: no partition is faster than all work spread evenly over the devices' best speeds, nor
than the largest unit at its fastest. Among equal values the smaller sum wins, then the earlier cut: the result
does not depend on anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ruvcompile.partition.problem import Partition, Problem

Floats = npt.NDArray[np.float64]


def solve(problem: Problem) -> Partition | None:
    """The best partition with exactly one stage per device; None where none fits."""
    count, devices = len(problem.unit_bytes), len(problem.devices)
    usable = np.array([True, *(border.legal for border in problem.borders), True])
    value = np.full(count + 1, np.inf)
    value[0] = 0.0
    total = value.copy()
    chosen: list[npt.NDArray[np.int64]] = []
    for number in range(devices):
        stage = _stage_ms(problem, number)
        stage[:, ~usable] = np.inf
        joined = np.maximum(value[:, None], stage) if problem.objective == "throughput" else value[:, None] + stage
        sums = total[:, None] + stage
        # Lexicographic minimum: value, then sum, then the earlier border.
        least = joined.min(0)
        tied = np.where(joined <= least[None, :] * (1 + 1e-12), sums, np.inf)
        before = tied.argmin(0)
        chosen.append(before)
        value, total = joined[before, np.arange(count + 1)], tied[before, np.arange(count + 1)]
    if not np.isfinite(value[count]):
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
    spans = list(zip(range(len(problem.devices)), bounds, bounds[1:], strict=False))
    stage_ms = tuple(float(_stage_ms(problem, device)[start, stop]) for device, start, stop in spans)
    needs = _stage_bytes(problem)
    stage_bytes = tuple(int(needs[start, stop]) for _, start, stop in spans)
    bound = lower_bound(problem)
    value = max(stage_ms) if problem.objective == "throughput" else sum(stage_ms)
    gap = (value - bound) / value if np.isfinite(value) and value > 0 else 0.0
    return Partition(tuple(cuts), stage_ms, stage_bytes, bound, max(0.0, gap))


def lower_bound(problem: Problem) -> float:
    """A value that no partition of the problem beats, in any order of the units and whatever the memory."""
    times = np.array([device.unit_ms for device in problem.devices])
    fastest = times.min(0)
    if problem.objective == "latency":
        return float(fastest.sum())
    return float(max(fastest.sum() / len(problem.devices), fastest.max(initial=0.0)))


def _stage_ms(problem: Problem, number: int) -> Floats:
    """Times ``[start, stop]`` of the stage that holds units start..stop on a device; infinite where it does not fit."""
    device = problem.devices[number]
    last = number == len(problem.devices) - 1
    work = np.concatenate([[0.0], np.cumsum(device.unit_ms)])
    send = np.zeros(len(work))
    if not last:
        wire = [0, *(border.wire_bytes for border in problem.borders), 0]
        send = device.send_ms_per_byte * np.array(wire, float)
    times: Floats = work[None, :] - work[:, None] + send[None, :]
    start, stop = np.indices(times.shape)
    times[(stop <= start) | (_stage_bytes(problem) > device.memory)] = np.inf
    return times


def _stage_bytes(problem: Problem) -> npt.NDArray[np.int64]:
    """What the stage that holds units start..stop needs in memory, ``[start, stop]``; nonsense where stop < start."""
    size = np.concatenate([[0], np.cumsum(problem.unit_bytes, dtype=np.int64)])
    twice = np.zeros((len(size), len(size)), np.int64)
    for each in problem.shared:
        # Counted too often by every stage that starts at ``first`` or before and stops behind ``second``.
        twice[each.first, each.second + 1] += each.size
    twice = twice[::-1].cumsum(0)[::-1].cumsum(1)
    needs: npt.NDArray[np.int64] = size[None, :] - size[:, None] - twice + problem.runtime_bytes
    return needs
