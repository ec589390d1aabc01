"""What no round is shorter than, without a search: as in ``bound``, work spread over nodes in fractions.

With x[i, t] the share of item i that the nodes of kind t do, of which n[t] take part, and T the round,

    sum over t of x[i, t] = 1,    steps * (sum over i of ms[i, t] x[i, t] + n[t] stage_ms[t]) <= n[t] T,
    sum over i and t of way_ms[i, t] x[i, t] + what the way takes besides <= T,
    sum over i of bytes[i] x[i, t] <= n[t] room[t],    x >= 0, and 0 where t may not hold i

and for any prices p[t] and r of time with sum n[t] p[t] + r = 1, and q[t] of memory, none of them negative,

    T >= sum over i of min over t of (steps p[t] ms[i, t] + r way_ms[i, t] + q[t] bytes[i])
       + sum over t of n[t] (steps p[t] stage_ms[t] - q[t] room[t]) + r * what the way takes besides

so here too a solver only proposes prices, and its rounding errors can make the bound weaker, never wrong. The same
prices tell a search what is scarce (``ahead``, ``narrow``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ruvcompile.partition.arrays import Floats
from ruvcompile.partition.bound import MOST_STEPS, Rows, rows_of
from ruvcompile.partition.states import Nodes
from ruvcompile.partition.task import Task

_CAREFUL = 1 - 1e-12
_CHEAPEST_WAY = 1e-3
"""Prices in ms of the way are none where the way itself costs nothing."""


@dataclass(frozen=True)
class Prices:
    """What is scarce costs so much of the way, in ms: per kind, a ms of a node's time, and a byte of its memory."""

    time: Floats
    memory: Floats


class Relaxed:
    """The bound for one task after another set of nodes; ``way`` has the times of a step on its way."""

    def __init__(self, task: Task, way: Task, steps: int) -> None:
        self._task, self._way, self._steps = task, way, steps
        busy, passing = rows_of(task, together=False), rows_of(way, together=False)
        kinds = len(task.kinds)
        both = np.column_stack([busy.ms, passing.ms, busy.size])
        rows, number = np.unique(both, axis=0, return_counts=True)
        self._rows = Rows(number.astype(np.float64), rows[:, :kinds], rows[:, -1], busy.room, busy.total_bytes)
        self._passing = rows[:, kinds:-1]

    def bound(self, nodes: Nodes, besides: float) -> tuple[float, Prices]:
        """No round over exactly ``nodes`` is shorter; and at which prices that is told.

        ``besides``: what a pass takes that is no stage's.
        """
        used = [kind for kind, number in enumerate(nodes) if number]
        counts = np.array([nodes[kind] for kind in used], np.float64)
        ms, passing, room = self._rows.ms[:, used], self._passing[:, used], self._rows.room[used]
        stage = np.array([self._task.kinds[kind].stage_ms for kind in used])
        besides += float(counts @ np.array([self._way.kinds[kind].stage_ms for kind in used]))
        if not np.isfinite(ms).any(1).all():
            return float("inf"), self.none
        time, way, memory = self._prices(ms, passing, counts, room, stage, besides)
        allowed, steps = np.isfinite(ms), self._steps
        priced = steps * time * np.where(allowed, ms, 0.0) + way * np.where(allowed, passing, 0.0)
        priced += memory * self._rows.size[:, None]
        priced[~allowed] = np.inf
        found = float((priced.min(1) * self._rows.number).sum()) + way * besides
        found += float((counts * (steps * time * stage - memory * room)).sum())
        told = Prices(np.zeros(len(nodes)), np.zeros(len(nodes)))
        told.time[used], told.memory[used] = steps * time / max(way, _CHEAPEST_WAY), memory / max(way, _CHEAPEST_WAY)
        return found * _CAREFUL, told

    @property
    def none(self) -> Prices:
        """Nothing is scarce."""
        return Prices(np.zeros(len(self._task.kinds)), np.zeros(len(self._task.kinds)))

    def _prices(
        self, ms: Floats, passing: Floats, counts: Floats, room: Floats, stage: Floats, besides: float
    ) -> tuple[Floats, float, Floats]:
        """As a solver proposes them; of the way alone where it proposes nothing."""
        from scipy.optimize import linprog  # takes its time to load, and most plans do without
        from scipy.sparse import csr_matrix, hstack, vstack

        items, kinds = ms.shape
        allowed, at = np.isfinite(ms), np.arange(items * kinds)
        scale = max(float(ms[allowed].max(initial=0.0)), 1e-300)
        unit = max(float(self._rows.size.max(initial=0.0)), 1.0)
        busy = csr_matrix((np.where(allowed, self._steps * ms / scale, 0.0).ravel(), (at % kinds, at)))
        through = csr_matrix(np.where(allowed, passing / scale, 0.0).reshape(1, -1))
        sizes = csr_matrix((np.repeat(self._rows.size / unit, kinds), (at % kinds, at)), shape=(kinds, items * kinds))
        matrix = vstack(
            [
                hstack([csr_matrix(busy, shape=(kinds, items * kinds)), csr_matrix(-counts[:, None])]),
                hstack([through, csr_matrix([[-1.0]])]),
                hstack([sizes, csr_matrix((kinds, 1))]),
            ]
        )
        limits = np.concatenate([-self._steps * counts * stage / scale, [-besides / scale], counts * room / unit])
        share = hstack([csr_matrix((np.ones(items * kinds), (at // kinds, at))), csr_matrix((items, 1))])
        bounds = [*((0.0, None if ok else 0.0) for ok in allowed.ravel()), (0.0, None)]
        cost = np.append(np.zeros(items * kinds), 1.0)
        answer = linprog(cost, matrix, limits, share, self._rows.number, bounds, method="highs-ds", options=MOST_STEPS)
        if answer.status != 0:
            return np.zeros(kinds), 1.0, np.zeros(kinds)
        prices = np.maximum(-answer.ineqlin.marginals, 0.0)
        time, way, memory = prices[:kinds], float(prices[kinds]), prices[kinds + 1 :] * scale / unit
        total = float(time @ counts) + way
        return (time / total, way / total, memory / total) if total > 0 else (np.zeros(kinds), 1.0, np.zeros(kinds))
