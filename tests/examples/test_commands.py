"""Every command that a text tells a person to type is run: here, as it stands there, or by a test that is named here.

What is typed here is found in this file itself, so that a command that is changed in a text and nowhere else is missed
at once, and one that no text has any more as well.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graphs import make_model, tensor, weight
from tests.models import MODELS, SMOLLM2, write_tiny_gguf
from tests.typed import ROOMS, ROOT, TEXTS, Desk, blocks, commands

PROGRAMS = Path(sys.executable).parent
FLEET = ["format = 1", "[[node]]", "[[node]]", "[[link]]"]
"""How the blocks of README.md begin that are a fleet file."""

DELIVERED = "tests/system/test_deliver.py::test_a_delivery_is_whole_and_what_is_there_is_not_copied"
SIMULATED = "tests/examples/test_simulations.py::test_a_kept_cost_table_is_all_that_a_plan_needs"
ELSEWHERE = {
    "./dist/deliver/deliver.sh": DELIVERED,
    "sudo ./node/install.sh": "tests/system/test_install.py::test_an_upgrade_and_the_way_back",
    "ruvrun doctor manifest.toml --peers": (
        "tests/runtime/test_doctor_peers.py::test_a_peer_that_takes_this_node_in_and_is_not_disturbed"
    ),
    "ruvrun serve manifest.toml": "tests/commands/test_serve.py::test_copied_bundles_find_each_other_in_any_order",
    "./examples/benchmarks/run.sh": "tests/examples/test_benchmarks.py::test_without_a_name_they_are_listed_one_a_line",
    "./examples/simulations/run.sh 70b": SIMULATED,
    "python examples/simulations/hollow.py 70b llama-70b": SIMULATED,
}
"""Commands that another test runs."""

PARSED = "tests/structure/test_readme.py::test_a_command_in_the_text_is_one_that_exists"
NOT_RUN = {
    "./examples/benchmarks/run.sh parity": (
        "it measures for minutes, on a machine that does nothing else",
        "tests/examples/test_benchmarks.py::test_every_benchmark_has_its_table",
    ),
    "ruvcompile probe llama-70b --target host --quant int4 -o probe": ("layers of a 70B take minutes", PARSED),
    'pip install "ruvrun[onnxruntime,head]"': (
        "it is in no package index yet",
        "tests/examples/test_commands.py::test_what_is_to_be_installed_is_there",
    ),
}
"""Commands that no test runs: why, and what looks at them instead."""

BY_ROOM = {f"examples/{room}/README.md" for room in ROOMS}
"""Texts whose commands are all typed by tests/examples/test_rooms.py."""


def typed_here() -> set[str]:
    """What the tests below type."""
    calls = [node for node in ast.walk(ast.parse(Path(__file__).read_text("utf-8"))) if isinstance(node, ast.Call)]
    return {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("type", "serving")
        if isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }


@pytest.mark.parametrize("text", [text for text in TEXTS if text not in BY_ROOM])
def test_every_command_of_a_text_is_run_or_it_is_said_why_not(text: str) -> None:
    known = typed_here() | ELSEWHERE.keys() | NOT_RUN.keys()
    assert [command for command in commands(text) if command not in known] == []


def test_nothing_is_typed_or_listed_that_no_text_has() -> None:
    told = {command for text in TEXTS for command in commands(text)}
    assert sorted((typed_here() | ELSEWHERE.keys() | NOT_RUN.keys()) - told) == []
    assert not ELSEWHERE.keys() & NOT_RUN.keys()


@pytest.mark.parametrize("test", sorted({*ELSEWHERE.values(), *(test for _, test in NOT_RUN.values())}))
def test_a_test_that_is_named_is_there(test: str) -> None:
    path, name = test.split("::")
    defined = ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
    assert name in {node.name for node in defined if isinstance(node, ast.FunctionDef)}


def test_all_other_blocks_of_the_readme_are_known() -> None:
    typed = {line for command in commands("README.md") for line in command.splitlines()}
    begun = [block[0].partition("  ")[0] for block in blocks("README.md")]
    assert [line for line in begun if line not in typed] == [*FLEET, "ruvcompile/"], "a fleet file, and the layout"


def test_what_is_to_be_installed_is_there() -> None:
    text = (ROOT / "runtime/pyproject.toml").read_text()
    assert 'name = "ruvrun"' in text
    assert "\nonnxruntime = " in text
    assert "\nhead = " in text


@pytest.mark.system
@pytest.mark.model
def test_the_quick_start_by_hand(tmp_path: Path) -> None:
    """In a copy of the examples, with a tiny model under the real one's name."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    models = tmp_path / ".cache/models"
    models.mkdir(parents=True)
    (models / SMOLLM2.name).symlink_to(SMOLLM2)
    desk = Desk(tmp_path, PROGRAMS)
    assert desk.type("python3 examples/fetch_models.py smollm2").stdout.strip() == str(models / SMOLLM2.name)
    (models / SMOLLM2.name).unlink()
    write_tiny_gguf(models / SMOLLM2.name)
    desk.type("ruvcompile build .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf --target host --nodes 2 --stages 2")
    with desk.serving("ruvrun serve dist/manifest.toml"):
        told = desk.type('ruvrun run --url http://127.0.0.1:8000 --chat --prompt "What is the capital of France?"')
        assert told.stdout.strip()
        assert len(desk.type("ruvrun status http://127.0.0.1:8000 --check").stdout.splitlines()) == 1
    desk.type("ruvrun status http://127.0.0.1:8000 --check", code=6)
    desk.type("ruvrun bench dist/manifest.toml --streams 2 --json > bench.json")
    assert json.loads((tmp_path / "bench.json").read_text())["tokens_per_s"] > 0
    before = (tmp_path / "dist/report.html").read_bytes()
    desk.type("ruvcompile report dist/manifest.toml --run bench.json")
    assert (tmp_path / "dist/report.html").read_bytes() != before


