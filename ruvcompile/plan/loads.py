"""What the pipelines of a shape are asked to do: how many sequences each holds, and how many rows its steps have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ruvcompile.plan.facts import Facts
from ruvcompile.plan.pace import grouping, in_ring, shares
from ruvcompile.plan.shapes import Shape


@dataclass(frozen=True)
class Load:
    """What a pipeline is asked to do.

    Attributes:
        rows: of a step; of the largest, where they differ.
        streams: sequences it holds.
        lanes: how many pipelines the head feeds.
        active: steps that are in all rings at a time, so that no more stages work at once; None: all of them do.
        usual: rows of a step on average, where not all have as many: 8 sequences are steps of 3, 3 and 2.
    """

    rows: int
    streams: int
    lanes: int = 1
    active: int | None = None
    usual: float | None = None

    @property
    def each(self) -> float:
        """Rows of a step on average."""
        return self.usual or self.rows

    @property
    def passing(self) -> Load:
        """The largest step on its way through one pipeline."""
        return replace(self, lanes=1, usual=None)

    @property
    def alone(self) -> bool:
        """Whether a single sequence (or caller) is all there is."""
        return self.rows == 1 and self.active == 1


@dataclass(frozen=True)
class Loads:
    """What the pipelines of a shape do.

    Attributes:
        full, less: those with the larger share of the sequences, and the others; the same where all have the same.
        alone: one that has a single sequence.
        shares: of sequences, one per pipeline, the larger ones first.
    """

    full: Load
    less: Load
    alone: Load
    shares: tuple[int, ...]


def loads_of(facts: Facts, shape: Shape) -> Loads:
    """What the pipelines of a shape do, with as many sequences as are planned for."""
    total = facts.streams(shape.nodes)
    each = shares(total, shape.replicas)
    lanes = min(shape.replicas, total)
    full, less = (load_of(facts, share, lanes, shape.stages) for share in (each[0], each[-1]))
    return Loads(full, less, Load(1, full.streams, active=1), each)


def load_of(facts: Facts, share: int, lanes: int, stages: int) -> Load:
    """What a pipeline with so many of the sequences does, one of ``lanes`` that have any."""
    if not share:
        return Load(1, share, lanes, lanes)
    steps = in_ring(share, stages, decoder=facts.decoder)
    rows = grouping(share, stages)[0] if facts.decoder else 1
    return Load(rows, share, lanes, lanes * steps, share / steps if facts.decoder and rows * steps > share else None)
