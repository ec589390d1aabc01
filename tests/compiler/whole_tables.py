"""Cost tables that have every unit of a program, and the machines that they are asked about."""

from __future__ import annotations

from typing import Any

import msgspec

from ruvcompile.fleet import FleetNode
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.plan import Member
from ruvcompile.program import Program
from ruvcompile.targets import load_target
from ruvrun.costs import CostTable, Overhead, Point, Provenance, UnitCost

HERE = Provenance(machine="m", cpu="c", software="s", date="2026-01-01")


def keys_of(program: Program) -> tuple[str, ...]:
    return unit_keys(program, program_units(program))


def table_of(program: Program, *, beside: int = 1, overhead: bool = True, curve: bool = True) -> CostTable:
    """A table of this machine with one thread."""
    rows = [
        UnitCost(
            key=key, label="unit", target="host", backend="onnxruntime", threads=1, beside=beside, ms=1.0 + beside,
            source=0, curve=[Point(ms=1.0), Point(ms=2.0, rows=2)] if curve else [],
        )
        for key in dict.fromkeys(keys_of(program))
    ]  # fmt: skip
    own = Overhead(
        kind="decoder", target="host", backend="onnxruntime", threads=1, beside=beside, source=0, stage_ms=beside
    )
    return CostTable(provenance=[HERE], unit=rows, overhead=[own] if overhead else [])


def rows_of(
    program: Program, threads: int, *, ms: float = 1.0, target: str = "pi5", software: str = "ruvrun 1", beside: int = 1
) -> CostTable:
    """All rows of a kind of machine with so many threads."""
    known = table_of(program, beside=beside)
    kind = {"target": target, "threads": threads}
    return CostTable(
        provenance=[msgspec.structs.replace(HERE, software=software)],
        unit=[msgspec.structs.replace(row, ms=ms, **kind) for row in known.unit],
        overhead=[msgspec.structs.replace(row, stage_ms=ms, **kind) for row in known.overhead],
    )


def member(name: str, *, threads: int = 1, beside: int = 1) -> Member:
    return Member(
        FleetNode(name=name, target="host", address="local"),
        load_target("host", None).on("onnxruntime"),
        threads,
        beside,
    )


def away(usual: int = 4, **told: Any) -> Member:
    """A Pi; ``told`` is what the fleet file says of it."""
    return Member(FleetNode(name="a", target="pi5", address="a.local", **told), load_target("pi5"), usual)
