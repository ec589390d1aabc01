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

    def ms(self, rows: int, tokens: int) -> float:
        """A step of ``rows`` sequences that decode and of ``tokens`` of a prompt.

        Where it has both, each token of the prompt adds what one more adds to a small chunk.
        """
        if not tokens:
            return self.step_ms(rows)
        if not rows:
            return self.chunk_ms(tokens)
        (least, one), (more, other) = (*self.chunk_ms.points, *self.chunk_ms.points)[:2]
        token = (other - one) / (more - least) if more > least else one / least
        return self.step_ms(rows) + max(0.0, token) * tokens


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
    ``beside`` is the largest chunk of a prompt while groups of 1, 2, ... rows decode (of larger ones the last; where it
    is empty, as when nobody does); with ``ragged`` it goes in their step.
    """

    stages: tuple[StageForecast, ...]
    hops: tuple[HopForecast, ...]
    pool: Pool | None = None
    beside: tuple[int, ...] = ()
    ragged: bool = False


@dataclass(frozen=True)
class Forecast:
    """The whole fleet: pipelines that serve the same model, and the head that feeds them all.

    ``head_ms`` is the head's work per step over rows; ``head_node`` the node whose cores do it. ``streams`` sequences
    of ``context`` tokens fit each pipeline; ``chunk`` tokens of a prompt go into one step while nobody decodes.
    ``decoder`` is False for any other graph, whose calls are steps of one row.
    """

    pipelines: tuple[PipelineForecast, ...]
    head_node: str
    head_ms: Curve
    decoder: bool
    streams: int
    context: int
    chunk: int
    cost_source: str = "measured"
