"""Several pipelines with the same cuts, exactly: every way to cut and every choice of nodes, priced at once.

One set of files serves all pipelines, so the cuts that are best for each by itself need not be the best. What is best
is the rate of all together, each with its share of the sequences: those that serve a single one soonest have the larger
shares, and of equal ones those that make more of them, as in ``Judge.rate_of``. An *order* is a sequence of kinds of
nodes, stage by stage; a *choice* is as many orders as there are pipelines, of which no node is used twice. Prices are
arrays over the ways to cut, one column per order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np

from ruvcompile.partition import Stage, Task
from ruvcompile.partition.arrays import Floats, Ints
from ruvcompile.partition.joined import joined
from ruvcompile.partition.table import Table, table_of
from ruvcompile.plan.loads import Load, Loads
from ruvcompile.plan.nodes import Scene
from ruvcompile.plan.pace import in_ring
from ruvcompile.plan.shapes import Cuts, Shape
from ruvcompile.plan.tasks import Desk

_MOST_NUMBERS = 4_000_000
_MOST_WAYS = 20_000
_MOST_ORDERS = 64
_MOST_CHOICES = 2_000
_SAME = 1 - 1e-10

Order = tuple[int, ...]
Pipelines = tuple[tuple[Stage, ...], ...]


def every_choice(desk: Desk, shape: Shape, scene: Scene, loads: Loads, cuts: Cuts | None) -> Pipelines | None:
    """The best pipelines there are; none where nothing fits, None where there are too many to look at them all."""
    task = _task(desk, loads.full, scene, cuts)
    orders = _orders(desk, task, shape, scene)
    if orders is None:
        return None
    choices = _choices(desk, task, shape, scene, orders)
    if choices is None:
        return None
    if not len(choices):
        return ()
    most = min(_MOST_WAYS, _MOST_NUMBERS // (len(choices) + len(orders) * shape.stages))
    table = table_of(task, shape.stages, most)
    if table is None:
        return None
    prices = _Prices(desk, scene, loads, cuts, table, orders)
    best = prices.best(choices)
    if best is None:
        return ()
    way, choice = best
    items = cuts or table.items(way)
    return tuple(
        tuple(Stage(kind, held) for kind, held in zip(orders[order], items, strict=True)) for order in choices[choice]
    )


def allowed(desk: Desk, task: Task, nodes: Sequence[int], scene: Scene) -> bool:
    """Whether there are so many nodes of each kind, and no crowd is used more than the scene says."""
    used = [0] * len(scene.used)
    for group, count in zip(desk.room.groups, nodes, strict=True):
        if group.crowd is not None:
            used[group.crowd] += count
    return task.there_are(nodes) and all(have <= most for have, most in zip(used, scene.used, strict=True))


def _task(desk: Desk, load: Load, scene: Scene, cuts: Cuts | None, objective: str = "throughput") -> Task:
    task = desk.task(load, scene, objective)
    return task if cuts is None else joined(task, cuts)


def _orders(desk: Desk, task: Task, shape: Shape, scene: Scene) -> list[Order] | None:
    """All sequences of kinds that a pipeline may have; None for too many."""
    kinds = [number for number, kind in enumerate(task.kinds) if kind.count]
    if len(kinds) ** shape.stages > _MOST_ORDERS:
        return None
    orders = product(kinds, repeat=shape.stages)
    return [order for order in orders if allowed(desk, task, _nodes(order, task), scene)]


def _nodes(order: Order, task: Task) -> tuple[int, ...]:
    """How many nodes of each kind it takes."""
    return tuple(order.count(kind) for kind in range(len(task.kinds)))


def _choices(desk: Desk, task: Task, shape: Shape, scene: Scene, orders: Sequence[Order]) -> Ints | None:
    """``[choices, replicas]``: numbers of orders, ascending, of which no node is used twice; None for too many."""
    needs = [_nodes(order, task) for order in orders]
    some: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), (0,) * len(task.kinds))]
    for _ in range(shape.replicas):
        longer = []
        for chosen, used in some:
            for number in range(chosen[-1] if chosen else 0, len(orders)):
                total = tuple(map(sum, zip(used, needs[number], strict=True)))
                if allowed(desk, task, total, scene):
                    longer.append(((*chosen, number), total))
            if len(longer) > _MOST_CHOICES:
                return None
        some = longer
    return np.array([chosen for chosen, _ in some], np.int64).reshape(len(some), shape.replicas)


class _Prices:
    """Rates of every way to cut, ``[ways, orders]``, for each load."""

    def __init__(
        self, desk: Desk, scene: Scene, loads: Loads, cuts: Cuts | None, table: Table, orders: Sequence[Order]
    ) -> None:
        self._desk, self._scene, self._loads, self._cuts = desk, scene, loads, cuts
        self._table, self._orders = table, orders
        slowest, through = self._beats(loads.full)
        self._fits = np.isfinite(slowest) & np.isfinite(through)
        self._full = self._rates(slowest, through, loads.shares[0])
        self._less = self._full
        if loads.shares[-1] < loads.shares[0]:
            self._less = self._rates(*self._beats(loads.less), loads.shares[-1])
        self._alone = self._beats(loads.alone)[1]

    def best(self, choices: Ints) -> tuple[int, int] | None:
        """The best way to cut and choice of orders; None where none fits. Of equal rates what serves one soonest."""
        rates = np.full((len(choices), len(self._fits)), -np.inf)
        singles = np.zeros(rates.shape)
        for number, choice in enumerate(choices):
            fit = self._fits[:, choice].all(1)
            rates[number, fit] = self._together(choice)[fit]
            singles[number, fit] = 1e3 / np.maximum(self._alone[:, choice].min(1), 1e-9)[fit]
        if not np.isfinite(rates).any():
            return None
        singles[~np.isfinite(rates)] = -np.inf
        first, second = (singles, rates) if self._desk.facts.options.objective == "latency" else (rates, singles)
        second = np.where(first >= first.max() * _SAME, second, -np.inf)
        choice, way = np.unravel_index(int((second >= second.max() * _SAME).argmax()), second.shape)
        return int(way), int(choice)

    def _together(self, choice: Ints) -> Floats:
        """The rate of so many pipelines, those that serve a single sequence soonest with the larger shares."""
        shares = self._loads.shares
        larger = sum(share == shares[0] for share in shares)
        if larger == len(shares):
            return np.asarray(self._full[:, choice].sum(1))
        full, less = self._full[:, choice], self._less[:, choice]
        turn = np.lexsort((less - full, _rounded(self._alone[:, choice])), axis=1)
        full, less = np.take_along_axis(full, turn, axis=1), np.take_along_axis(less, turn, axis=1)
        return np.asarray(full[:, :larger].sum(1) + less[:, larger:].sum(1))

    def _beats(self, load: Load) -> tuple[Floats, Floats]:
        """The slowest resource and the whole way of a step, as ``Judge.beat`` has them."""
        task = _task(self._desk, load, self._scene, self._cuts)
        way = _task(self._desk, load.passing, self._scene, self._cuts, "latency")
        busy, passing, size = self._table.stage_ms(task), self._table.stage_ms(way), self._table.crossing(task)
        heads = [self._desk.head_ms(self._scene, rows) for rows in (load.each, load.rows)]
        groups = self._desk.room.groups
        slowest, through = [], []
        for order in self._orders:
            links = [
                size[:, place + 1] * task.hop(one, two).ms_per_byte for place, (one, two) in enumerate(pairwise(order))
            ]
            stages = [busy[kind, :, place] for place, kind in enumerate(order)]
            slow = np.max([*stages, *links], axis=0)
            whole = np.sum([*(passing[kind, :, place] for place, kind in enumerate(order)), *links], axis=0)
            whole += sum(way.hop(one, two).ms for one, two in pairwise(order)) + way.ends_ms(order[0], order[-1])
            if not any(groups[kind].head for kind in order):
                slow, whole = np.maximum(slow, load.lanes * heads[0]), whole + heads[1]
            slowest.append(slow)
            through.append(whole)
        return np.array(slowest).T, np.array(through).T

    def _rates(self, slowest: Floats, through: Floats, share: int) -> Floats:
        """As ``Judge.rate`` has them; 0 for a pipeline that nobody uses."""
        decoder = self._desk.facts.decoder
        steps = in_ring(share, len(self._orders[0]), decoder=decoder) if share else 0
        with np.errstate(invalid="ignore"):
            round_ms = np.maximum(np.maximum(steps * slowest, through), 1e-9)
        waiting = self._desk.facts.waiting(share) if share else 1.0
        return np.asarray(1e3 * (share if decoder else steps) / (round_ms * waiting))


def _rounded(values: Floats) -> Floats:
    """As ``shapes.rounded``: sums of the same times in another order differ in the last digits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** np.floor(np.log10(values))
        return np.asarray(np.where(np.isfinite(values) & (values > 0), np.round(values / scale, 9) * scale, values))
