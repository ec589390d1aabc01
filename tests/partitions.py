"""Every partition of a small task, by trying them all: downsets as sets, stages one after the other, nothing clever."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from ruvcompile.partition import Stage, Task

Nodes = tuple[int, ...]
Items = frozenset[int]


class Exhaustive:
    """All partitions of a task that keep every rule and fit."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.everything = frozenset(range(len(task.item_bytes)))
        self.downsets = [
            items
            for mask in range(1 << len(self.everything))
            if self._closed(items := frozenset(item for item in self.everything if mask >> item & 1))
        ]
        self.crossing = cache(self._crossing)
        self.stage = cache(self._stage)

    def best(self, stages: int) -> dict[Nodes, tuple[float, float]]:
        """For every choice of nodes the least value, and the least latency of those that have it."""
        found: dict[Nodes, tuple[float, float]] = {}
        for kinds, cuts in self.all(stages):
            nodes = tuple(kinds.count(kind) for kind in range(len(self.task.kinds)))
            bottleneck, latency = self.cost(kinds, cuts)
            value = latency if self.task.objective == "latency" else bottleneck
            if nodes not in found or (value, latency) < found[nodes]:
                found[nodes] = (value, latency)
        return found

    def all(self, stages: int) -> Iterator[tuple[list[int], list[Items]]]:
        """Kinds and downsets, of which the first is empty and the last everything."""
        yield from self._grown([], [frozenset()], stages)

    def cost(self, kinds: list[int], cuts: list[Items]) -> tuple[float, float]:
        """Bottleneck and latency."""
        task = self.task
        times = [self.stage(kind, *ends) for kind, ends in zip(kinds, pairwise(cuts), strict=True)]
        hops = [task.hop(*pair) for pair in pairwise(kinds)]
        links = [self.crossing(cut) * hop.ms_per_byte for cut, hop in zip(cuts[1:-1], hops, strict=True)]
        found = [time for time in times if time is not None]
        assert len(found) == len(times)
        latency = sum(found) + sum(links) + sum(hop.ms for hop in hops) + task.ends_ms(kinds[0], kinds[-1])
        return max(found + links), latency

    def stages(self, kinds: list[int], cuts: list[Items]) -> list[Stage]:
        """The same as stages."""
        parts = [tuple(sorted(after - before)) for before, after in pairwise(cuts)]
        return [Stage(kind, part) for kind, part in zip(kinds, parts, strict=True)]

    def _grown(self, kinds: list[int], cuts: list[Items], left: int) -> Iterator[tuple[list[int], list[Items]]]:
        if not left:
            if cuts[-1] == self.everything:
                yield kinds, cuts
            return
        counts = range(len(self.task.kinds))
        for cut in self.downsets:
            if cut > cuts[-1] and (cut == self.everything) == (left == 1):
                for kind in counts:
                    nodes = [[*kinds, kind].count(each) for each in counts]
                    pooled = all(sum(nodes[each] for each in pool) <= most for pool, most in self.task.pools)
                    there = nodes[kind] <= self.task.kinds[kind].count and pooled
                    if there and self.stage(kind, cuts[-1], cut) is not None:
                        yield from self._grown([*kinds, kind], [*cuts, cut], left - 1)

    def _closed(self, items: Items) -> bool:
        return all(
            value.maker < 0 or value.maker in items or items.isdisjoint(value.readers) for value in self.task.values
        )

    def _crossing(self, cut: Items) -> int:
        return sum(value.size for value in self.task.values if self._crosses(cut, value.maker, value.readers))

    @staticmethod
    def _crosses(cut: Items, maker: int, readers: tuple[int, ...]) -> bool:
        return (maker < 0 or maker in cut) and any(reader not in cut for reader in readers)

    def _stage(self, number: int, before: Items, after: Items) -> float | None:
        """The time of a stage; None where it may not be."""
        task, kind, items = self.task, self.task.kinds[number], after - before
        if not kind.barred.isdisjoint(items):
            return None
        for value in task.values:
            arrives = self._crosses(before, value.maker, value.readers)
            if value.kinds is not None and number not in value.kinds and (arrives or value.maker in items):
                return None
            leaves = self._crosses(after, value.maker, value.readers)
            if not value.crosses and ((arrives and before) or (leaves and after != self.everything)):
                return None
        sizes, once = kind.item_bytes or task.item_bytes, kind.shared_bytes or [each.size for each in task.shared]
        held = task.runtime_bytes + sum(sizes[item] for item in items)
        held += sum(size for size, each in zip(once, task.shared, strict=True) if items & set(each.readers))
        if held > kind.memory:
            return None
        moved = self.crossing(before) + self.crossing(after)
        return kind.stage_ms + sum(kind.item_ms[item] for item in items) + kind.byte_ms * moved
