"""The shapes a fleet may take, and what one of them is once it is solved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ruvcompile.partition.task import Partition, Stage
from ruvcompile.plan.nodes import Member, Scene

Cuts = tuple[tuple[int, ...], ...]
"""The items of each stage."""


@dataclass(frozen=True)
class Shape:
    """How many pipelines of how many stages."""

    replicas: int
    stages: int

    @property
    def nodes(self) -> int:
        """How many nodes it takes."""
        return self.replicas * self.stages


@dataclass(frozen=True)
class Proof:
    """How good a pipeline is proven to be; of several, the one that takes the longest.

    Attributes:
        aim: what is told, ``throughput`` (the bottleneck), ``round`` (the time in which every sequence gets a token) or
            ``latency``. The first where the best pipeline also has the least bottleneck.
        value_ms, bound_ms: that of the pipeline; no partition onto its nodes, with cuts of its own, has less than the
            second.
        exact: whether nothing was left out in the search.
        relaxed_ms, searched_ms: both bounds, as of a ``Partition``.
    """

    aim: str
    value_ms: float
    bound_ms: float
    exact: bool
    relaxed_ms: float
    searched_ms: float


def proof_of(aim: str, value_ms: float, proven: Partition, *, exact: bool) -> Proof:
    """What is proven of a value by a partition that was searched for the least."""
    bounds = proven.relaxed_ms, proven.searched_ms
    return Proof(aim, value_ms, min(proven.bound_ms, value_ms), exact and proven.exact, *bounds)


@dataclass(frozen=True)
class Solution:
    """A shape with its pipelines.

    Attributes:
        streams: sequences (or callers) at a time, of all pipelines together.
        scene: who is used beside whom.
        pipelines: the stages of each; all have the same items.
        members: which node holds which stage, as ``pipelines``.
        rate, single: tokens (or calls) per second of all sequences together, and of one alone.
        proof: how good that is.
    """

    shape: Shape
    streams: int
    scene: Scene
    pipelines: tuple[tuple[Stage, ...], ...]
    members: tuple[tuple[Member, ...], ...]
    rate: float
    single: float
    proof: Proof

    @property
    def cuts(self) -> Cuts:
        """The items of each stage."""
        return tuple(stage.items for stage in self.pipelines[0])

    def value(self, objective: str) -> tuple[float, int, float]:
        """What is to be large; of equal ones what uses fewer nodes, then what is better at the other."""
        first, second = (self.single, self.rate) if objective == "latency" else (self.rate, self.single)
        return rounded(first), -self.shape.nodes, rounded(second)


def rounded(value: float) -> float:
    """Sums of the same times in another order differ in the last digits."""
    return float(f"{value:.10g}") if math.isfinite(value) else value
