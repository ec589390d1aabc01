"""Small fleets and graphs with made-up costs, and the best plan of each by trying everything, priced by hand.

A case knows nothing of the planner: what a plan costs is told here again, as README and the manifest tell it, and every
way to cut, every choice of nodes, every order and every number of copies is priced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from random import Random
from typing import Any

import numpy as np
import onnx_ir as ir
from hypothesis import strategies as st

from ruvcompile.fleet import Fleet, FleetNode, Link, Place
from ruvcompile.partition import UNLIMITED, Hop, Kind, Shared, Task, Value
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.program import Program, Source
from ruvrun.costs import CostTable, Overhead, Point, Provenance, UnitCost
from ruvrun.manifest import RUNTIME_BYTES, SERVING_BYTES
from tests.partitions import Exhaustive, Items

TARGETS = ("pi5", "host", "arm64")
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
            steps = -(-share // -(-share // stages))
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
        usual = share / -(-share // rows) if self.decoder and not single else rows
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


def program_of(case: Case) -> tuple[Program, dict[str, Type]]:
    """The graph of a case, no two of whose nodes compute the same, and the types of its values."""
    made: dict[int, list[tuple[str, int]]] = {number: [] for number in range(-1, len(case.item_bytes))}
    reads: dict[int, list[str]] = {number: [] for number in range(len(case.item_bytes) + 1)}
    types: dict[str, Type] = {}
    for number, value in enumerate(case.values):
        name = f"v{number}"
        made[value.maker].append((name, value.size))
        types[name] = Type(ir.DataType.UINT8, (value.size,))
        for reader in value.readers:
            reads[reader].append(name)
    known = {name: _tensor(name, size) for own in made.values() for name, size in own}
    weights = {f"w{item}": (SIZE * size, [item]) for item, size in enumerate(case.item_bytes)}
    weights |= {f"s{number}": (SIZE * each.size, list(each.readers)) for number, each in enumerate(case.shared)}
    held = {name: _weight(name, size) for name, (size, _) in weights.items()}
    nodes = []
    for item in range(len(case.item_bytes)):
        inputs = [known[name] for name in reads[item]]
        inputs += [held[name] for name, (_, readers) in weights.items() if item in readers]
        attribute = ir.AttrString("equation", str(item))
        outputs = [known[name] for name, _ in made[item]]
        nodes.append(ir.Node("", "Einsum", inputs, [attribute], outputs=outputs, name=f"/n{item}"))
    graph = ir.Graph(
        [known[name] for name, _ in made[-1]],
        [known[name] for name in reads[len(case.item_bytes)]],
        nodes=nodes,
        initializers=list(held.values()),
        opset_imports={"": 20},
        name="made up",
    )
    return Program("case", ir.Model(graph, ir_version=10), Source("case", "0" * 64), None), types


def _weight(name: str, size: int) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(np.zeros(size, np.uint8), name=name))


def _tensor(name: str, size: int) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.UINT8), shape=ir.Shape([size]))


def costs_of(case: Case, program: Program, types: Mapping[str, Type]) -> CostTable:
    """What the machines of a case take, as a table."""
    units, kind = program_units(program, types), "decoder" if case.decoder else "graph"
    rows, overheads = [], []
    for target, machine in zip(TARGETS, case.machines, strict=False):
        what: dict[str, Any] = {"target": target, "backend": "onnxruntime", "threads": 1, "source": 0}
        for key, ms in zip(unit_keys(program, units, types), machine.item_ms, strict=True):
            curve = [Point(ms=ms * (1 + machine.per_row * (row - 1)), rows=row) for row in (1, 2, 4)]
            sizes = {"weight_bytes": SIZE, "resident_bytes": SIZE}
            rows.append(UnitCost(key=key, label=key[:8], ms=ms, curve=curve, **what, **sizes))
        own = {"stage_ms": machine.stage_ms, "byte_ms": machine.byte_ms, "head_ms": machine.head_ms}
        overheads.append(Overhead(kind=kind, **what, **own))
    here = Provenance(machine="none", cpu="none", software="made up", date="2026-01-01")
    return CostTable(provenance=[here], unit=rows, overhead=overheads)


def fleet_of(case: Case, taken: int, order: Sequence[int] | None = None) -> Fleet:
    """The machines of a case; ``taken`` is what a stage takes of their memory beside its items."""
    nodes = []
    for number in order or range(len(case.nodes)):
        what, room, _ = case.nodes[number]
        memory = 1 + RUNTIME_BYTES + SERVING_BYTES + taken + (SIZE * room if room else 1 << 40)
        name = f"m{number}"
        nodes.append(FleetNode(name, TARGETS[what], f"{name}.local", memory=memory, reserve=1, threads=1))
    pairs = {
        (f"m{one}", f"m{two}"): Link(1e3 / hop.ms_per_byte if hop.ms_per_byte else 1e300, hop.ms / 1e3)
        for (one, two), hop in case.ways.items()
    }
    places = []
    for item in sorted(case.everything):
        able = [f"m{number}" for number, (_, _, barred) in enumerate(case.nodes) if item not in barred]
        if len(able) < len(case.nodes):
            places.append(Place(f"/n{item}", tuple(able)))
    if case.keeper:
        places.append(Place("v0", tuple(f"m{number}" for number in sorted(case.keeper))))
    return Fleet(tuple(nodes), "m0", pairs=pairs, places=tuple(places))


@st.composite
def cases(draw: st.DrawFn, *, items: int = 5, nodes: int = 4, shared: bool = False) -> Case:
    """Any graph with values of any size, up to four nodes of up to three kinds, all rules, one to four callers."""
    count, size = draw(st.integers(1, items)), draw(_sizes(nodes))
    streams, objective = draw(st.integers(1, 4)), draw(_objectives)
    random = draw(st.randoms(use_true_random=True))  # one draw for all that need not shrink
    strict = random.random()
    machines = tuple(
        Machine(
            tuple(round(random.uniform(0, 9), 3) for _ in range(count)),
            stage_ms=random.choice([0.0, 0.5]),
            byte_ms=random.choice([0.0, 0.1]),
            head_ms=random.choice([0.0, 1.0, 5.0]),
        )
        for _ in range(random.randint(1, 3))
    )
    case = Case(
        _values(random, count),
        tuple(random.randint(0, 9) for _ in range(count)),
        machines,
        tuple(
            (random.randrange(len(machines)), random.choice([0, 0, 10, 20, 30]), barred)
            for barred in _barred(random, count, size, 0.15 * strict)
        ),
        _ways(random, size),
        streams,
        objective,
        shared=_weights(random, count) if shared else (),
        keeper=frozenset({0, *range(random.randint(1, size))}) if random.random() < 0.2 * strict else frozenset(),
    )
    return replace(case, shape=draw(st.sampled_from([None, *case.shapes()])))


@st.composite
def decoders(draw: st.DrawFn, *, nodes: int = 4) -> Case:
    """A decoder of two layers on nodes with room for it, one to six sequences; nothing takes time for its bytes."""
    size, streams, objective = draw(_sizes(nodes)), draw(st.integers(1, 6)), draw(_objectives)
    random = draw(st.randoms(use_true_random=True))
    machines = []
    for _ in range(random.randint(1, 3)):
        embed, attention, mlp, head = (round(random.uniform(0, 9), 3) for _ in range(4))
        parts = (embed, attention, mlp, attention, mlp, head)
        machines.append(Machine(parts, random.choice([0.1, 0.5, 1.0]), 0.0, 0.0, random.choice([0.0, 1.0, 5.0])))
    ways = {pair: Hop(hop.ms) for pair, hop in _ways(random, size).items()}
    chosen = tuple((random.randrange(len(machines)), 0, frozenset[int]()) for _ in range(size))
    values = tuple(Value(item - 1, (item,), 0) for item in range(7))
    case = Case(values, (0,) * 6, tuple(machines), chosen, ways, streams, objective, decoder=True)
    return replace(case, shape=draw(st.sampled_from([None, *case.shapes()])))


_objectives = st.sampled_from(["throughput", "throughput", "throughput", "latency"])


def _sizes(most: int) -> st.SearchStrategy[int]:
    return st.sampled_from([*range(1, most + 1), most])


def _values(random: Random, count: int) -> tuple[Value, ...]:
    """Every item reads something, and all that is made is read."""
    density, found = random.random(), list[Value]()
    orphans = set(range(count))
    for maker in range(count):
        for number in range(random.choice([1, 1, 2])):
            readers = tuple(reader for reader in range(maker + 1, count) if random.random() < density)
            orphans.difference_update(readers)
            if random.random() < 0.1 or not (number or readers):
                readers = (*readers, count)
            if readers:
                found.append(Value(maker, readers, random.randint(1, 5)))
    readers = tuple(item for item in range(count) if item in orphans or random.random() < 0.2)
    return (Value(-1, readers, random.randint(1, 5)), *found)


def _barred(random: Random, count: int, size: int, share: float) -> list[frozenset[int]]:
    """What each node may not hold; every item has a node."""
    able = [random.randrange(size) for _ in range(count)]
    return [
        frozenset(item for item in range(count) if able[item] != node and random.random() < share)
        for node in range(size)
    ]


def _ways(random: Random, size: int) -> dict[tuple[int, int], Hop]:
    few = [
        Hop(random.choice([0.0, 1.0, 4.0]), random.choice([0.0, 0.01, 0.5])) for _ in range(random.choice([1, 1, 3]))
    ]
    return {pair: random.choice(few) for pair in permutations(range(size), 2)}


def _weights(random: Random, count: int) -> tuple[Shared, ...]:
    readers = sorted(random.sample(range(count), random.randint(1, min(count, 3))))
    return (Shared(tuple(readers), random.randint(1, 9)),)
