"""The fleet files that are shown load, and hold what they promise on a real graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ruvcompile.fleet import load_fleet
from ruvcompile.passes.pieces import program_units
from ruvcompile.plan.rules import rules_of
from tests.decoders import tiny_program

FLEETS = Path(__file__).parents[2] / "examples/fleets"


@pytest.mark.parametrize("path", sorted(FLEETS.glob("*.toml")), ids=lambda path: str(path.name))
def test_an_example_loads_and_is_told_of(path: Path) -> None:
    assert load_fleet(path).places
    assert f"`{path.name}`" in (FLEETS / "README.md").read_text("utf-8")


def test_a_machine_of_another_hall_is_turned_down(tmp_path: Path) -> None:
    program = tiny_program(tmp_path, layers=30)
    rules = rules_of(load_fleet(FLEETS / "two-halls.toml"), program, program_units(program))
    assert [node.name for node in rules.nodes] == ["desk", "pi-0"]
    told: list[Any] = [(entry["node"], entry["rule"]) for entry in rules.rejected]
    assert told == [("pi-1", "require.zone"), ("pi-0", "place /layers.2?/* trust")]
    assert len(rules.barred["pi-0"]) == 20
