"""One shape, solved: the best cuts for so many pipelines of so many stages, and on which kinds of nodes they are.

Of one pipeline the partition with the least round is the answer, or for a single user the one with the least latency;
that is searched over all convex cuts, with the head's node and without it. Several have the same cuts, so that one set
of files serves them all: every way to cut and every choice of nodes where those are few enough (``every``), else the
most promising cuts (``copies``).

What is best is said by ``Solution.value``: tokens per second of the asked sequences, or of one alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ruvcompile.partition import Ask, Partition, Stage, Task, best_each, evaluate, objections, rounds, sets_of
from ruvcompile.partition.joined import joined
from ruvcompile.partition.states import Nodes
from ruvcompile.plan.copies import Copies
from ruvcompile.plan.every import allowed, every_choice
from ruvcompile.plan.judge import Judge
from ruvcompile.plan.loads import Load, Loads, loads_of
from ruvcompile.plan.nodes import Member, Scene, scenes
from ruvcompile.plan.shapes import Cuts, Proof, Shape, Solution, proof_of, rounded
from ruvcompile.plan.tasks import Desk

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
        self._judge = Judge(desk)

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

    def _in_scene(self, shape: Shape, scene: Scene, cuts: Cuts | None) -> Iterable[Solution]:
        loads = loads_of(self._facts, shape)
        if shape.replicas == 1:
            yield from self._single(shape, scene, loads, cuts)
            return
        pipelines, whole = every_choice(self._desk, shape, scene, loads, cuts), True
        tried: Iterable[tuple[tuple[Stage, ...], ...]] = [pipelines] if pipelines else []
        if pipelines is None:
            task, way, steps = self._priced(loads, scene)
            copies = Copies(
                self._desk, scene, shape, task, way, steps, lambda stages: self._judge.worth(stages, loads.full, scene)
            )
            tried, whole = copies.tried(cuts), False
        for each in tried:
            yield self._solution(shape, scene, loads, each, self._proof(scene, loads, each, whole=whole))

    def _single(self, shape: Shape, scene: Scene, loads: Loads, cuts: Cuts | None) -> Iterable[Solution]:
        """The best with the head's node among its own, and without."""
        task, way, steps = self._priced(loads, scene)
        if cuts is not None:
            task, way = joined(task, cuts), joined(way, cuts)
        sets = [nodes for nodes in sets_of(task, shape.stages) if allowed(self._desk, task, nodes, scene)]
        found = list(self._best(scene, loads, task, way, steps, self._parted(sets)))
        if sets and not (found and all(proof.exact for _, proof in found)):
            listed = every_choice(self._desk, shape, scene, loads, cuts)
            if listed is not None:
                for stages in listed:
                    yield self._solution(shape, scene, loads, (stages,), self._listed(scene, loads, stages))
                return
        for stages, proof in found:
            placed = tuple(stage if cuts is None else Stage(stage.kind, cuts[stage.items[0]]) for stage in stages)
            yield self._solution(shape, scene, loads, (placed,), proof)

    def _parted(self, sets: Iterable[Nodes]) -> list[tuple[Nodes, ...]]:
        """Those sets of nodes that have the head's among them, and the others."""
        parts: dict[bool, list[Nodes]] = {True: [], False: []}
        for nodes in sets:
            parts[self._has_head(_used(nodes))].append(nodes)
        return [tuple(some) for some in parts.values() if some]

    def _has_head(self, kinds: Iterable[int]) -> bool:
        return any(self._desk.room.groups[kind].head for kind in kinds)

    def _priced(self, loads: Loads, scene: Scene) -> tuple[Task, Task, int]:
        """What a pipeline is cut for: its times, those on the way, and how many steps are in the ring."""
        if self._facts.options.objective == "latency":
            return (*self._tasks(loads.alone, scene), 1)
        steps = loads.full.active
        return (*self._tasks(loads.full, scene), (steps or 1) // loads.full.lanes)

    def _tasks(self, load: Load, scene: Scene) -> tuple[Task, Task]:
        desk = self._desk
        return desk.task(load, scene, "throughput"), desk.task(load.passing, scene, "latency")

    def _best(
        self, scene: Scene, loads: Loads, task: Task, way: Task, steps: int, parts: Sequence[tuple[Nodes, ...]]
    ) -> Iterable[tuple[tuple[Stage, ...], Proof]]:
        """The best stages over any of the sets of nodes of each part, in which all have the head or none."""
        if self._facts.options.objective == "latency":
            for found in best_each(way, parts):
                if found is not None:
                    yield found.stages, proof_of("latency", found.value_ms, found, exact=True)
            return
        head = self._desk.head_ms(scene, loads.full.rows)
        asks = [Ask(sets, 0.0 if self._has_head(_used(sets[0])) else head) for sets in parts]
        for each in rounds(task, way, steps, asks):
            if each is not None:
                yield each.best.stages, _told(each.best, each.narrowest)

    def _listed(self, scene: Scene, loads: Loads, stages: tuple[Stage, ...]) -> Proof:
        """Of a pipeline that is the best of all that there are, one by one."""
        if self._facts.options.objective == "latency":
            value = self._judge.alone(stages, loads.full, scene)
            return Proof("latency", value, value, True, 0.0, value)
        beat, steps = self._judge.beat(stages, loads.full, scene), self._priced(loads, scene)[2]
        value = max(steps * beat.slowest, beat.through)
        return Proof("round", value, value, True, 0.0, value)

    def _proof(self, scene: Scene, loads: Loads, pipelines: Sequence[tuple[Stage, ...]], *, whole: bool) -> Proof:
        """Of several pipelines with the same cuts: of the slowest, against what it could do with cuts of its own."""
        task, way, _ = self._priced(loads, scene)
        aimed = way if self._facts.options.objective == "latency" else task
        known: dict[Nodes, Partition] = {}
        for stages in pipelines:
            costs = evaluate(aimed, stages)
            nodes = costs.nodes(len(task.kinds))
            if nodes not in known or known[nodes].value_ms < costs.value_ms:
                known[nodes] = costs
        nodes, slowest = max(known.items(), key=lambda pair: pair[1].value_ms)
        (found,) = best_each(aimed, [[nodes]])
        if found is None:  # weights that are held once, and a search that tells memory too strictly
            return Proof(aimed.objective, slowest.value_ms, 0.0, False, 0.0, 0.0)
        return proof_of(aimed.objective, slowest.value_ms, found, exact=whole)

    def _solution(
        self, shape: Shape, scene: Scene, loads: Loads, found: Sequence[tuple[Stage, ...]], proof: Proof
    ) -> Solution:
        """Those pipelines, with their kinds in order where all of them together lose nothing by it.

        One that serves a single sequence sooner gets a larger share, of which another one might have made more.
        """
        straight = [self._straight(scene, loads, stages) for stages in found]
        made = self._drafted(shape, scene, loads, straight, proof)
        if straight == list(found):
            return made
        as_found = self._drafted(shape, scene, loads, found, proof)
        return as_found if self._better(as_found, made) else made

    def _drafted(
        self, shape: Shape, scene: Scene, loads: Loads, found: Sequence[tuple[Stage, ...]], proof: Proof
    ) -> Solution:
        """Pipelines in the order in which they get their shares, and what they give."""
        pipelines = sorted(found, key=lambda stages: (*self._turn(scene, loads, stages), _kinds(stages)))
        draft = Solution(
            shape,
            sum(loads.shares),
            scene,
            tuple(pipelines),
            _members(self._desk, pipelines),
            rate=0.0,
            single=1e3 / max(self._judge.alone(pipelines[0], loads.full, scene), 1e-9),
            proof=proof,
        )
        return replace(draft, rate=self._judge.rate_of(draft, draft.streams))

    def _turn(self, scene: Scene, loads: Loads, stages: tuple[Stage, ...]) -> tuple[float, float]:
        """The order of pipelines: what serves one soonest first, of equal ones what makes most of a larger share."""
        gain = self._judge.rate(stages, loads.full, scene) - self._judge.rate(stages, loads.less, scene)
        return rounded(self._judge.alone(stages, loads.full, scene)), -rounded(gain)

    def _straight(self, scene: Scene, loads: Loads, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The same with its kinds in their own order as far as that costs nothing: the head's node first."""
        task = self._desk.task(loads.full, scene, "throughput")
        known = self._all_beats(scene, loads, stages)
        for one in range(min(len(stages), _MOST_SWAPPED)):
            for two in range(one + 1, min(len(stages), _MOST_SWAPPED)):
                if stages[one].kind <= stages[two].kind:
                    continue
                turned = list(stages)
                turned[one] = replace(stages[one], kind=stages[two].kind)
                turned[two] = replace(stages[two], kind=stages[one].kind)
                costs = self._all_beats(scene, loads, turned)
                if all(a <= b for a, b in zip(costs, known, strict=True)) and not objections(task, turned):
                    stages, known = tuple(turned), costs
        return stages

    def _all_beats(self, scene: Scene, loads: Loads, stages: Sequence[Stage]) -> list[float]:
        """All that a pipeline is judged by."""
        beats = [self._judge.beat(stages, load, scene) for load in dict.fromkeys((loads.full, loads.less, loads.alone))]
        return [rounded(ms) for beat in beats for ms in (beat.slowest, beat.through)]


def _told(best: Partition, narrowest: Partition) -> Proof:
    """Of the best pipeline: its bottleneck, unless the least one is less."""
    if best.bottleneck_ms * (1 - 1e-9) <= narrowest.bottleneck_ms:
        return proof_of("throughput", best.bottleneck_ms, narrowest, exact=best.exact)
    return proof_of("round", best.value_ms, best, exact=True)


def _used(nodes: Nodes) -> list[int]:
    return [kind for kind, count in enumerate(nodes) if count]


def _members(desk: Desk, pipelines: Sequence[Sequence[Stage]]) -> tuple[tuple[Member, ...], ...]:
    """Nodes by name: of each kind the first ones that are left."""
    groups, left = desk.room.groups, [itertools.count() for _ in desk.room.pools]
    return tuple(
        tuple((group := groups[stage.kind]).members[next(left[group.pool])] for stage in stages) for stages in pipelines
    )


def _kinds(stages: Sequence[Stage]) -> tuple[int, ...]:
    return tuple(stage.kind for stage in stages)
