"""Cost tables as files: reading with an answer for every way one can be wrong, writing, and several made one.

A file says at its beginning how many rows it has, and so again at its end. A file that was cut off between two rows
would else be a table of fewer rows, and a build would measure the others anew without a word. Older files say neither.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ruvrun.costs.rows import CostTable, LinkCost, Overhead, Point, Provenance, Rate, StageCost, UnitCost
from ruvrun.errors import InputError, MachineError, did_you_mean
from ruvrun.manifest import dump_toml, read_toml
from ruvrun.scratch import partial_of, write_whole

Row = UnitCost | Overhead | StageCost | LinkCost | Rate

_KIND = ("target", "backend", "threads", "beside")
_IDENTITY = {
    "unit": ("key", *_KIND),
    "overhead": ("kind", *_KIND),
    "stage": ("key", *_KIND, "rows", "depth", "streams", "look"),
    "link": ("sender", "receiver"),
    "rate": ("name", "target", "backend", "threads"),
}
"""What makes two rows of a list the same row, measured twice."""

_DIVIDED = ("bytes_per_s", "value")
"""Of links and rates: what others are divided by."""

_COUNTED = ("threads", "beside", "rows")
"""What there is one of at least: no build asks for a row with none, so it would be passed over in silence."""

_LEAST, _MOST = 1e-15, 1e18
"""Of what others are divided by, and of any number: beyond these nothing was measured, and sums are no numbers."""

_MOST_RESIDENT, _MOST_ASIDE = 100, 64 << 20
"""Bytes in memory for each byte of weights, and beside them; more than a few were never seen."""

_KINDS = ("decoder", "graph")


class _End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last table of a file."""

    rows: int


