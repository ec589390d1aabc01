"""What is left of the way at least, from each downset to the end, over the nodes that are not used yet.

A way in which no node takes more than ``bound``, and none holds more than it has room for, takes at any prices q[t] of
a node's time and m[t] of its memory, none of them negative, at least

    sum over its stages of way_ms + q[t] (ms - bound) + m[t] (bytes - room)    and what its links take

since what is added is never positive. That sum has no limits, so the least of it is one pass downwards over the
lattice, values that cross included; and at the prices of ``relaxed`` little is lost: what is scarce is paid for, and
what fast nodes cannot do is counted as long as it takes on slow ones. Of several prices the largest sum counts.

A search within limits can leave out every downset that is too far from the end (``ties``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ruvcompile.partition.arrays import Floats
from ruvcompile.partition.relaxed import Prices
from ruvcompile.partition.states import Nodes, State, rising
from ruvcompile.partition.trial import Search


def ahead(
    search: Search, ways: Search, wanted: Sequence[Nodes], bound: float, prices: Sequence[Prices]
) -> dict[State, Floats]:
    """For every state on the way to any of ``wanted`` what is left at least, per downset; infinite for no way.

    Args:
        search: its times make the bottleneck, which is at most ``bound``.
        ways: the same with the times that make the latency.
    """
    found = _left(search, ways, wanted, bound, prices[0])
    for other in prices[1:]:
        for state, left in _left(search, ways, wanted, bound, other).items():
            np.maximum(found[state], left, out=found[state])
    return found


def _left(search: Search, ways: Search, wanted: Sequence[Nodes], bound: float, prices: Prices) -> dict[State, Floats]:
    way, rests = ways.fields, dict[State, Floats]()
    starts: dict[State, Floats] = {}
    for kind, states in reversed(list(rising(wanted))):
        for state in states:
            rests[state] = _rest(ways, state, wanted, starts)
        if sum(states[0][0]) == 1:
            continue
        first, last = _priced(search, ways, kind, bound, prices)
        takes = np.stack([rests[state] for state in states], axis=1) + last[:, None]
        takes[~way.legal] = math.inf
        order = np.argsort(-takes, axis=0, kind="stable")
        ranks = np.empty(takes.shape, np.int32)
        np.put_along_axis(ranks, order, np.arange(len(takes), dtype=np.int32)[:, None], axis=0)
        ranks[~np.isfinite(takes)] = -1
        best = ways.sweeps[kind].above(ranks)
        ends = np.take_along_axis(order, np.maximum(best, 0), axis=0)
        takes = np.take_along_axis(takes, ends, axis=0) - first[:, None]
        takes[(best < 0) | ~way.opens[kind][:, None]] = math.inf
        for column, state in enumerate(states):
            starts[state] = takes[:, column]
    return rests


def _priced(search: Search, ways: Search, kind: int, bound: float, prices: Prices) -> tuple[Floats, Floats]:
    """What to take off where a stage of a kind begins, and what to add where it ends."""
    busy, way, time = search.fields, ways.fields, prices.time[kind]
    first = way.begins[kind] + time * busy.begins[kind]
    last = way.ends[kind] + time * (busy.ends[kind] - bound) if time else way.ends[kind]
    limits = ways.limits[kind]
    if limits is not None:
        first = first + prices.memory[kind] * limits.holds
        last = last + prices.memory[kind] * limits.needs
    return first, last


def _rest(ways: Search, state: State, wanted: Sequence[Nodes], starts: dict[State, Floats]) -> Floats:
    """From where a stage ended: the end is there, or another begins."""
    nodes, kind = state
    task, crossing = ways.fields.task, ways.fields.crossing
    found = np.full(len(crossing), math.inf)
    if nodes in wanted:
        found[-1] = task.leave_ms[kind] if task.leave_ms else 0.0
    for after in range(len(nodes)):
        following = tuple(number + (each == after) for each, number in enumerate(nodes)), after
        if following in starts:
            hop = task.hop(kind, after)
            np.minimum(found, starts[following] + hop.ms + crossing * hop.ms_per_byte, out=found)
    return found


__all__ = ["ahead"]
