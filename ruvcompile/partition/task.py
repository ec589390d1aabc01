"""The partition problem and its answer as nouns. Times in ms per step, sizes in bytes.

*Items* 0..n-1 are the units of the graph, in a topological order. A *stage* is a convex set of items on one node; a
*partition* is a sequence of stages whose running unions are downsets (whatever an item reads is made in its own stage
or before). Nodes that are equal in all that counts here are one *kind*, of which there are ``count``.

What a partition costs, with ``in`` and ``out`` the bytes of the values that cross the cuts before and behind a stage
(before the first: what comes in with the request; behind the last: the results):

* a stage's time: ``stage_ms + sum(item_ms) + byte_ms * (in + out)`` of its kind;
* a link's time: the bytes of its cut times ``ms_per_byte`` of the hop between the two kinds;
* the *bottleneck* is the largest of all these: one step after the other passes each resource;
* the *latency* is all stages' times, plus each hop's ``ms + bytes * ms_per_byte``, plus what the ways from the head to
  the first stage and from the last one to the head take;
* a stage's memory: ``runtime_bytes``, the ``item_bytes`` of its items, and each shared weight that any of them reads,
  as large as they are on its kind.

A value crosses a cut when it is made before and read behind it. A stage *touches* the values that it makes, reads or
only hands on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

UNLIMITED = 2**60
"""Memory that nothing fills."""


@dataclass(frozen=True)
class Value:
    """A tensor that may travel.

    Attributes:
        maker: the item that makes it; -1: it comes in with the request.
        readers: the items that read it; n stands for the end of the pipeline, which reads the results.
        size: bytes per step.
        crosses: whether it may cross a cut between two stages at all.
        kinds: indices of the kinds whose nodes may touch it; None: all.
    """

    maker: int
    readers: tuple[int, ...]
    size: int
    crosses: bool = True
    kinds: frozenset[int] | None = None


@dataclass(frozen=True)
class Shared:
    """A weight that several items read: a stage that has any of them holds it once; not part of ``item_bytes``."""

    readers: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Kind:
    """Equal nodes.

    Attributes:
        count: how many there are.
        item_ms: time of each item here.
        memory: usable bytes of one node.
        stage_ms: what a stage takes per step beside its items.
        byte_ms: CPU time per byte that a stage takes in or hands on.
        barred: items that such a node may not hold.
        item_bytes, shared_bytes: memory of each item and of each shared weight here; empty: as the task says.
    """

    count: int
    item_ms: tuple[float, ...]
    memory: int = UNLIMITED
    stage_ms: float = 0.0
    byte_ms: float = 0.0
    barred: frozenset[int] = frozenset()
    item_bytes: tuple[int, ...] = ()
    shared_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hop:
    """The way from one node to the next: ``ms`` per message, and per byte."""

    ms: float = 0.0
    ms_per_byte: float = 0.0


@dataclass(frozen=True)
class Task:
    """What to divide, and among what.

    Attributes:
        kinds: the nodes there are.
        item_bytes: memory of each item: weights as loaded, key/value space. Where a kind says otherwise, of those the
            least.
        values: everything that may cross a cut; one maker may have several. They also are the order that must be
            kept: a reader comes after the maker.
        shared: weights that are held once by a stage.
        runtime_bytes: what a stage's process needs besides.
        hops: ``hops[a][b]`` is the way from a node of kind a to one of kind b; empty: nothing costs anything.
        enter_ms, leave_ms: per kind, from the head to a first stage there and back from a last one; count for latency
            only. Empty: nothing.
        objective: ``throughput`` (least bottleneck, of equal ones the least latency) or ``latency``.
        pools: kinds that are the same nodes in several guises, and how many nodes those are together.
    """

    kinds: tuple[Kind, ...]
    item_bytes: tuple[int, ...]
    values: tuple[Value, ...]
    shared: tuple[Shared, ...] = ()
    runtime_bytes: int = 0
    hops: tuple[tuple[Hop, ...], ...] = ()
    enter_ms: tuple[float, ...] = ()
    leave_ms: tuple[float, ...] = ()
    objective: str = "throughput"
    pools: tuple[tuple[frozenset[int], int], ...] = ()

    def there_are(self, nodes: Sequence[int]) -> bool:
        """Whether there are so many nodes of each kind at a time."""
        within = all(number <= kind.count for number, kind in zip(nodes, self.kinds, strict=True))
        return within and all(sum(nodes[kind] for kind in kinds) <= most for kinds, most in self.pools)

    def sized(self, kind: int) -> tuple[tuple[int, ...], tuple[Shared, ...]]:
        """Memory of items and of shared weights on a kind."""
        own = self.kinds[kind]
        if not own.shared_bytes:
            return own.item_bytes or self.item_bytes, self.shared
        sizes = zip(self.shared, own.shared_bytes, strict=True)
        return own.item_bytes or self.item_bytes, tuple(replace(each, size=size) for each, size in sizes)

    def hop(self, sender: int, receiver: int) -> Hop:
        """The way between nodes of two kinds."""
        return self.hops[sender][receiver] if self.hops else Hop()

    def ends_ms(self, first: int, last: int) -> float:
        """From the head to a first stage of kind ``first``, and from a last one of kind ``last`` to the head."""
        return (self.enter_ms[first] if self.enter_ms else 0.0) + (self.leave_ms[last] if self.leave_ms else 0.0)


@dataclass(frozen=True)
class Stage:
    """One stage: the kind of its node, and its items in ascending order."""

    kind: int
    items: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """Stages in order, what they cost, and how good that is proven to be.

    Attributes:
        stages: first to last.
        stage_ms: each stage's time.
        stage_bytes: each stage's memory.
        cut_bytes: what crosses before the first stage, between the stages, and behind the last: one more than stages.
        link_ms: each link's time; one fewer than stages.
        latency_ms: of one step through all of it, the ways to and from the head included.
        value_ms: what was to be small: the bottleneck or the latency.
        bound_ms: no partition of the kind that was asked for has a smaller value.
        gap: (value - bound) / value.
        exact: whether every partition was considered: nothing was contracted or given up.
        relaxed_ms: what no partition beats that may also divide items (``bound``); 0 where that was not looked at.
        searched_ms: what none of those that were looked at beats: all of them, unless items were put together first.
    """

    stages: tuple[Stage, ...]
    stage_ms: tuple[float, ...]
    stage_bytes: tuple[int, ...]
    cut_bytes: tuple[int, ...]
    link_ms: tuple[float, ...]
    latency_ms: float
    value_ms: float
    bound_ms: float = 0.0
    gap: float = 1.0
    exact: bool = False
    relaxed_ms: float = 0.0
    searched_ms: float = 0.0

    @property
    def bottleneck_ms(self) -> float:
        """The time of the slowest stage or link."""
        return max(*self.stage_ms, *self.link_ms, 0.0)

    def nodes(self, kinds: int) -> tuple[int, ...]:
        """How many nodes of each of ``kinds`` kinds it takes."""
        used = [stage.kind for stage in self.stages]
        return tuple(used.count(kind) for kind in range(kinds))

    def proven(self, bound_ms: float, *, exact: bool) -> Partition:
        """The same with a bound, which is at most the value; what differs in the last digits only is the same."""
        bound = self.value_ms if bound_ms >= self.value_ms * (1 - 1e-9) else max(bound_ms, 0.0)
        gap = (self.value_ms - bound) / self.value_ms if self.value_ms > 0 else 0.0
        return replace(self, bound_ms=bound, gap=gap, exact=exact)


def without_limits(task: Task) -> Task:
    """The same task on nodes whose memory nothing fills."""
    return replace(task, kinds=tuple(replace(kind, memory=UNLIMITED) for kind in task.kinds))


def order_of(stages: Sequence[Stage]) -> tuple[int, ...]:
    """All items stage by stage: a topological order in which every stage is an interval."""
    return tuple(item for stage in stages for item in stage.items)
