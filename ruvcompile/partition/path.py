"""A partition while it is searched for: stages between downsets, over the fields of a task."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ruvcompile.partition.fields import Fields
from ruvcompile.partition.task import Hop


@dataclass(frozen=True)
class Path:
    """Stages as (kind, first downset, last downset), and what was to be small."""

    stages: tuple[tuple[int, int, int], ...]
    value: float

    def hops(self, fields: Fields) -> list[tuple[Hop, float]]:
        """The ways between the stages, and the bytes that go there."""
        return [
            (fields.task.hop(one, two), float(fields.crossing[cut]))
            for (one, _, cut), (two, _, _) in pairwise(self.stages)
        ]

    def busiest(self, fields: Fields) -> float:
        """The time of the slowest stage or link."""
        links = [size * hop.ms_per_byte for hop, size in self.hops(fields)]
        return max(self._times(fields) + links)

    def through(self, fields: Fields) -> float:
        """The latency, from the head and back."""
        links = [hop.ms + size * hop.ms_per_byte for hop, size in self.hops(fields)]
        ends = fields.task.ends_ms(self.stages[0][0], self.stages[-1][0])
        return sum(self._times(fields)) + sum(links) + ends

    def _times(self, fields: Fields) -> list[float]:
        return [float(fields.ends[kind][last] - fields.begins[kind][first]) for kind, first, last in self.stages]