class _Written(CostTable, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A table as it stands in a file, with how many rows it has; old files do not say that."""

    count: int | None = msgspec.field(default=None, name="rows")
    end: _End | None = None


def load_costs(path: Path) -> CostTable:
    """Read a cost table.

    Raises:
        InputError: it is none; it is not whole (``cost-cut``); a cost is no time or no size (``cost-wrong``); a row or
            a point of a curve is there twice (``cost-twice``); a row names a source that is not there
            (``cost-source``).
    """
    written = read_toml(path, _Written, "cost table")
    _check_whole(path, written)
    table = CostTable(**{name: getattr(written, name) for name in CostTable.__struct_fields__})
    _check_rows_once(path, table)
    for what, row in _named(table):
        for name, value in _figures(row):
            least = 1 if name in _COUNTED else _LEAST if name in _DIVIDED else 0
            if not least <= value <= _MOST:  # NaN is no time either
                raise InputError("cost-wrong", f"{path}: {what} has {name} = {value}", hint="measure it again")
        if not 0 <= row.source < len(table.provenance):
            told = f"{path}: {what} names provenance {row.source}, which is not there"
            raise InputError("cost-source", told, hint="measure it again")
        if isinstance(row, UnitCost):
            _check_curve(path, what, row.curve)
            if row.weight_bytes and row.resident_bytes > _MOST_RESIDENT * row.weight_bytes + _MOST_ASIDE:
                told = f"{what} has resident_bytes = {row.resident_bytes} of weight_bytes = {row.weight_bytes}"
                raise InputError("cost-wrong", f"{path}: {told}", hint="measure it again")
        if isinstance(row, Overhead) and row.kind not in _KINDS:
            told = f"{path}: {what} is of no kind of model"
            raise InputError("cost-wrong", told, hint=did_you_mean(row.kind, _KINDS))
    return table


def dump_costs(table: CostTable) -> bytes:
    """The bytes of ``costs.toml``."""
    count = _count(table)
    fields = {name: getattr(table, name) for name in CostTable.__struct_fields__}
    return dump_toml(_Written(**fields, count=count, end=_End(rows=count)))


def table_at(output: Path) -> CostTable:
    """The table that is already where one shall be written, or an empty one; asked before anything is measured.

    Raises:
        InputError: nothing can be written there, or what is there is no cost table.
        MachineError: it may not be written there.
    """
    if not output.parent.is_dir():
        what = f"there is no folder {output.parent} to write {output.name} into"
        raise InputError("output-folder-missing", what, hint="make it, or choose another -o")
    if output.is_dir():
        raise InputError("output-not-ours", f"{output} is a folder", hint="name a file, as in -o costs.toml")
    if output.exists() and not output.is_file():  # root would put a file in the place of /dev/null
        raise InputError("output-not-ours", f"{output} is no file", hint="name a file, as in -o costs.toml")
    _check_writable(output)
    if not os.path.lexists(output):
        return CostTable()
    try:
        return load_costs(output)
    except InputError as error:
        told = f"{output} exists and is no cost table of this version"
        raise InputError("output-not-ours", told, context=[error.message], hint="choose another -o") from None


def _check_writable(output: Path) -> None:
    """Only who tries it knows: root may write anywhere, and not into /proc or what is mounted read-only."""
    probe = partial_of(output)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        what = f"{output.parent} may not be written to: {error.strerror}"
        raise MachineError("output-unwritable", what, hint="choose another -o") from None


def write_costs(output: Path, tables: Iterable[CostTable]) -> None:
    """Write several tables as one; it appears whole, in the place of what was there.

    Raises:
        MachineError: it cannot be written: the disk is full, say.
    """
    write_whole(output, dump_costs(merge(tables)))


def merge(tables: Iterable[CostTable]) -> CostTable:
    """All rows of several tables; of equal rows the last one counts."""
    provenance: list[Provenance] = []
    found: dict[str, dict[tuple[object, ...], Row]] = {field: {} for field in _IDENTITY}
    for table in tables:
        place = {}
        for index, entry in enumerate(table.provenance):
            if entry not in provenance:
                provenance.append(entry)
            place[index] = provenance.index(entry)
        for field, identity in _IDENTITY.items():
            for row in getattr(table, field):
                key = tuple(getattr(row, name) for name in identity)
                found[field][key] = msgspec.structs.replace(row, source=place[row.source])
    used = sorted({row.source for rows in found.values() for row in rows.values()})
    renumbered = {old: new for new, old in enumerate(used)}
    merged: dict[str, Any] = {
        field: [msgspec.structs.replace(row, source=renumbered[row.source]) for row in rows.values()]
        for field, rows in found.items()
    }
    return CostTable(provenance=[provenance[index] for index in used], **merged)


def _named(table: CostTable) -> Iterator[tuple[str, Row]]:
    """Every row, and what it is called in a message."""
    yield from ((f"unit {row.label}", row) for row in table.unit)
    yield from ((f"the overhead of a {row.kind} on {row.target}", row) for row in table.overhead)
    yield from ((f"the stage {row.key}", row) for row in table.stage)
    yield from ((f"the rate {row.name} of {row.target}", row) for row in table.rate)
    yield from ((f"the link from {row.sender} to {row.receiver}", row) for row in table.link)


def _figures(row: Row) -> Iterator[tuple[str, float]]:
    """Every number of a row that is a time, a size, a share or a count, by the name it has in the file."""
    yield from ((name, value) for name, value in _numbers(row) if name != "source")
    if isinstance(row, UnitCost):
        yield from ((f"{node.name}: ms", node.ms) for node in row.node)
        yield from (pair for point in row.curve for pair in _numbers(point))


def _numbers(row: msgspec.Struct) -> Iterator[tuple[str, float]]:
    for name in row.__struct_fields__:
        value = getattr(row, name)
        if isinstance(value, int | float):
            yield name, value


def _count(table: CostTable) -> int:
    return sum(len(getattr(table, field)) for field in _IDENTITY)


def _check_whole(path: Path, table: _Written) -> None:
    """Refuse a file that ends before its end, or has not the rows that it says."""
    if table.count is None and table.end is None:
        return
    end = None if table.end is None else table.end.rows
    if not table.count == end == _count(table):
        first, last = ("nothing" if said is None else f"{said} rows" for said in (table.count, end))
        told = f"it says {first} at its beginning and {last} at its end"
        hint = "copy it again, or measure again; whoever changes its rows by hand changes both numbers"
        raise InputError("cost-cut", f"{path} is not whole: it has {_count(table)} rows", context=[told], hint=hint)


def _check_rows_once(path: Path, table: CostTable) -> None:
    """Of two measurements of the same nobody knows which one is meant; what is written here never holds both."""
    for field, identity in _IDENTITY.items():
        seen = set()
        for row in getattr(table, field):
            key = tuple(getattr(row, name) for name in identity)
            if key in seen:
                told = ", ".join(f"{name} {value}" for name, value in zip(identity, key, strict=True))
                what = f"{path}: two rows of [[{field}]] are of the same"
                hint = "remove one of them, or measure it again"
                raise InputError("cost-twice", what, context=[told], hint=hint)
            seen.add(key)


def _check_curve(path: Path, what: str, curve: Sequence[Point]) -> None:
    seen = set()
    for point in curve:
        place = (point.rows, point.tokens, point.depth)
        if min(point.rows, point.tokens) < 1:
            told = f"{path}: {what} has a point of {point.rows} rows and {point.tokens} tokens"
            raise InputError("cost-wrong", told, hint="measure it again")
        if place in seen:
            told = f"{path}: {what} has two points of {point.rows} rows, {point.tokens} tokens, depth {point.depth}"
            raise InputError("cost-twice", told, hint="remove one of them, or measure it again")
        seen.add(place)
