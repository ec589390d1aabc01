"""The cost table (``costs.toml``): what parts of a model cost on a kind of machine, and how that is known.

One row is one *unit* of one program on one target and back end: for a decoder the attention or the MLP of a layer,
the embedding, the head; for any other graph one node. Its ``key`` is a hash of what is computed (operators,
attributes, shapes, not weights or names), so layers of equal shape share one row, and a table serves every build
of any model that has such a unit. A build whose table is complete measures nothing.

A table knows where its numbers come from: ``Provenance`` names the machine and the versions; rows of several
machines stand in one file side by side.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from ruvrun.manifest import FORMAT

NOISY = 0.2
"""A spread above this is told."""

SCALED = "scaled"
"""How the software of rows begins that were worked out and not measured."""


class NodeCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lowered graph node of a unit: its share of the unit's time, in ms per step of one row."""

    name: str
    op: str
    ms: float


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One point of a curve: a step of ``rows`` sequences, ``tokens`` tokens each, at ``depth`` tokens of context."""

    ms: float
    rows: int = 1
    tokens: int = 1
    depth: int = 0


class UnitCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One unit, measured.

    Attributes:
        key: hash of what is computed.
        label: for people: ``layers.*.attn``.
        target, backend, threads: on what.
        beside: how many such processes worked at the same time on the machine, this one included.
        ms: one step of one row (decoders: one token at ``depth`` tokens of context; graphs: one call).
        ms_per_token: decoders: one token of a prompt chunk of ``chunk`` tokens.
        spread: of the whole measurement, (90th - 10th percentile) / median.
        curve: what a step of more rows, at other depths, or a chunk of other lengths costs; empty in old tables.
        weight_bytes, resident_bytes: of its weights, as they are stored and as they lie in memory once packed.
        source: index of the provenance.
    """

    key: str
    label: str
    target: str
    backend: str
    threads: int
    ms: float
    source: int
    spread: float = 0.0
    ms_per_token: float = 0.0
    depth: int = 0
    chunk: int = 0
    beside: int = 1
    weight_bytes: int = 0
    resident_bytes: int = 0
    curve: list[Point] = []
    node: list[NodeCost] = []

    def step_ms(self, rows: float = 1, depth: int | None = None) -> float:
        """Milliseconds of one step of ``rows`` sequences with one token each, at ``depth`` tokens of context (None: as
        ``ms`` was measured). Between measured points the curve is straight, and beyond them it goes on as it ended.
        """
        points = [point for point in self.curve if point.tokens == 1]
        if not points:
            return self.ms
        by_depth: dict[int, list[tuple[float, float]]] = {}
        for point in points:
            by_depth.setdefault(point.depth, []).append((point.rows, point.ms))
        at = self.depth if depth is None else depth
        lines = [(float(known), along(sorted(line), rows)) for known, line in by_depth.items()]
        return along(sorted(lines), at)

    def prompt_ms(self, tokens: int) -> float:
        """Milliseconds of one chunk of ``tokens`` tokens of a prompt, from its beginning."""
        points = sorted((point.tokens, point.ms) for point in self.curve if point.tokens > 1 and not point.depth)
        return along(points, tokens) if points else self.ms_per_token * tokens


class Overhead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a step costs beside the back end's work, measured in a real ring of processes on one machine.

    Attributes:
        kind: ``decoder`` or ``graph``.
        target, backend, threads, beside: as for ``UnitCost``.
        stage_ms: a stage's process per step: taking the frame, handing the result on.
        stage_row_ms: the same per row of the step.
        head_ms, head_row_ms: the head's process per step, and per row of it.
        byte_ms: CPU time per byte that is sent or received.
        hop_ms: from one process to the next on this machine, when nobody works: waking up.
        runtime_bytes: a stage's process with its back end and no weights.
    """

    kind: str
    target: str
    backend: str
    threads: int
    source: int
    beside: int = 1
    stage_ms: float = 0.0
    stage_row_ms: float = 0.0
    head_ms: float = 0.0
    head_row_ms: float = 0.0
    byte_ms: float = 0.0
    hop_ms: float = 0.0
    runtime_bytes: int = 0
    spread: float = 0.0


class StageCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A lowered stage as a whole, measured in its pipeline while the other stages worked.

    Attributes:
        key: ``stage_key`` of its units' keys, in order.
        target, backend, threads, beside: as for ``UnitCost``.
        rows, depth: of the steps, the median of which is ``ms``: as `ruvrun bench` tells it.
        clock_ms: the same by the clock, where ``ms`` is what the thread worked; 0: it is the clock's.
        peak_rss_bytes: the most memory its process held.
        streams, per_s: sequences (or callers) that were in flight, and tokens (or items) per second of all together.
        look: 1, or 2 when it was run once more, after the plan was corrected.
    """

    key: str
    target: str
    backend: str
    threads: int
    ms: float
    source: int
    beside: int = 1
    rows: int = 1
    depth: int = 0
    clock_ms: float = 0.0
    spread: float = 0.0
    peak_rss_bytes: int = 0
    streams: int = 0
    per_s: float = 0.0
    look: int = 1


