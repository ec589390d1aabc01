"""What no partition can beat, without a search: work spread over nodes in fractions, memory respected on the whole.

Let x[i, t] be the share of item i that the nodes of kind t do, of which n[t] take part. If no resource is busier than
B, then

    sum over t of x[i, t] = 1,    sum over i of ms[i, t] x[i, t] <= n[t] (B - stage_ms[t]),
    sum over i of bytes[i] x[i, t] <= n[t] room[t],    x >= 0, and 0 where t may not hold i

and the least such B is the bound. Order, links, borders and whole items are left out; that is why it holds for every
partition, contracted or not. Its dual is what is computed with: for any prices p[t] >= 0 of time with
sum n[t] p[t] = 1, and q[t] >= 0 of memory,

    B >= sum over i of min over t of (p[t] ms[i, t] + q[t] bytes[i])
       + sum over t of n[t] (p[t] stage_ms[t] - q[t] room[t])

so a solver's answer is only a proposal for p and q, whose bound is computed here, and rounding errors of the solver
can make it weaker, never wrong. Items that are equal on every kind are one row. With one kind and room for all no
solver is needed, nor where the search itself proves its result: there the bound is only where it begins. For latency
the sum of all times stands in place of B, and p[t] is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ruvcompile.partition.arrays import Floats
from ruvcompile.partition.states import Nodes
from ruvcompile.partition.task import Task

_CAREFUL = 1 - 1e-12
"""Sums of the same times in another order differ in the last digits."""
MOST_STEPS = {"maxiter": 100_000}
"""Of a solver, about ten seconds: counted, and not timed, so that a slow machine finds the same plan. Without its
proposal a bound is weaker, and as true."""


@dataclass(frozen=True)
class Rows:
    """Items that are equal on every kind are one: ``ms`` is ``[rows, kinds]``, infinite where a kind may not."""

    number: Floats
    ms: Floats
    size: Floats
    room: Floats
    total_bytes: float


def rows_of(task: Task, *, together: bool = True) -> Rows:
    """A task's items by their costs; each by itself where those that are equal are not to be taken ``together``."""
    count = len(task.item_bytes)
    ms = np.array([kind.item_ms for kind in task.kinds], np.float64).T.reshape(count, len(task.kinds))
    for column, kind in enumerate(task.kinds):
        ms[list(kind.barred), column] = np.inf
        made = [v.maker for v in task.values if v.maker >= 0 and v.kinds is not None and column not in v.kinds]
        ms[made, column] = np.inf
    size = np.array(task.item_bytes, np.float64)
    rows, number = np.column_stack([ms, size]), np.ones(count, np.int64)
    if together:
        rows, number = np.unique(rows, axis=0, return_counts=True)
    room = np.array([kind.memory - task.runtime_bytes for kind in task.kinds], np.float64)
    once = sum(each.size for each in task.shared)
    return Rows(number.astype(np.float64), rows[:, :-1], rows[:, -1], room, float(size.sum() + once))


def lower_bound(task: Task, rows: Rows, nodes: Nodes, *, solver: bool) -> float:
    """A value that no partition over exactly ``nodes`` (of each kind) beats; infinite where there is none.

    Without ``solver`` it is that of simple prices: time costs on each kind what all work takes there, inverted.
    """
    used = [kind for kind, number in enumerate(nodes) if number]
    counts = np.array([nodes[kind] for kind in used], np.float64)
    stage = np.array([task.kinds[kind].stage_ms for kind in used])
    ms, room = rows.ms[:, used], rows.room[used]
    fastest = ms.min(1, initial=np.inf)
    if not np.isfinite(fastest).all() or (room < 0).any():
        return float("inf")
    free = bool((room >= rows.total_bytes).all())
    if task.objective == "latency":
        plain = float((fastest * rows.number).sum() + counts @ stage)
        if free or not solver:
            return plain * _CAREFUL
        prices = _solved(ms, rows, counts, room, stage, throughput=False)
        return max(plain, _dual(np.ones(len(used)), prices[1], ms, rows, counts, room, stage)) * _CAREFUL
    whole = float((ms + stage).min(1, initial=np.inf).max(initial=0.0))
    if len(used) == 1 and free:
        return max(whole, float((fastest * rows.number).sum() / counts[0] + stage[0])) * _CAREFUL
    none = np.zeros(len(used))
    prices = _solved(ms, rows, counts, room, stage, throughput=True) if solver else (_simple(ms, rows, counts), none)
    return max(whole, _dual(*prices, ms, rows, counts, room, stage)) * _CAREFUL


def _simple(ms: Floats, rows: Rows, counts: Floats) -> Floats:
    total = (np.where(np.isfinite(ms), ms, 0.0) * rows.number[:, None]).sum(0)
    prices = 1 / np.maximum(total, total.max(initial=0.0) * 1e-9 + 1e-300)
    even: Floats = prices / (prices @ counts)
    return even


def _dual(time: Floats, memory: Floats, ms: Floats, rows: Rows, counts: Floats, room: Floats, stage: Floats) -> float:
    priced = np.where(np.isfinite(ms), ms, 0.0) * time + memory * rows.size[:, None]
    priced[~np.isfinite(ms)] = np.inf
    return float((priced.min(1) * rows.number).sum() + (counts * (time * stage - memory * room)).sum())


def _solved(
    ms: Floats, rows: Rows, counts: Floats, room: Floats, stage: Floats, *, throughput: bool
) -> tuple[Floats, Floats]:
    """Prices of time and memory as a solver proposes them; even ones of time where it has none."""
    from scipy.optimize import linprog  # takes its time to load, and many plans do without
    from scipy.sparse import csr_matrix, hstack, vstack

    even = np.full(len(counts), 1 / counts.sum())
    none = np.zeros(len(counts))
    items, kinds = ms.shape
    allowed = np.isfinite(ms)
    scale, unit = max(float(ms[allowed].max(initial=0.0)), 1e-300), max(float(rows.size.max(initial=0.0)), 1.0)
    at = np.arange(items * kinds)
    share = csr_matrix((np.ones(items * kinds), (at // kinds, at)))
    times = csr_matrix((np.where(allowed, ms / scale, 0.0).ravel(), (at % kinds, at)), shape=(kinds, items * kinds))
    sizes = csr_matrix((np.repeat(rows.size / unit, kinds), (at % kinds, at)), shape=(kinds, items * kinds))
    bounds: list[tuple[float, float | None]] = [(0.0, None if ok else 0.0) for ok in allowed.ravel()]
    limits: Floats
    if throughput:
        matrix = vstack([hstack([times, csr_matrix(-counts[:, None])]), hstack([sizes, csr_matrix((kinds, 1))])])
        limits = np.concatenate([-counts * stage / scale, counts * room / unit])
        cost = np.append(np.zeros(items * kinds), 1.0)
        share = hstack([share, csr_matrix((items, 1))])
        bounds.append((0.0, None))
    else:
        matrix, limits = sizes, counts * room / unit
        cost = np.where(allowed, ms / scale, 0.0).ravel()
    answer = linprog(cost, matrix, limits, share, rows.number, bounds, method="highs-ds", options=MOST_STEPS)
    if answer.status != 0:
        return even, none
    prices = np.maximum(-answer.ineqlin.marginals, 0.0)
    if not throughput:
        return none, prices * scale / unit
    time, memory = prices[:kinds], prices[kinds:] * scale / unit
    total = float(time @ counts)
    return (time / total, memory / total) if total > 0 else (even, none)
