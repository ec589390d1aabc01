"""One shape, solved: the best cuts for so many pipelines of so many stages, and on which kinds of nodes they are.

Of one pipeline the best partition is the answer. Several have the same stages, so that one set of files serves them
all: the best partitions of every multiset of nodes give the cuts to try; for each, what is left is who holds which
stage, a partition problem of as many items as stages, again for every multiset; and of these pipelines the most
valuable that need no node twice are taken (``pick``).

What is best is said by ``Solution.value``: tokens per second of the asked sequences, or of one alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ruvcompile.partition import best, evaluate, frontier, objections
from ruvcompile.partition.task import Partition, Stage, Task
from ruvcompile.plan.nodes import Member, Scene, scenes
from ruvcompile.plan.pace import Beat, calls_per_second, grouping, in_ring, per_second, shares
from ruvcompile.plan.pick import pick
from ruvcompile.plan.shapes import Cuts, Shape, Solution, rounded
from ruvcompile.plan.tasks import Desk, Load, joined

_MOST_SORTS = 64
"""So many multisets of nodes are looked at one by one; of more, only the best one."""

_TEMPLATES = 3
_MOST_SWAPPED = 8


class Solver:
    """Solves shapes.

    Args:
        desk: makes the tasks.
        cuts: what each stage holds, where that is not to be chosen.
    """

    def __init__(self, desk: Desk, cuts: Cuts | None = None) -> None:
        self._desk, self._facts, self._cuts = desk, desk.facts, cuts
        self._found: dict[tuple[Shape, Cuts | None], Solution | None] = {}
        self._beats: dict[tuple[tuple[Stage, ...], Load, Scene], Beat] = {}

    def solve(self, shape: Shape, *, free: bool = False) -> Solution | None:
        """The best of the shape; None where none fits. ``free``: also where cuts are forced, as if they were not."""
        cuts = None if free else self._cuts
        if cuts is not None and len(cuts) != shape.stages:
            cuts = None
        if (shape, cuts) not in self._found:
            others = sum(len(group.members) for group in self._desk.room.groups if group.crowd is None)
            found: Solution | None = None
            for scene in scenes(self._facts.crowds, shape.nodes, others):
                for each in self._in_scene(shape, scene, cuts):
                    if found is None or self._better(each, found):
                        found = each
            self._found[shape, cuts] = found
        return self._found[shape, cuts]

    def _better(self, one: Solution, two: Solution) -> bool:
        objective = self._facts.options.objective
        return one.value(objective) > two.value(objective)

    def load(self, shape: Shape, streams: int | None = None) -> Load:
        """What its largest pipeline does, of so many sequences in all (None: as many as are planned for)."""
        total = self._facts.streams(shape.nodes) if streams is None else streams
        share = -(-total // shape.replicas)
        rows = grouping(share, shape.stages)[0] if self._facts.decoder else 1
        return self._load(rows, share, min(shape.replicas, total), shape.stages)

    def _load(self, rows: int, share: int, lanes: int, stages: int) -> Load:
        return Load(rows, share, lanes, lanes * in_ring(share, stages, decoder=self._facts.decoder))

    def _in_scene(self, shape: Shape, scene: Scene, cuts: Cuts | None) -> Iterable[Solution]:
        load = self.load(shape)
        for task in self._tasks(shape, load, scene):
            sorts = self._sorts(task, shape, scene)
            if cuts is not None:
                yield from self._with_cuts(shape, scene, load, task, cuts, sorts)
            elif shape.replicas == 1:
                for each in sorts:
                    yield self._solution(shape, scene, load, task, [(each.stages, each)])
            else:
                for template in self._templates(shape, scene, load, task, sorts):
                    yield from self._with_cuts(shape, scene, load, task, template, sorts)

    def _tasks(self, shape: Shape, load: Load, scene: Scene) -> list[Task]:
        """For one user what takes the least time; for many what is the least bottleneck, and where nodes are unlike,
        what takes the least time too: a round is limited by both.
        """
        if self._facts.options.objective == "latency":
            return [self._desk.task(replace(load, rows=1), scene, "latency")]
        steps = grouping(load.streams, shape.stages)[1] if self._facts.decoder else min(load.streams, 2 * shape.stages)
        wanted = ["throughput"]
        if shape.stages > 1 and (steps == 1 or _unlike(self._desk.task(load, scene, "throughput"))):
            wanted.append("latency")
        return [self._desk.task(load, scene, objective) for objective in wanted]

    def _sorts(self, task: Task, shape: Shape, scene: Scene) -> list[Partition]:
        """The best partition onto every multiset of nodes."""
        counts = [kind.count for kind in task.kinds]
        if _multisets(counts, shape.stages) <= _MOST_SORTS:
            found = list(frontier(task, shape.stages).values())
        else:
            found, left = [], task
            for _ in range(shape.replicas):
                each = best(left, stages=shape.stages)
                if each is None:
                    break
                found.append(each)
                left = _without(left, each.nodes(len(left.kinds)))
        return [each for each in found if self._allowed([each.nodes(len(task.kinds))], scene)]

    def _allowed(self, used: Sequence[Sequence[int]], scene: Scene) -> bool:
        """Whether no crowd is used more than the scene says, and no node twice."""
        groups = self._desk.room.groups
        total, taken = [0] * len(scene.used), [0] * len(self._desk.room.pools)
        for each in used:
            for group, count in zip(groups, each, strict=True):
                taken[group.pool] += count
                if group.crowd is not None:
                    total[group.crowd] += count
        there = [len(groups[pool[0]].members) for pool in self._desk.room.pools]
        limits = [*zip(total, scene.used, strict=True), *zip(taken, there, strict=True)]
        return all(have <= most for have, most in limits)

    def _templates(
        self, shape: Shape, scene: Scene, load: Load, task: Task, sorts: Sequence[Partition]
    ) -> Iterable[Cuts]:
        """The cuts that are worth trying: of the pipelines that were best if each had cuts of its own."""
        chosen = self._pick(shape, load, task, scene, [each.stages for each in sorts])
        if chosen is None:
            return ()
        often = sorted(range(len(sorts)), key=lambda number: -chosen[number])
        return list(dict.fromkeys(_items(sorts[number].stages) for number in often if chosen[number]))[:_TEMPLATES]

    def _with_cuts(
        self, shape: Shape, scene: Scene, load: Load, task: Task, cuts: Cuts, sorts: Sequence[Partition]
    ) -> Iterable[Solution]:
        """The best assignment of nodes to stages that are what ``cuts`` says."""
        small = joined(task, cuts)
        placed = [
            tuple(Stage(stage.kind, cuts[stage.items[0]]) for stage in each.stages)
            for each in self._sorts(small, shape, scene)
        ]
        chosen = self._pick(shape, load, task, scene, placed)
        if chosen is None:
            return
        bounds = {each.nodes(len(task.kinds)): each for each in sorts}
        pipelines = []
        for stages, count in zip(placed, chosen, strict=True):
            nodes = tuple(sum(stage.kind == kind for stage in stages) for kind in range(len(task.kinds)))
            pipelines += [(stages, bounds.get(nodes))] * count
        yield self._solution(shape, scene, load, task, pipelines)

    def _pick(
        self, shape: Shape, load: Load, task: Task, scene: Scene, placed: Sequence[tuple[Stage, ...]]
    ) -> tuple[int, ...] | None:
        needs = [tuple(sum(stage.kind == kind for stage in each) for kind in range(len(task.kinds))) for each in placed]
        if not needs:
            return None
        worth = [self._rate(each, load, scene) for each in placed]
        pools = self._desk.room.pools
        counts = [task.kinds[pool[0]].count for pool in pools]
        found = pick(
            [[sum(need[kind] for kind in pool) for pool in pools] for need in needs], worth, counts, shape.replicas
        )
        if found is None:
            return None
        used = [tuple(count * one for one in need) for need, count in zip(needs, found, strict=True)]
        return found if self._allowed(used, scene) else None

    def _rate(self, stages: Sequence[Stage], load: Load, scene: Scene) -> float:
        if self._facts.options.objective == "latency":
            return 1e3 / max(self._alone(stages, load, scene), 1e-9)
        beat = self.beat(stages, load, scene)
        if self._facts.decoder:
            return per_second(beat, load.streams, len(stages))
        return calls_per_second(beat, load.streams, len(stages))

    def _alone(self, stages: Sequence[Stage], load: Load, scene: Scene) -> float:
        """What a single user waits for a token, or a call: nobody else is there."""
        return self.beat(stages, Load(1, load.streams, active=1), scene).through

    def beat(self, stages: Sequence[Stage], load: Load, scene: Scene) -> Beat:
        """A step of ``load.rows`` rows in a pipeline of these stages."""
        key = (tuple(stages), load, scene)
        if key not in self._beats:
            self._beats[key] = self._beat(*key)
        return self._beats[key]

    def _beat(self, stages: Sequence[Stage], load: Load, scene: Scene) -> Beat:
        slowest = evaluate(self._desk.task(load, scene, "throughput"), stages).bottleneck_ms
        through = evaluate(self._desk.task(replace(load, lanes=1), scene, "latency"), stages).latency_ms
        if not any(self._desk.room.groups[stage.kind].head for stage in stages):
            head = self._desk.head_ms(scene, load.rows)
            slowest, through = max(slowest, load.lanes * head), through + head
        return Beat(slowest, through)

    def rate(self, solution: Solution, streams: int) -> float:
        """Tokens (or calls) per second of so many sequences (or callers)."""
        stages, total = solution.shape.stages, 0.0
        for pipeline, share in zip(solution.pipelines, shares(streams, solution.shape.replicas), strict=True):
            if share:
                rows = grouping(share, stages)[0] if self._facts.decoder else 1
                load = self._load(rows, share, min(solution.shape.replicas, streams), stages)
                beat = self.beat(pipeline, load, solution.scene)
                each = per_second if self._facts.decoder else calls_per_second
                total += each(beat, share, stages)
        return total

    def _solution(
        self,
        shape: Shape,
        scene: Scene,
        load: Load,
        task: Task,
        found: Sequence[tuple[tuple[Stage, ...], Partition | None]],
    ) -> Solution:
        straight = {stages: self._straight(task, stages) for stages, _ in found}
        found = [(straight[stages], proof) for stages, proof in found]
        order = sorted(found, key=lambda each: (rounded(self._alone(each[0], load, scene)), _kinds(each[0])))
        pipelines = tuple(stages for stages, _ in order)
        different = dict(order)
        values = ((evaluate(task, stages).value_ms, proof) for stages, proof in different.items())
        value, proof = max(values, key=lambda pair: pair[0])
        draft = Solution(
            shape,
            self._facts.streams(shape.nodes),
            scene,
            pipelines,
            _members(self._desk, pipelines),
            rate=0.0,
            single=1e3 / max(self._alone(pipelines[0], load, scene), 1e-9),
            aim=task.objective,
            value_ms=value,
            bound_ms=min(proof.bound_ms, value) if proof is not None else 0.0,
            exact=proof is not None and proof.exact,
            relaxed_ms=proof.relaxed_ms if proof is not None else 0.0,
            searched_ms=proof.searched_ms if proof is not None else 0.0,
        )
        return replace(draft, rate=self.rate(draft, draft.streams))

    def _straight(self, task: Task, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The same with its kinds in their own order as far as that costs nothing: the head's node first."""
        known = evaluate(task, stages)
        for one in range(min(len(stages), _MOST_SWAPPED)):
            for two in range(one + 1, min(len(stages), _MOST_SWAPPED)):
                if stages[one].kind <= stages[two].kind:
                    continue
                turned = list(stages)
                turned[one] = replace(stages[one], kind=stages[two].kind)
                turned[two] = replace(stages[two], kind=stages[one].kind)
                costs = evaluate(task, turned)
                same = rounded(costs.bottleneck_ms) <= rounded(known.bottleneck_ms)
                if same and rounded(costs.latency_ms) <= rounded(known.latency_ms) and not objections(task, turned):
                    stages, known = tuple(turned), costs
        return stages


