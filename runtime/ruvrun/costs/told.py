"""What a cost table says, in short: as JSON for scripts, as lines for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ruvrun.costs.rows import CostTable, UnitCost


def costs_json(table: CostTable) -> dict[str, Any]:
    """The parts of the JSON of both `profile` commands that are about a table."""
    return {
        "units": [_unit(row) for row in table.unit],
        "overhead": [msgspec.structs.asdict(row) for row in table.overhead],
        "links": [msgspec.structs.asdict(row) for row in table.link],
        "rates": [msgspec.structs.asdict(row) for row in table.rate],
    }


def costs_text(told: Mapping[str, Any]) -> str:
    """A line for each part of a table, from its JSON; of one with several back ends each says which it is of."""
    several = len({unit["backend"] for unit in told["units"]}) > 1
    lines = [f"{unit['backend']}, {_line(unit)}" if several else _line(unit) for unit in told["units"]]
    for row in told["overhead"]:
        stage, head = (f"{row[f'{who}_ms']:.3f} + {row[f'{who}_row_ms']:.3f} a row" for who in ("stage", "head"))
        of = f"{row['backend']}, " if several else ""
        lines.append(f"{of}beside them, ms a step: {stage} in the stage, {head} in the head, {row['hop_ms']:.3f} a hop")
    lines += [f"{row['name']}: {row['value']:.4g} {row['unit']}" for row in told["rates"]]
    for row in told["links"]:
        rate = row["bytes_per_s"] / 1e6
        lines.append(f"{row['sender']} to {row['receiver']}: {row['latency_ms']:.3f} ms, {rate:.1f} MB/s")
    return "\n".join(lines)


def _unit(row: UnitCost) -> dict[str, Any]:
    most = max((point.rows for point in row.curve if point.tokens == 1), default=1)
    return {
        "label": row.label,
        "target": row.target,
        "backend": row.backend,
        "threads": row.threads,
        "beside": row.beside,
        "ms": row.ms,
        "rows": most,
        "ms_rows": round(row.step_ms(most), 6) if row.curve else row.ms,
        "ms_per_token": row.ms_per_token,
        "spread": row.spread,
    }


def _line(unit: Mapping[str, Any]) -> str:
    parts = [f"{unit['ms']:.3f} ms"]
    if unit["rows"] > 1:
        parts.append(f"{unit['ms_rows']:.3f} ms with {unit['rows']} rows")
    if unit["ms_per_token"]:
        parts.append(f"{unit['ms_per_token']:.4f} ms a prompt token")
    return f"{unit['label']}: {', '.join(parts)}, spread {100 * unit['spread']:.0f} %"
