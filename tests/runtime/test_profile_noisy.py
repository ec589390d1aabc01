"""A machine on which steps take now so long and now so long: its spread is told and kept, not averaged away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ruvrun.bundle import StageSpec
from ruvrun.costs import UnitCost, dump_costs, load_costs
from ruvrun.profile import table
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.sheet import Sheet, SheetUnit
from ruvrun.profile.table import Profile, Segment, profile

SPEC = StageSpec(
    kind="graph", backend="onnxruntime", target="host", model="m", first=True, last=True, inputs=[], outputs=[],
    forward=[], files=[],
)  # fmt: skip


def profiled(monkeypatch: pytest.MonkeyPatch, spreads: list[float]) -> Profile:
    """A graph of as many nodes, whose measurements spread so."""
    names = [f"n{number}" for number in range(len(spreads))]
    sheet = Sheet(unit=[SheetUnit(key=name, label=name, nodes=[name], weight_bytes=0) for name in names])
    rows = [
        UnitCost(key=name, label=name, target="host", backend="onnxruntime", threads=1, ms=1.0, spread=spread, source=0)
        for name, spread in zip(names, spreads, strict=True)
    ]

    def measured(*_: Any) -> tuple[list[UnitCost], None]:
        return rows, None

    monkeypatch.setattr(table, "load_sheet", lambda *_: sheet)
    monkeypatch.setattr(table, "_measure", measured)
    return profile([Segment(Path("nowhere"), SPEC, network=False)], Conditions())


def test_a_noisy_machine_is_told_with_its_spread_and_the_table_keeps_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = profiled(monkeypatch, [0.02, 0.34])
    assert made.notes == ("noisy: steps spread by 34 % here; measure again when less runs on this machine",)
    (tmp_path / "costs.toml").write_bytes(dump_costs(made.table))
    assert [row.spread for row in load_costs(tmp_path / "costs.toml").unit] == [0.02, 0.34]


def test_a_quiet_one_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profiled(monkeypatch, [0.02, table.NOISY]).notes == ()
