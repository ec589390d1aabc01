"""The cost table (``costs.toml``): what parts of a model cost on a kind of machine, and how that is known.

One row is one *unit* of one program on one target and back end: for a decoder the attention or the MLP of a layer,
the embedding, the head; for any other graph one node. Its ``key`` is a hash of what is computed (operators,
attributes, shapes, not weights or names), so layers of equal shape share one row, and a table serves every build
of any model that has such a unit. A build whose table is complete measures nothing.

A table knows where its numbers come from: ``Provenance`` names the machine and the versions; rows of several
machines stand in one file side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
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


class UnitCost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One unit, measured.

    Attributes:
        key: hash of what is computed.
        label: for people: ``layers.*.attn``.
        target, backend, threads: on what.
        ms: one step of one row (decoders: one token at ``depth`` tokens of context; graphs: one call).
        ms_per_token: decoders: one token of a prompt chunk of ``chunk`` tokens.
        spread: of the whole measurement, (90th - 10th percentile) / median.
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
    node: list[NodeCost] = []


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
    format: int = FORMAT

    def rows(self, keys: Iterable[str], target: str, backend: str, threads: int) -> list[UnitCost | None]:
        """The row of each unit on one kind of machine, None where there is none."""
        kind = (target, backend, threads)
        known = {row.key: row for row in self.unit if (row.target, row.backend, row.threads) == kind}
        return [known.get(key) for key in keys]


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
