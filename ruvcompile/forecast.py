"""What a plan expects of every part of a fleet: curves, not numbers. Made by ``plan``, read by simulation and report.

Times in ms, sizes in bytes. A step is one pass of ``rows`` sequences with one token each (decoders) or one call (any
other graph); a chunk is a piece of one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from ruvrun.costs import along
from ruvrun.manifest.blocks import Pool


@dataclass(frozen=True)
class Curve:
    """``(x, ms)``, ascending in x: straight between the points, and beyond them as it ended; never below 0."""

    points: tuple[tuple[float, float], ...]

    def __call__(self, x: float) -> float:
        """Milliseconds at ``x``."""
        return along(self.points, x)


@dataclass(frozen=True)
class StageForecast:
    """A stage on a node: ``step_ms`` over rows, ``chunk_ms`` over tokens of a prompt (zero for graphs).

    Its process's own work on each step is in both.
    """

    node: str
    step_ms: Curve
    chunk_ms: Curve


@dataclass(frozen=True)
class HopForecast:
    """The way from one node to the next: per message, per byte; and the bytes one token (or call) sends over it."""

    latency_ms: float
    ms_per_byte: float
    bytes_per_row: int

    def ms(self, rows: float) -> float:
        """From the moment it is sent until it is there."""
        return self.latency_ms + self.ms_per_byte * self.bytes_per_row * rows


@dataclass(frozen=True)
class PipelineForecast:
    """Stages in order; ``hops`` has one more: head to first stage, between stages, last stage to head.

    ``pool`` is what its sequences share where all stages have their space in blocks: then more of them are at work.
    """

    stages: tuple[StageForecast, ...]
    hops: tuple[HopForecast, ...]
    pool: Pool | None = None


@dataclass(frozen=True)
class Forecast:
    """The whole fleet: pipelines that serve the same model, and the head that feeds them all.

    ``head_ms`` is the head's work per step over rows; ``head_node`` the node whose cores do it. ``streams`` sequences
    of ``context`` tokens fit each pipeline; ``chunk`` tokens of a prompt go into one step. ``decoder`` is False for any
    other graph, whose calls are steps of one row.
    """

    pipelines: tuple[PipelineForecast, ...]
    head_node: str
    head_ms: Curve
    decoder: bool
    streams: int
    context: int
    chunk: int
    cost_source: str = "measured"
