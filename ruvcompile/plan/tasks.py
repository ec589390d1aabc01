"""The partition problem of a shape: which kinds of nodes there are, what units cost on them, and what may travel.

A shape fixes how many rows a step has, how many sequences a pipeline must hold, and how many pipelines the head feeds;
a scene fixes who shares cores. With these, ``Desk.task`` is what ``partition`` solves.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import product

from ruvcompile.partition.task import UNLIMITED, Hop, Kind, Stage, Task, Value
from ruvcompile.plan.groups import Group, Room
from ruvcompile.plan.loads import Load
from ruvcompile.plan.memory import Sizes, activation_bytes, usable
from ruvcompile.plan.nodes import Member, Scene
from ruvcompile.plan.shapes import Shape
from ruvcompile.plan.values import values_of


class Desk:
    """Makes tasks, and keeps what they have in common.

    Args:
        room: the facts and what is looked up of them.
        limitless: as if every node had all the memory that anyone needs.
    """

    def __init__(self, room: Room, *, limitless: bool = False) -> None:
        self.room, self.facts, self.limitless = room, room.facts, limitless
        self._sent: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
        self._values: dict[float, tuple[Value, ...]] = {}
        self._working: dict[tuple[int, ...], int] = {}
        self.times: dict[object, list[float]] = {}
        self._least: dict[float, tuple[float, float, float]] = {}
        self._tasks: dict[tuple[Load, Scene, str], Task] = {}
        self._sizes: dict[Member, Sizes] = {}

    def sizes(self, group: Group) -> Sizes:
        """What units need of memory on nodes of a group."""
        if group.first not in self._sizes:
            self._sizes[group.first] = Sizes(self.room, group.first)
        return self._sizes[group.first]

    @cached_property
    def activations(self) -> int:
        """What the largest step of the model needs."""
        return activation_bytes(self.facts)

    def working(self, items: tuple[int, ...]) -> int:
        """What the largest step of a stage of these units needs."""
        if items not in self._working:
            self._working[items] = activation_bytes(self.facts, items)
        return self._working[items]

    @cached_property
    def values(self) -> tuple[tuple[str, Value], ...]:
        """Everything that may travel, by name; sizes are those of one row."""
        return values_of(self.facts, self.room.groups)

    def sent(self, rows: float) -> tuple[Value, ...]:
        """The same with the sizes of so many rows."""
        if rows not in self._values:
            self._values[rows] = tuple(replace(value, size=round(value.size * rows)) for _, value in self.values)
        return self._values[rows]

    @cached_property
    def ends_bytes(self) -> tuple[int, int]:
        """Bytes of one row from the head to the first stage, and from the last one to the head."""
        end = len(self.facts.units)
        came = sum(value.size for _, value in self.values if value.maker < 0 and value.readers)
        return came, sum(value.size for _, value in self.values if end in value.readers)

    def task(self, load: Load, scene: Scene, objective: str) -> Task:
        """The partition problem; kinds are those of ``room.groups``, in their order, also those of no node."""
        key = (load, scene, objective)
        if key not in self._tasks:
            self._tasks[key] = _task(self, load, scene, objective)
        return self._tasks[key]

    def least(self, rows: float) -> tuple[float, float, float]:
        """The least that all units take, each on the node that is fastest at it; the shortest way; the head's work."""
        if rows not in self._least:
            prices, times, heads = self.room.prices, [], []
            for group in self.room.groups:
                for beside, alone in product(range(1, group.first.beside + 1), (False, True)):
                    times.append(prices.step_ms(group.first, beside, rows, alone=alone))
            for beside in range(1, self.room.head.beside + 1):
                overhead = prices.overhead(self.room.head, beside)
                heads.append(overhead.head_ms + rows * overhead.head_row_ms)
            hops = [
                prices.hop(_sender(one, two), two.first).ms
                for one in self.room.groups
                for two in self.room.groups
                if one.pool != two.pool or len(one.members) > 1
            ]
            self._least[rows] = (sum(map(min, zip(*times, strict=True))), min(hops, default=0.0), min(heads))
        return self._least[rows]

    def too_large(self, shape: Shape, streams: int) -> bool:
        """Whether no choice of nodes can hold a pipeline of the shape, by the sums of bytes alone."""
        if self.limitless:
            return False
        all_sizes = [self.sizes(group) for group in self.room.groups]
        needed = min(sum(each.items(streams, 1)) + sum(once.size for once in each.shared) for each in all_sizes)
        scene, groups = self.widest(1), self.room.groups
        rooms = [
            (max(self.memory(groups[number], scene) for number in pool), len(groups[pool[0]].members))
            for pool in self.room.pools
        ]
        left, have = shape.stages, 0
        for memory, count in sorted(rooms, reverse=True):
            have += memory * min(left, count)
            left -= min(left, count)
        return needed > have

    def widest(self, used: int) -> Scene:
        """So many of every crowd."""
        return Scene(tuple(min(used, len(crowd.members)) for crowd in self.facts.crowds))

    def memory(self, group: Group, scene: Scene) -> int:
        """Bytes that the items of a stage may take on a node of the group."""
        own = self.room.prices.runtime_bytes(group.first) + self.activations
        return max(0, usable(self.facts, group.first, scene) - own)

    def crossing(self, stages: tuple[Stage, ...]) -> tuple[int, ...]:
        """Bytes of one row that come to the first stage, go from each to the next, and from the last to the end."""
        cuts = tuple(stage.items for stage in stages)
        if cuts not in self._sent:
            where = {item: number for number, stage in enumerate(stages) for item in stage.items}
            where |= {-1: -1, len(self.facts.units): len(stages)}
            sent = [0] * (len(stages) + 1)
            for _, value in self.values:
                start, stop = where[value.maker], max(where[reader] for reader in value.readers)
                for place in range(start + 1, stop + 1):
                    sent[place] += value.size
            self._sent[cuts] = tuple(sent)
        return self._sent[cuts]

    def company(self, group: Group, scene: Scene, active: int | None = None) -> tuple[int, float]:
        """How many work beside a node of the group, each with cores of its own; and how much longer that takes.

        Who shares cores with stages that wait has them alone, so ``active`` counts (see ``Load``).
        """
        if group.crowd is None:
            return 1, 1.0
        used = scene.used[group.crowd]
        at_once = scene.local if active is None else min(scene.local, active)
        stretch = self.facts.crowds[group.crowd].stretch(used if active is None else min(used, active))
        return max(1, min(at_once, group.first.beside)), stretch

    def hosts_head(self, group: Group, stretch: float) -> bool:
        """Whether a stage there takes turns with the head: on its node, or on cores that are shared with that one."""
        beside = (
            group.crowd is not None and stretch > 1 and any(g.head and g.crowd == group.crowd for g in self.room.groups)
        )
        return group.head or beside

    def head_ms(self, scene: Scene, rows: float) -> float:
        """The head's own work for one step of one pipeline, what it sends and receives included."""
        beside = self.room.head.beside
        overhead = self.room.prices.overhead(self.room.head, max(1, min(scene.local, beside)))
        carried = overhead.byte_ms * sum(self.ends_bytes) * rows
        return overhead.head_ms + rows * overhead.head_row_ms + carried


