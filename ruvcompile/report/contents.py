"""What a report is written from, as it lies beside the manifest: ``plan.json``.

It is the JSON of the plan and what the page shows beyond it: where each unit went, what crosses the cuts, what is
between the nodes, and the forecast that the timeline is drawn from. Every part that came later has a default, so a
report of a build of any version is written again, with what that version knew.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from ruvcompile.forecast import Forecast


class Shape(msgspec.Struct, frozen=True):
    """Pipelines, and stages of each."""

    replicas: int
    stages: int

    def __str__(self) -> str:
        pipelines = f"{self.replicas} pipelines of " if self.replicas > 1 else ""
        return f"{pipelines}{self.stages} stage{'s' if self.stages > 1 else ''}"

    @property
    def short(self) -> str:
        """The same for a chart: ``2 x 1 stage``."""
        return f"{self.replicas} x {replace(self, replicas=1)}" if self.replicas > 1 else str(self)


class StageFigures(msgspec.Struct, frozen=True):
    """A stage on a node. ``predicted_ms`` is of a step of the planned rows, ``predicted_ms_one`` of one row.

    ``usable_bytes`` is what its node has for it; 0 where an older plan did not tell.
    """

    node: str
    target: str
    backend: str
    graph_nodes: int
    weight_bytes: int
    kv_bytes: int
    cut_bytes: int
    predicted_ms: float
    predicted_rss_bytes: int
    pipeline: int = 0
    predicted_ms_one: float | None = None
    usable_bytes: int = 0


class Alternative(msgspec.Struct, frozen=True):
    """A shape that was compared with the plan; figures are None where it does not fit, or of the other kind."""

    shape: Shape
    fits: bool = True
    why: str = ""
    tokens_per_s: float | None = None
    tokens_per_s_one: float | None = None
    ttft_ms: float | None = None
    items_per_s: float | None = None
    items_per_s_one: float | None = None
    latency_ms: float | None = None

    @property
    def per_s(self) -> float | None:
        """Tokens (or items) per second with everyone at work."""
        return self.tokens_per_s if self.tokens_per_s is not None else self.items_per_s

    @property
    def per_s_one(self) -> float | None:
        """The same of a single user."""
        return self.tokens_per_s_one if self.tokens_per_s_one is not None else self.items_per_s_one


class Rejected(msgspec.Struct, frozen=True):
    """A node that a rule kept out: what the rule wanted, and what the node has."""

    node: str
    rule: str
    wanted: Any = ""
    has: Any = ""


class Together(msgspec.Struct, frozen=True):
    """What was seen of the stages when they ran together for the build; a value of each stage, in the plan's order.

    ``stage_ms`` is what the back end took, the process's own time aside; ``per_s_one`` what a single sequence got, 0
    where an older plan did not look; ``difference`` the largest one between what was planned and what was seen, as a
    part of the former; ``uncorrected`` the same of the first plan, before any costs were corrected by what was seen.
    """

    stage_ms: list[float] = []
    peak_rss_bytes: list[int] = []
    per_s: float = 0.0
    streams: int = 0
    per_s_one: float = 0.0
    difference: float = 0.0
    uncorrected: float = 0.0


class UnitPlace(msgspec.Struct, frozen=True):
    """A unit of the program: what it is called, its row in the cost table, its stage and its operators."""

    name: str
    key: str
    stage: int
    ops: list[str] = []


class Crossing(msgspec.Struct, frozen=True):
    """A tensor that crosses a cut; ``bytes`` per token (decoders) or call."""

    name: str
    dtype: str
    shape: list[int | str]
    bytes: int


class Cut(msgspec.Struct, frozen=True):
    """What stage ``after`` sends to the next one."""

    after: int
    tensors: list[Crossing]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All of ``plan.json``."""

    shape: Shape
    stages: list[StageFigures]
    bottleneck_ms: float
    lower_bound_ms: float
    gap: float
    verdict: str
    cost_source: str = "measured"
    link_source: str = ""
    rows: int = 1
    exact: bool = True
    bound_by: str = ""
    bound_of: dict[str, float] = {}
    bounds: dict[str, float] = {}
    predicted_tokens_per_s: float | None = None
    predicted_tokens_per_s_one: float | None = None
    predicted_ttft_ms: float | None = None
    predicted_items_per_s: float | None = None
    predicted_latency_ms: float | None = None
    alternatives: list[Alternative] = []
    rejected: list[Rejected] = []
    units: list[UnitPlace] = []
    cuts: list[Cut] = []
    forecast: Forecast | None = None
    measured: Together | None = None

    @property
    def decoder(self) -> bool:
        """Whether it is tokens that are counted."""
        return self.predicted_tokens_per_s is not None

    @property
    def per_s(self) -> float:
        """Tokens (or items) per second with everyone at work."""
        return self.predicted_tokens_per_s or self.predicted_items_per_s or 0.0

    @property
    def per_s_one(self) -> float | None:
        """The same of a single user."""
        if self.predicted_latency_ms:
            return 1e3 / self.predicted_latency_ms
        return self.predicted_tokens_per_s_one

    @property
    def first_pipeline(self) -> list[StageFigures]:
        """The stages of pipeline 0, in order; those of the others hold the same pieces."""
        return [stage for stage in self.stages if stage.pipeline == 0]
