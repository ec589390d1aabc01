"""What pipelines are worth: how long a step of theirs takes, and what that yields for many sequences and for one."""

from __future__ import annotations

from collections.abc import Sequence

from ruvcompile.partition import Stage, evaluate
from ruvcompile.plan.loads import Load, load_of
from ruvcompile.plan.nodes import Scene
from ruvcompile.plan.pace import Beat, calls_per_second, per_second, shares
from ruvcompile.plan.shapes import Solution
from ruvcompile.plan.tasks import Desk


class Judge:
    """Judges pipelines, and keeps what it found.

    Args:
        desk: knows the tasks.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk, self._facts = desk, desk.facts
        self._beats: dict[tuple[tuple[Stage, ...], Load, Scene], Beat] = {}

    def worth(self, stages: Sequence[Stage], load: Load, scene: Scene) -> float:
        """What a pipeline is chosen by, the more the better."""
        if self._facts.options.objective == "latency":
            return 1e3 / max(self.alone(stages, load, scene), 1e-9)
        return self.rate(stages, load, scene)

    def rate(self, stages: Sequence[Stage], load: Load, scene: Scene) -> float:
        """Tokens (or calls) per second of a pipeline with the sequences of its load."""
        if not load.streams:
            return 0.0
        each = per_second if self._facts.decoder else calls_per_second
        return each(self.beat(stages, load, scene), load.streams, len(stages), self._facts.waiting(load.streams))

    def rate_of(self, solution: Solution, streams: int) -> float:
        """The same of all pipelines of a solution, with so many sequences (or callers)."""
        stages, total = solution.shape.stages, 0.0
        for pipeline, share in zip(solution.pipelines, shares(streams, solution.shape.replicas), strict=True):
            load = load_of(self._facts, share, min(solution.shape.replicas, streams), stages)
            total += self.rate(pipeline, load, solution.scene)
        return total

    def alone(self, stages: Sequence[Stage], load: Load, scene: Scene) -> float:
        """Milliseconds that a single user waits for a token, or a call: nobody else is there."""
        return self.beat(stages, Load(1, load.streams, active=1), scene).through

    def beat(self, stages: Sequence[Stage], load: Load, scene: Scene) -> Beat:
        """A step of a load in a pipeline of these stages."""
        key = (tuple(stages), load, scene)
        if key not in self._beats:
            self._beats[key] = self._beat(*key)
        return self._beats[key]

    def _beat(self, stages: Sequence[Stage], load: Load, scene: Scene) -> Beat:
        slowest = evaluate(self._desk.task(load, scene, "throughput"), stages).bottleneck_ms
        through = evaluate(self._desk.task(load.passing, scene, "latency"), stages).latency_ms
        if not any(self._desk.room.groups[stage.kind].head for stage in stages):
            slowest = max(slowest, load.lanes * self._desk.head_ms(scene, load.each))
            through += self._desk.head_ms(scene, load.rows)
        return Beat(slowest, through)
