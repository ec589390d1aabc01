"""The very beginning of the command: Ctrl-C while Python still imports."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from onnx import helper

from tests.graphs import make_model, tensor

ROOT = Path(__file__).parents[2]
# Ctrl-C as it arrives in the middle of importing a module.
INTERRUPTED = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["ruvrun", "status", "http://127.0.0.1:1", "--check"]
from {entry} import {function} as run
run()
"""


@pytest.mark.parametrize("module", ["ruvrun.cli", "click", "ruvrun.cli.serve", "ruvrun.status"])
def test_an_early_ctrl_c_is_no_traceback(module: str) -> None:
    scripts = tomllib.loads((ROOT / "runtime/pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    entry, _, function = scripts["ruvrun"].partition(":")
    code = INTERRUPTED.format(module=module, entry=entry, function=function)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_it_is_the_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "ruvrun", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ruvrun, version ")


@pytest.mark.parametrize("first", ["ruvcompile.cli", "ruvcompile.compile", "ruvrun.cli", "ruvrun.executors"])
def test_a_back_end_keeps_nothing_for_its_makers(first: str, tmp_path: Path) -> None:
    """What it would send home, it would first leave among the temporary files."""
    model, scratch = tmp_path / "model.onnx", tmp_path / "scratch"
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model.write_bytes(make_model(nodes, [tensor("x", [1])], [tensor("y", [1])]).SerializeToString())
    scratch.mkdir()
    code = f"import {first}; import onnxruntime; onnxruntime.InferenceSession({str(model)!r})"
    told = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", code], env={**told, "TMPDIR": str(scratch)}, check=True)
    assert list(scratch.iterdir()) == []
