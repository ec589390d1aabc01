"""What a build predicted: of every stage, and of all together."""

from __future__ import annotations

from bisect import bisect_left
from math import isfinite

from ruvrun.manifest.tables import Table


class Expected(Table, frozen=True):
    """What a plan expects of the stage on a node: times of its steps, and what its process takes of memory.

    Attributes:
        node: which.
        rows, ms: a step of ``rows[i]`` rows takes ``ms[i]``.
        chunks, chunk_ms: decoders: a step of ``chunks[i]`` tokens of a prompt takes ``chunk_ms[i]``.
        weight_bytes: its weights in memory, once the back end has packed them.
        working_bytes: what the largest step needs, activations and logits.
        backends_ms: where the machine has several back ends, what a step of the plan's rows takes on each that can run
            it; the stage's own among them.
        runtime_bytes: the process with its back end and nothing loaded. Key/value space comes on top of these.
    """

    node: str
    rows: list[int] = []
    ms: list[float] = []
    chunks: list[int] = []
    chunk_ms: list[float] = []
    weight_bytes: int = 0
    working_bytes: int = 0
    runtime_bytes: int = 0
    backends_ms: dict[str, float] = {}

    def __post_init__(self) -> None:
        """Refuse a table that somebody edited and no step can be read from; it becomes an error of the file."""
        for sizes, times in ((self.rows, self.ms), (self.chunks, self.chunk_ms)):
            if sorted({each for each in sizes if each > 0}) != sizes or len(sizes) != len(times):
                raise ValueError("a time for each size is expected, and sizes that grow from 1 on")
            if not all(isfinite(each) and each >= 0 for each in times):
                raise ValueError("a time is no number, or below 0")

    @property
    def bytes(self) -> int:
        """All but key/value space."""
        return self.weight_bytes + self.working_bytes + self.runtime_bytes

    def step_ms(self, rows: int) -> float | None:
        """A step of so many rows: straight between what is known, and on as it ends; None where nothing is."""
        if not self.rows:
            return None
        place = min(max(1, bisect_left(self.rows, rows)), len(self.rows) - 1)
        if place == 0:
            return self.ms[0]
        (x0, x1), (y0, y1) = self.rows[place - 1 : place + 1], self.ms[place - 1 : place + 1]
        return max(0.0, y0 + (y1 - y0) * (rows - x0) / (x1 - x0))


class Plan(Table, frozen=True):
    """What the build predicted, and on what; not part of the id. Times in ms; ``stage_ms`` of steps of ``rows`` rows.

    ``expected`` tells every stage of every pipeline; ``per_s[i]`` is tokens (or items) per second of all pipelines with
    ``streams[i]`` in flight. Builds of old versions have neither.
    """

    cost_source: str = ""
    bottleneck_ms: float = 0.0
    lower_bound_ms: float = 0.0
    gap: float = 0.0
    stage_ms: list[float] = []
    rows: int = 1
    tokens_per_s: float = 0.0
    verdict: str = ""
    expected: list[Expected] = []
    streams: list[int] = []
    per_s: list[float] = []

    def rate(self, streams: int) -> float | None:
        """Tokens (or items) per second with so many in flight; None where the plan does not say."""
        return dict(zip(self.streams, self.per_s, strict=False)).get(streams)

    def of(self, node: str) -> Expected | None:
        """What is expected of the stage on a node; None where the plan does not say."""
        return next((entry for entry in self.expected if entry.node == node), None)