@pytest.mark.system
def test_plans_and_builds_for_other_machines(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "model.gguf", layers=4)
    fleet = [line for block in blocks("README.md") if block[0].partition("  ")[0] in FLEET for line in block]
    (tmp_path / "fleet.toml").write_text("\n".join(fleet) + "\n")
    desk = Desk(tmp_path, PROGRAMS)
    assert "pi5" in desk.type("ruvcompile targets").stdout
    desk.type("ruvcompile build model.gguf --target pi5 --nodes 4")
    desk.type("ruvcompile build model.gguf --fleet fleet.toml")
    told = desk.type("./dist/deliver/deliver.sh", code=6)  # there are no such machines, and it says so of each
    assert told.stderr.count("error[host-unreachable]") == len(list((tmp_path / "dist/bundles").iterdir()))
    assert "cost" in desk.type("ruvcompile plan model.gguf --target host --nodes 2").stdout
    desk.type("ruvcompile probe model.gguf --target pi5 -o probe")
    desk.type("ruvrun profile probe -o costs.toml")
    desk.type("ruvcompile build model.gguf --target pi5 --nodes 4 --costs costs.toml")
    told = desk.type("ruvcompile plan model.gguf --target pi5 --nodes 4 --costs costs.toml --simulate --users 30")
    assert "simulation" in told.stdout


@pytest.mark.system
def test_a_graph_is_built_run_and_served(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    filters = [weight(name, random.standard_normal((4, into, 3, 3))) for name, into in (("f", 3), ("g", 4))]
    layers = [
        helper.make_node("Conv", ["x", "f"], ["a"], strides=[4, 4]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "g"], ["y"], strides=[4, 4]),
    ]
    sides = ("height", "width")
    net = make_model(layers, [tensor("x", [1, 3, *sides])], [tensor("y", [1, 4, "rows", "columns"])], filters)
    onnx.save(net, tmp_path / "detector.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones((1, 3, 640, 640), np.float32))
    desk = Desk(tmp_path, PROGRAMS)
    desk.type("ruvcompile build detector.onnx --target host --nodes 2 --shape x=1x3x640x640")
    desk.type("ruvrun run dist/manifest.toml --input in.npz --output out.npz")
    alone = np.load(tmp_path / "out.npz")["y"]
    (tmp_path / "out.npz").unlink()
    with desk.serving("ruvrun serve dist/manifest.toml"):
        desk.type("ruvrun run --url http://127.0.0.1:8000 --input in.npz --output out.npz")
    assert np.array_equal(np.load(tmp_path / "out.npz")["y"], alone)


@pytest.mark.system
@pytest.mark.model
def test_from_nothing_but_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of this one, without what was made in it, and the model as if it had been fetched."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    left = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "dist", "build")
    checkout = Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=left))
    (checkout / ".cache/models").mkdir(parents=True)
    (checkout / ".cache/models" / SMOLLM2.name).symlink_to(MODELS / SMOLLM2.name)
    desk = Desk(checkout, PROGRAMS)
    desk.type("python3 -m venv .venv && . .venv/bin/activate")
    desk.programs = checkout / ".venv/bin"
    desk.type('pip install -e "./runtime[onnxruntime,head]" -e ".[report]"')
    assert os.access(desk.programs / "ruvcompile", os.X_OK)
    (checkout / ".cache/quickstart").mkdir()
    (checkout / ".cache/quickstart/venv").symlink_to(checkout / ".venv")
    assert "Paris" in desk.type("./examples/quickstart/run.sh").stdout
