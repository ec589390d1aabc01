"""The examples with machines: fleet files hold what they promise, and what the texts tell to type works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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
from tests.models import MODELS, SMOLLM2, write_tiny_gguf
from tests.typed import ROOMS, commands

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FLEETS = [path for room in ROOMS for path in sorted((EXAMPLES / room).glob("*.toml"))]


@pytest.mark.parametrize("path", FLEETS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_fleet_file_loads_and_is_told_of(path: Path) -> None:
    assert len(load_fleet(path).nodes) > 1
    assert path.name in (path.parent / "README.md").read_text("utf-8")


def test_the_fleets_are_the_ones_that_are_told_of() -> None:
    kinds = {room: [node.target for node in load_fleet(EXAMPLES / room / "fleet.toml").nodes] for room in ROOMS}
    assert kinds["pi_cluster"] == ["pi5"] * 4
    assert kinds["aipc_fleet"] == ["intel-cpu", "intel-cpu", "pi5"]
    assert len(kinds["own_graph"]) == 2


@pytest.mark.system
@pytest.mark.model
@pytest.mark.parametrize("room", ROOMS)
def test_what_a_text_tells_to_type_works(room: str, tmp_path: Path) -> None:
    """In a copy of the examples, with a tiny model under the real one's name. The machines of the text are not there,
    so a delivery says so of each, once.
    """
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("fleet.keys", "__pycache__"))
    models = tmp_path / ".cache/models"
    models.mkdir(parents=True)
    for path in MODELS.iterdir():
        (models / path.name).symlink_to(path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = []
    for line in commands(f"examples/{room}/README.md"):
        if line.startswith("pip install"):
            (extra,) = re.findall(r"\[(\w+)\]", line)
            assert f"\n{extra} = " in (ROOT / "pyproject.toml").read_text()
            continue
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env=environment,
        )
        ran.append(line.split()[0])
        if "/deliver/" in line:
            nodes = [node.name for node in load_fleet(EXAMPLES / room / "fleet.toml").nodes]
            missing = nodes if "deliver.sh" in line else [load_manifest(tmp_path / "dist/manifest.toml").head.node]
            told = re.findall(r"^error\[host-unreachable\]: (\S+):", done.stderr, re.MULTILINE)
            assert (done.returncode, told, done.stderr.count("error[")) == (6, missing, len(missing)), done.stderr
            continue
        assert done.returncode == 0, (line, done.stderr)
        if "fetch_models" in line:  # the real one is there; a tiny one is built faster
            (models / SMOLLM2.name).unlink()
            write_tiny_gguf(models / SMOLLM2.name, layers=30, hidden=128, ffn=192)
    assert len(ran) >= 6


@pytest.mark.model
def test_the_raw_image_never_leaves_the_box_with_the_camera(tmp_path: Path) -> None:
    fleet = shutil.copy(EXAMPLES / "own_graph/fleet.toml", tmp_path)  # keys are made beside it
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
    rules = rules_of(load_fleet(EXAMPLES / "pi_cluster/two-halls.toml"), program, program_units(program))
    assert [node.name for node in rules.nodes] == ["desk", "pi-0"]
    told: list[Any] = [(entry["node"], entry["rule"]) for entry in rules.rejected]
    assert told == [("pi-1", "require.zone"), ("pi-0", "place /layers.2?/* trust")]
    assert len(rules.barred["pi-0"]) == 20
