"""What a measurement of a program yields: the time of each of its units."""

from __future__ import annotations

from dataclasses import dataclass, field

from ruvrun.costs import NodeCost


@dataclass(frozen=True)
class UnitTime:
    """Times of one unit, in ms; see ``ruvrun.costs.UnitCost``."""

    ms: float
    spread: float
    ms_per_token: float = 0.0
    depth: int = 0
    chunk: int = 0
    nodes: list[NodeCost] = field(default_factory=list)
