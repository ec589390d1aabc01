"""Several pipelines with the same cuts, where there are too many to look at all (``every``): cuts are tried one by one.

Those of the pipelines that were best if each had cuts of its own, ``_TEMPLATES`` of them. For each, what is left is who
holds which stage, a partition problem of as many items as stages for every multiset of nodes; and of these pipelines
the most valuable that need no node twice are taken (``pick``). Where cuts are given, or stages are whole copies, that
is the best there is as long as all pipelines have equal shares; else better cuts may exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ruvcompile.partition import Ask, Stage, Task, rounds, sets_of
from ruvcompile.partition.joined import joined
from ruvcompile.plan.every import Pipelines, allowed
from ruvcompile.plan.nodes import Scene
from ruvcompile.plan.pick import pick
from ruvcompile.plan.shapes import Cuts, Shape
from ruvcompile.plan.tasks import Desk

_MOST_SORTS = 64
"""So many multisets of nodes are looked at one by one; of more, only the best ones of what the others leave."""
_TEMPLATES = 3


@dataclass(frozen=True)
class Copies:
    """What pipelines are chosen from.

    Attributes:
        task, way, steps: of a pipeline with the larger share, as ``rounds`` takes them.
        worth: of one pipeline, the more the better.
    """

    desk: Desk
    scene: Scene
    shape: Shape
    task: Task
    way: Task
    steps: int
    worth: Callable[[tuple[Stage, ...]], float]

    def tried(self, cuts: Cuts | None) -> Iterator[Pipelines]:
        """The best pipelines with every cut that is tried."""
        templates = [cuts] if cuts is not None else []
        if cuts is None:
            sorts = self._sorts(self.task, self.way)
            chosen = self._picked(sorts) or (0,) * len(sorts)
            often = sorted(((count, -number) for number, count in enumerate(chosen) if count), reverse=True)
            templates = list(dict.fromkeys(_items(sorts[-number]) for _, number in often))[:_TEMPLATES]
        for items in templates:
            small = self._sorts(joined(self.task, items), joined(self.way, items))
            placed = [tuple(Stage(stage.kind, items[stage.items[0]]) for stage in stages) for stages in small]
            found = self._picked(placed)
            if found is not None:
                yield tuple(stages for stages, count in zip(placed, found, strict=True) for _ in range(count))

    def _sorts(self, task: Task, way: Task) -> list[tuple[Stage, ...]]:
        """The best pipeline of every multiset of nodes."""
        if _multisets([kind.count for kind in task.kinds], self.shape.stages) <= _MOST_SORTS:
            asks = [Ask((nodes,)) for nodes in self._sets(task)]
            return [each.best.stages for each in rounds(task, way, self.steps, asks) if each is not None]
        found: list[tuple[Stage, ...]] = []
        for _ in range(self.shape.replicas):
            (each,) = rounds(task, way, self.steps, [Ask(tuple(self._sets(task)))])
            if each is None:
                break
            if each.best.stages not in found:
                found.append(each.best.stages)
            task, way = (_without(some, each.best.nodes(len(task.kinds))) for some in (task, way))
        return found

    def _sets(self, task: Task) -> list[tuple[int, ...]]:
        return [nodes for nodes in sets_of(task, self.shape.stages) if allowed(self.desk, task, nodes, self.scene)]

    def _picked(self, placed: Sequence[tuple[Stage, ...]]) -> Sequence[int] | None:
        """How many of each; None where there are not enough nodes."""
        kinds, pools = range(len(self.task.kinds)), list(self.task.pools)
        pools += [
            (frozenset({kind}), self.task.kinds[kind].count)
            for kind in kinds
            if not any(kind in pool for pool, _ in self.task.pools)
        ]
        needs = [[sum(stage.kind in pool for stage in stages) for pool, _ in pools] for stages in placed]
        if not needs:
            return None
        found = pick(needs, [self.worth(stages) for stages in placed], [most for _, most in pools], self.shape.replicas)
        if found is None:
            return None
        used = [
            sum(
                count * sum(stage.kind == kind for stage in stages) for stages, count in zip(placed, found, strict=True)
            )
            for kind in kinds
        ]
        return found if allowed(self.desk, self.task, used, self.scene) else None


def _without(task: Task, used: Sequence[int]) -> Task:
    """The same task with so many nodes of each kind fewer."""
    kinds = tuple(replace(kind, count=kind.count - taken) for kind, taken in zip(task.kinds, used, strict=True))
    pools = tuple((pool, count - sum(used[kind] for kind in pool)) for pool, count in task.pools)
    return replace(task, kinds=kinds, pools=pools)


def _items(stages: Sequence[Stage]) -> Cuts:
    return tuple(stage.items for stage in stages)


def _multisets(counts: Sequence[int], size: int) -> int:
    """How many multisets of ``size`` there are; more than enough where they are very many."""
    ways = [1] + [0] * size
    for count in counts:
        ways = [sum(ways[total - taken] for taken in range(min(count, total) + 1)) for total in range(size + 1)]
    return ways[size]