def _task(desk: Desk, load: Load, scene: Scene, objective: str) -> Task:
    groups, prices, head = desk.room.groups, desk.room.prices, desk.room.head
    kinds = tuple(_kind(desk, group, load, scene, objective) for group in groups)
    hops = tuple(tuple(prices.hop(_sender(one, two), two.first) for two in groups) for one in groups)
    came, went = (size * load.each for size in desk.ends_bytes)
    enter = tuple(_way(prices.hop(head, group.first), came) for group in groups)
    leave = tuple(_way(prices.hop(group.first, head), went) for group in groups)
    own = [desk.sizes(group).items(load.streams, load.rows) for group in groups]
    once = [desk.sizes(group).shared for group in groups]
    least = tuple(replace(each[0], size=min(weight.size for weight in each)) for each in zip(*once, strict=True))
    if len({*zip(own, once, strict=True)}) > 1:
        kinds = tuple(
            replace(kind, item_bytes=items, shared_bytes=tuple(weight.size for weight in shared))
            for kind, items, shared in zip(kinds, own, once, strict=True)
        )
    return Task(
        kinds,
        tuple(map(min, zip(*own, strict=True))),
        desk.sent(load.each),
        least,
        hops=hops,
        enter_ms=enter,
        leave_ms=leave,
        objective=objective,
        pools=tuple((frozenset(pool), kinds[pool[0]].count) for pool in desk.room.pools if len(pool) > 1),
    )


def _kind(desk: Desk, group: Group, load: Load, scene: Scene, objective: str) -> Kind:
    """A group as ``partition`` sees it.

    For throughput a stage's time is its share of what its cores have to do, so that of processes that take turns each
    counts as if all were like it, and the head's work once. A step on its way finds the cores free or does not; that
    it does is what it takes at least, and where it does not the cores are the limit anyway.
    """
    facts, member = desk.facts, group.first
    beside, stretch = desk.company(group, scene, load.active)
    if objective == "latency":
        stretch = 1.0
    overhead = desk.room.prices.overhead(member, beside)
    own = (overhead.stage_ms + load.each * overhead.stage_row_ms) * stretch
    if desk.hosts_head(group, stretch):
        own += load.lanes * desk.head_ms(scene, load.each)
    times = desk.room.prices.step_ms(member, beside, load.each, alone=load.alone)
    count = len(group.members)
    return Kind(
        count if group.crowd is None else min(count, scene.used[group.crowd]),
        times if stretch == 1 else tuple(ms * stretch for ms in times),
        UNLIMITED if desk.limitless else desk.memory(group, scene),
        own,
        overhead.byte_ms * stretch,
        facts.barred.get(member.name, frozenset()) | desk.room.prices.missing(member),
    )


def _sender(one: Group, two: Group) -> Member:
    """Another node than the receiver, where the kind has one: no stage sends to itself."""
    return one.members[-1] if one.pool == two.pool else one.first


def _way(hop: Hop, size: float) -> float:
    return hop.ms + size * hop.ms_per_byte
