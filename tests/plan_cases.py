"""Small fleets and graphs with made-up costs, and the best plan of each by trying everything, priced by hand.

A case knows nothing of the planner: what a plan costs is told here again, as README and the manifest tell it, and every
way to cut, every choice of nodes, every order and every number of copies is priced. ``plan_draws`` draws cases,
``plan_inputs`` tells them to the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from ruvcompile.partition import UNLIMITED, Hop, Kind, Shared, Task, Value
from tests.partitions import Exhaustive, Items

SIZE = 1000
"""Bytes that the sizes of a case are multiples of."""

Order = tuple[int, ...]
Cut = tuple[Items, ...]
Beat = tuple[float, float]


@dataclass(frozen=True)
class Machine:
    """A kind of machine: what each item takes in a step of one row, and by how much more for each further one."""

    item_ms: tuple[float, ...]
    per_row: float = 1.0
    stage_ms: float = 0.0
    byte_ms: float = 0.0
    head_ms: float = 0.0


@dataclass(frozen=True)
class Case:
    """A graph, a fleet, and what is asked.

    Attributes:
        values: everything that may travel; sizes are those of a row.
        item_bytes, shared: memory of the items, in ``SIZE``.
        machines: by kind of machine.
        nodes: each one's kind of machine, its room for items in ``SIZE`` (0: all it wants), and the items it may not
            hold; the first one is the head.
        ways: from each node to each other one.
        keeper: nodes that may see what comes in with the request; empty: all.
        decoder: whether steps have rows.
        shape: copies and stages, where they are asked for.
    """

    values: tuple[Value, ...]
    item_bytes: tuple[int, ...]
    machines: tuple[Machine, ...]
    nodes: tuple[tuple[int, int, frozenset[int]], ...]
    ways: Mapping[tuple[int, int], Hop]
    streams: int
    objective: str
    shared: tuple[Shared, ...] = ()
    keeper: frozenset[int] = frozenset()
    decoder: bool = False
    shape: tuple[int, int] | None = None

    @cached_property
    def everything(self) -> frozenset[int]:
        """All items."""
        return frozenset(range(len(self.item_bytes)))

    def best(self) -> float:
        """What a plan is chosen by, per second; 0 where nothing fits."""
        shapes = [self.shape] if self.shape else self.shapes()
        return max((value for shape in shapes for value in self.plans(*shape)), default=0.0)

    def shapes(self) -> list[tuple[int, int]]:
        """Copies and stages."""
        most = len(self.nodes)
        return [(copies, stages) for stages in range(1, most + 1) for copies in range(1, most // stages + 1)]

    def plans(self, copies: int, stages: int) -> Iterator[float]:
        """What every plan of a shape gives.

        Of several copies those that serve a single sequence soonest have the larger shares of the sequences, and of
        equally soon ones those that make more of them.
        """
        lanes = min(copies, self.streams)
        each = [self.streams // copies + (number < self.streams % copies) for number in range(copies)]
        ways = {share: self.beats(stages, share, each[0], lanes) for share in {each[0], each[-1]} if share}
        alone = self.beats(stages, 1, each[0], 1, single=True)
        for cut, orders in alone.items():
            rates = {
                order: [
                    self.rate(ways[share][cut][order], share, stages) if share else 0.0 for share in (each[0], each[-1])
                ]
                for order in orders
            }
            turns = {
                order: (float(f"{beat[1]:.9g}"), rates[order][1] - rates[order][0]) for order, beat in orders.items()
            }
            for chosen in self.disjoint(orders, copies):
                soonest = sorted(chosen, key=turns.__getitem__)
                if self.objective == "latency":
                    yield 1e3 / orders[soonest[0]][1]
                else:
                    yield sum(rates[order][share < each[0]] for order, share in zip(soonest, each, strict=True))

    def rate(self, beat: Beat, share: int, stages: int) -> float:
        """Tokens or calls per second of one pipeline with so many sequences."""
        slowest, through = beat
        if self.decoder:
            steps = min(share, stages)
            return 1e3 * share / max(steps * slowest, through)
        steps = min(share, 2 * stages)
        return 1e3 * steps / max(steps * slowest, through)

    def beats(
        self, stages: int, share: int, held: int, lanes: int, *, single: bool = False
    ) -> dict[Cut, dict[Order, Beat]]:
        """Of every way to cut, of every order of nodes: the slowest resource, of steps on average, and the way through.

        Args:
            share: sequences at work in the pipeline.
            held: sequences it has room for.
            lanes: pipelines that the head feeds.
            single: whether only one of the sequences is there.
        """
        rows = 1 if single or not self.decoder else -(-share // stages)
        usual = share / min(share, stages) if self.decoder and not single else rows
        heads = lanes * self.head_ms(usual), self.head_ms(rows)
        busy, passing = Exhaustive(self.task(usual, held, heads[0])), Exhaustive(self.task(rows, held, heads[1]))
        found: dict[Cut, dict[Order, Beat]] = {}
        for kinds, cuts in busy.all(stages):
            slowest, through = busy.cost(kinds, cuts)[0], passing.cost(kinds, cuts)[1]
            if 0 not in kinds:
                slowest, through = max(slowest, heads[0]), through + heads[1]
            found.setdefault(tuple(cuts), {})[tuple(kinds)] = slowest, through
        return found

    def head_ms(self, rows: float) -> float:
        """What the head has to do for a step, with what it sends and receives."""
        machine, end = self.machines[self.nodes[0][0]], len(self.item_bytes)
        moved = sum(value.size for value in self.values if value.maker < 0 or end in value.readers)
        return machine.head_ms + machine.byte_ms * rows * moved

    @staticmethod
    def disjoint(orders: Mapping[Order, Beat], copies: int) -> Iterator[tuple[Order, ...]]:
        """So many orders that share no node."""
        for chosen in combinations(orders, copies):
            if len({node for order in chosen for node in order}) == copies * len(chosen[0]):
                yield chosen

    def task(self, rows: float, held: int, head: float) -> Task:
        """The problem with every node a kind of its own, ``head`` being what the first one does for the head."""
        kinds = []
        for number, (what, room, barred) in enumerate(self.nodes):
            machine = self.machines[what]
            times = tuple(ms * (1 + machine.per_row * (rows - 1)) for ms in machine.item_ms)
            memory = SIZE * room if room else UNLIMITED
            kinds.append(Kind(1, times, memory, machine.stage_ms + head * (not number), machine.byte_ms, barred))
        names = range(len(self.nodes))
        hops = tuple(tuple(self.ways.get((one, two), Hop()) for two in names) for one in names)
        kept = self.keeper or None
        values = tuple(
            replace(value, size=round(rows * value.size), kinds=kept if value.maker < 0 else None)
            for value in self.values
        )
        came = sum(value.size for value in values if value.maker < 0 and value.readers)
        went = sum(value.size for value in values if len(self.item_bytes) in value.readers)
        return Task(
            tuple(kinds),
            tuple(SIZE * size * (held if self.decoder else 1) for size in self.item_bytes),
            values,
            tuple(replace(each, size=SIZE * each.size) for each in self.shared),
            hops=hops,
            enter_ms=tuple(hops[0][node].ms + came * hops[0][node].ms_per_byte for node in names),
            leave_ms=tuple(hops[node][0].ms + went * hops[node][0].ms_per_byte for node in names),
        )
