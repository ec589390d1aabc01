"""Rows of cost tables made up for tests, and machines that they may be of."""

from __future__ import annotations

import msgspec

from ruvrun.costs import (
    Point,
    Provenance,
    UnitCost,
)

HERE = Provenance(
    machine="x86_64, 2 cores", cpu="this", software="ruvrun 1", date="2026-01-01", features=("avx2",), threads=2
)
THERE = Provenance(machine="aarch64, 4 cores", cpu="that", software="ruvrun 1", date="2026-01-02")


def row(key: str, ms: float = 1.0, *, target: str = "host", threads: int = 1, source: int = 0) -> UnitCost:
    return UnitCost(
        key=key, label=f"unit {key}", target=target, backend="onnxruntime", threads=threads, ms=ms, source=source
    )


def curved(*points: tuple[int, int, int, float]) -> UnitCost:
    """A row with points of (rows, tokens, depth, ms)."""
    made = [Point(ms=ms, rows=rows, tokens=tokens, depth=depth) for rows, tokens, depth, ms in points]
    return msgspec.structs.replace(row("a", 7.0), depth=100, ms_per_token=0.25, curve=made)