def stage_key(keys: Iterable[str]) -> str:
    """What a stage of units with these keys computes, as a hash."""
    return hashlib.sha256(" ".join(keys).encode()).hexdigest()[:32]


class LinkCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A link as measured from ``sender`` to ``receiver`` (names of nodes or hosts): one way, in ms and bytes/s."""

    sender: str
    receiver: str
    latency_ms: float
    bytes_per_s: float
    source: int
    spread: float = 0.0


class Rate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a machine can do, measured with a small model of its own: a figure to scale other machines by.

    Attributes:
        name, unit: ``memory_bandwidth`` in ``B/s``, say; the names are those of a target's figures (``profile.rates``).
        target, backend, threads: on what.
    """

    name: str
    value: float
    unit: str
    target: str
    backend: str
    threads: int
    source: int
    spread: float = 0.0


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Who measured what: machine, CPU, software with its versions, day.

    Attributes:
        machine, cpu: as a person knows them.
        software: names and versions, with commas; begins with ``SCALED`` where rows were worked out and not measured.
        date: of the measurement.
        model: name of the program whose units they are.
        features: what the CPU has that kernels are chosen by.
        threads: of the back end.
    """

    machine: str
    cpu: str
    software: str
    date: str
    model: str = ""
    features: tuple[str, ...] = ()
    threads: int = 0


class CostTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All of ``costs.toml``."""

    provenance: list[Provenance] = []
    unit: list[UnitCost] = []
    overhead: list[Overhead] = []
    stage: list[StageCost] = []
    link: list[LinkCost] = []
    rate: list[Rate] = []
    format: int = FORMAT

    def rows(
        self, keys: Iterable[str], target: str, backend: str, threads: int, beside: int | None = None
    ) -> list[UnitCost | None]:
        """The row of each unit on one kind of machine, None where there is none.

        Args:
            beside: as measured with so much company; None: with any, the last such row.
        """
        known = {row.key: row for row in self.unit if _is_of(row, target, backend, threads, beside)}
        return [known.get(key) for key in keys]

    def overhead_of(
        self, kind: str, target: str, backend: str, threads: int, beside: int | None = None
    ) -> Overhead | None:
        """What a step costs beside its units on one kind of machine; as ``rows``, for a ``decoder`` or a ``graph``."""
        found = [row for row in self.overhead if row.kind == kind and _is_of(row, target, backend, threads, beside)]
        return found[-1] if found else None

    def scaled(self, row: UnitCost | Overhead) -> bool:
        """Whether a row was worked out from those of another machine."""
        return self.provenance[row.source].software.startswith(SCALED)

    def rates(self, target: str, backend: str, threads: int) -> dict[str, Rate]:
        """The figures of one kind of machine, by name."""
        kind = (target, backend, threads)
        return {row.name: row for row in self.rate if (row.target, row.backend, row.threads) == kind}


def along(points: Sequence[tuple[float, float]], at: float) -> float:
    """The line through ``points`` (ascending) at ``at``; beyond its ends it goes on straight, never below 0."""
    if len(points) == 1:
        return points[0][1]
    upper = min(max(1, bisect_left(points, (at,))), len(points) - 1)
    (x0, y0), (x1, y1) = points[upper - 1], points[upper]
    # From the nearer end, so that a measured point is met exactly.
    near, level = (x0, y0) if abs(at - x0) <= abs(at - x1) else (x1, y1)
    return max(0.0, level + (y1 - y0) * (at - near) / (x1 - x0))


def _is_of(row: UnitCost | Overhead, target: str, backend: str, threads: int, beside: int | None) -> bool:
    kind = (row.target, row.backend, row.threads)
    return kind == (target, backend, threads) and beside in (None, row.beside)
