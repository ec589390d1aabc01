"""From a plan on scaled costs to one on measured costs, by typing what the plan says; and who measures here and there.

The other machine is this one, in another folder: ``ssh`` and ``scp`` are scripts that only know that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ruvrun.costs import CostTable, load_costs
from ruvrun.machine import cores
from tests.compiler.builds import build
from tests.models import write_tiny_gguf

LONGEST_S = 600
SSH = """#!/bin/sh
test "$1" = pi5-0.local || exit 255
shift
cd "$THERE" && exec "$@"
"""
SCP = """#!/bin/sh
test "$1" = -r && shift
case "$1" in
    pi5-0.local:*) exec cp -r "$THERE/${1#*:}" "$2" ;;
    *) test "$2" = pi5-0.local: && exec cp -r "$1" "$THERE/" ;;
esac
"""


@pytest.fixture
def desk(tmp_path: Path) -> dict[str, str]:
    """Where commands are typed: their environment."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "there").mkdir()
    for name, text in (("ssh", SSH), ("scp", SCP)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "THERE": str(tmp_path / "there")}


def typed(line: str, folder: Path, desk: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=desk, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_three_commands_that_are_told_make_a_plan_measured(tmp_path: Path, desk: dict[str, str]) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    write_tiny_gguf(folder / "tiny.gguf")
    told = typed("ruvcompile plan tiny.gguf --target pi5 --nodes 2", folder, desk)
    assert "costs: scaled" in told.stdout
    assert "costs are scaled from this machine; to plan with measured ones:\n" in told.stderr
    lines = told.stderr.partition("measured ones:\n")[2].splitlines()
    commands = [line.strip() for line in lines if line.startswith("  ")]
    assert len(commands) == 3
    for command in commands:
        typed(command, folder, desk)
    made = json.loads((folder / "dist" / "plan.json").read_text())
    assert made["cost_source"] == "measured"
    table = load_costs(folder / "costs-pi5.toml")
    assert {row.threads for row in table.unit} == {4}, "as many as such a machine has cores"
    assert {rate.name for rate in table.rate} > {"memory_bandwidth", "int4_matvec"}
    again = typed("ruvcompile plan tiny.gguf --target pi5 --nodes 2 --costs costs-pi5.toml --json", folder, desk)
    assert json.loads(again.stdout)["cost_source"] == "measured"
    assert "to plan with measured ones" not in again.stderr


def rows(table: CostTable) -> Any:
    """All that a table says but for what is different every time: how long things took and how much memory they did."""
    points = {
        (row.key, row.target, row.backend, row.threads, row.beside): (
            row.label,
            (row.depth, row.chunk, row.weight_bytes),
            [(point.rows, point.tokens, point.depth) for point in row.curve],
            sorted((node.name, node.op) for node in row.node),
        )
        for row in table.unit
    }
    beside = [(row.kind, row.target, row.backend, row.threads, row.beside) for row in table.overhead]
    sources = [msgspec.structs.replace(source, date="", model="") for source in table.provenance]
    return points, beside, sources


def test_here_and_on_a_node_the_same_table_is_written(tmp_path: Path, desk: dict[str, str]) -> None:
    """By the compiler of a model, and by the runtime of its bundle: the same parts, curves, kinds and sources."""
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    build(model, tmp_path / "dist", nodes="1", stages=1, backend="onnxruntime")
    threads = f"--threads {cores()} --seconds 0.1"
    typed(f"ruvrun profile dist/bundles/host-0 {threads} -o there.toml", tmp_path, desk)
    typed("ruvcompile profile tiny.gguf --target host --backend onnxruntime -o here.toml", tmp_path, desk)
    here, there = (load_costs(tmp_path / f"{name}.toml") for name in ("here", "there"))
    assert rows(here) == rows(there)
    assert (len(here.unit), len(here.overhead)) == (4, 1)
    assert all(row.spread > 0 for table in (here, there) for row in (*table.unit, *table.overhead))
