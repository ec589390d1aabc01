"""The fleet files that are shown load, and hold what they promise on a real graph."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ruvcompile.fleet import load_fleet
from ruvcompile.passes.pieces import program_units
from ruvcompile.plan.rules import rules_of
from ruvrun.bundle import BUNDLES, load_spec
from ruvrun.manifest import load_manifest
from tests.compiler.builds import build
from tests.decoders import tiny_program
from tests.graphs import PP_OCR, model_path

FLEETS = Path(__file__).parents[2] / "examples/fleets"


@pytest.mark.parametrize("path", sorted(FLEETS.glob("*.toml")), ids=lambda path: str(path.name))
def test_an_example_loads_and_is_told_of(path: Path) -> None:
    assert load_fleet(path).places
    assert f"`{path.name}`" in (FLEETS / "README.md").read_text("utf-8")


@pytest.mark.model
def test_the_raw_image_never_leaves_the_box_with_the_camera(tmp_path: Path) -> None:
    fleet = shutil.copy(FLEETS / "private-image.toml", tmp_path)  # keys are made beside it
    result = build(
        model_path(PP_OCR),
        tmp_path / "dist",
        fleet=str(fleet),
        stages=2,
        shape=("x=1x3x96x96",),
    )
    manifest = load_manifest(tmp_path / "dist/manifest.toml")
    assert [placed.node for placed in manifest.pipeline[0].stages] == ["camera", "server"]
    assert manifest.head.node == "camera"
    first, last = manifest.stage
    assert "x" in {tensor.name for tensor in first.inputs}
    assert "x" not in {*first.forward, *(tensor.name for tensor in last.inputs), *last.forward}
    assert "x" not in {tensor.name for tensor in load_spec(tmp_path / "dist" / BUNDLES / "server").inputs}
    assert {"node": "server", "rule": "place x", "wanted": "camera", "has": "server"} in result["rejected"]


def test_a_machine_of_another_hall_is_turned_down(tmp_path: Path) -> None:
    program = tiny_program(tmp_path, layers=30)
    rules = rules_of(load_fleet(FLEETS / "two-halls.toml"), program, program_units(program))
    assert [node.name for node in rules.nodes] == ["desk", "pi-0"]
    told: list[Any] = [(entry["node"], entry["rule"]) for entry in rules.rejected]
    assert told == [("pi-1", "require.zone"), ("pi-0", "place /layers.2?/* trust")]
    assert len(rules.barred["pi-0"]) == 20
