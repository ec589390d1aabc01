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
from pathlib import Path

import msgspec

from ruvrun.errors import InputError
from ruvrun.manifest import FORMAT, dump_toml, read_toml

COSTS = "costs.toml"


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

    def step_ms(self, rows: int = 1, depth: int | None = None) -> float:
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
        rows, depth: of the steps, the median of which is ``ms``: the back end's work and the process's own.
        peak_rss_bytes: the most memory its process held.
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
    spread: float = 0.0
    peak_rss_bytes: int = 0


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


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who measured: machine, CPU, software, day."""

    machine: str
    cpu: str
    software: str
    date: str


class CostTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of ``costs.toml``."""

    provenance: list[Provenance] = []
    unit: list[UnitCost] = []
    overhead: list[Overhead] = []
    stage: list[StageCost] = []
    link: list[LinkCost] = []
    rate: list[Rate] = []
    format: int = FORMAT

    def rows(self, keys: Iterable[str], target: str, backend: str, threads: int) -> list[UnitCost | None]:
        """The row of each unit on one kind of machine, None where there is none."""
        kind = (target, backend, threads)
        known = {row.key: row for row in self.unit if (row.target, row.backend, row.threads) == kind}
        return [known.get(key) for key in keys]

    def between(self, sender: str, receiver: str) -> LinkCost | None:
        """The link from one node to another as measured last; None where it was not."""
        return next((row for row in reversed(self.link) if (row.sender, row.receiver) == (sender, receiver)), None)

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
    return max(0.0, y0 + (y1 - y0) * (at - x0) / (x1 - x0))


def load_costs(path: Path) -> CostTable:
    """Read a cost table; costs that are no times and sources that are not there are refused."""
    table = read_toml(path, CostTable, "cost table")
    for row in table.unit:
        what = f"{path}: unit {row.label}"
        for ms in (row.ms, row.ms_per_token, *(node.ms for node in row.node)):
            if not 0 <= ms < float("inf"):  # NaN is no time either
                raise InputError("cost-wrong", f"{what} has a cost of {ms} ms", hint="measure it again")
        if not 0 <= row.source < len(table.provenance):
            told = f"{what} names provenance {row.source}, which is not there"
            raise InputError("cost-source", told, hint="measure it again")
    return table


def dump_costs(table: CostTable) -> bytes:
    """The bytes of ``costs.toml``."""
    return dump_toml(table)


def merge(tables: Iterable[CostTable]) -> CostTable:
    """All rows of several tables; of equal rows the last one counts."""
    provenance: list[Provenance] = []
    units: dict[tuple[str, str, str, int], UnitCost] = {}
    for table in tables:
        place = {}
        for index, entry in enumerate(table.provenance):
            if entry not in provenance:
                provenance.append(entry)
            place[index] = provenance.index(entry)
        for row in table.unit:
            key = (row.key, row.target, row.backend, row.threads)
            units[key] = msgspec.structs.replace(row, source=place[row.source])
    used = sorted({row.source for row in units.values()})
    renumbered = {old: new for new, old in enumerate(used)}
    return CostTable(
        provenance=[provenance[index] for index in used],
        unit=[msgspec.structs.replace(row, source=renumbered[row.source]) for row in units.values()],
    )
