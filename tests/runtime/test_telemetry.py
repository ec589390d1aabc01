"""Nothing of what a node computes is noted for somebody else: no file in its home, and so nothing to send."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

RUN = "import sys; {first}import onnxruntime; onnxruntime.InferenceSession(sys.argv[1])"


@pytest.mark.parametrize("told", [True, False])
def test_a_session_leaves_nothing_at_home(tmp_path: Path, told: bool) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    home = tmp_path / "home"
    home.mkdir()
    # Nothing else: under CI, it is silent by itself.
    clean = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    code = RUN.format(first="import ruvrun.executors; " if told else "")
    subprocess.run([sys.executable, "-c", code, tmp_path / "model.onnx"], env={**clean, "HOME": str(home)}, check=True)
    left = [path for path in home.rglob("*") if path.is_file()]
    assert bool(left) is not told, "without being told it does: else this test would see nothing"