def _without(task: Task, used: Sequence[int]) -> Task:
    """The same task with so many nodes of each kind fewer."""
    kinds = tuple(replace(kind, count=kind.count - taken) for kind, taken in zip(task.kinds, used, strict=True))
    pools = tuple((pool, count - sum(used[kind] for kind in pool)) for pool, count in task.pools)
    return replace(task, kinds=kinds, pools=pools)


def _unlike(task: Task) -> bool:
    """Whether it matters for a single pass which nodes are taken, or in which order."""
    used = [kind for kind in task.kinds if kind.count]
    return any(kind.item_ms != used[0].item_ms for kind in used) or len({hop for row in task.hops for hop in row}) > 1


def _members(desk: Desk, pipelines: Sequence[Sequence[Stage]]) -> tuple[tuple[Member, ...], ...]:
    """Nodes by name: of each kind the first ones that are left."""
    groups, left = desk.room.groups, [itertools.count() for _ in desk.room.pools]
    return tuple(
        tuple((group := groups[stage.kind]).members[next(left[group.pool])] for stage in stages) for stages in pipelines
    )


def _items(stages: Sequence[Stage]) -> Cuts:
    return tuple(stage.items for stage in stages)


def _kinds(stages: Sequence[Stage]) -> tuple[int, ...]:
    return tuple(stage.kind for stage in stages)


def _multisets(counts: Sequence[int], size: int) -> int:
    """How many multisets of ``size`` there are; more than enough where they are very many."""
    ways = [1] + [0] * size
    for count in counts:
        ways = [sum(ways[total - taken] for taken in range(min(count, total) + 1)) for total in range(size + 1)]
    return ways[size]
