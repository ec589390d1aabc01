"""Weights in files of their own: never read whole, never copied, never pointed at by a stage; shared ones in each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ruvrun.pipeline import open_local
from tests.compiler.builds import build
from tests.compiler.recipes import BOTH, FLAG, branches, built, nodes_of
from tests.graphs import assert_equal, make_model, run_original, tensor, weight


def with_data(folder: Path, size: int) -> Path:
    """Weights in a file beside the graph: a large one, small ones, one in a body and one in a Constant."""
    inner = branches([helper.make_node("Mul", ["b", "in"], ["t"])], [helper.make_node("Constant", [], ["e"])])
    inner["then_branch"].initializer.append(weight("in", np.full((2, 3), 2)))
    inner["else_branch"].node[0].attribute.append(helper.make_attribute("value", weight("c", np.ones((2, 3)))))
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("MatMul", ["a", "v"], ["b"]),
            helper.make_node("If", ["flag"], ["y"], **inner),
        ],
        [tensor("x", [2, 3]), FLAG],
        [tensor("y", [2, 3])],
        [weight("w", np.ones((3, size))), weight("v", np.ones((size, 3)))],
    )
    path = folder / "net.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="w.bin", size_threshold=0, convert_attribute=True)
    return path


@pytest.mark.parametrize("size", [4, 3000], ids=["small", "large"])
def test_data_files_do_not_grow_and_no_stage_points_at_them(tmp_path, size) -> None:
    """The same model built three times: its own data stays as it is, and so does the build."""
    path = with_data(tmp_path, size)
    wanted = [run_original(onnx.load(path), arrays) for arrays in BOTH]
    sizes = set()
    for _ in range(3):
        build(path, tmp_path / "dist", cut="b")
        whole = [each.stat().st_size for each in sorted(tmp_path.rglob("*.bin"))]
        sizes.add(tuple(whole))
    assert len(sizes) == 1
    path.unlink()
    (tmp_path / "w.bin").unlink()
    pipeline = open_local(tmp_path / "dist" / "manifest.toml")
    for arrays, whole in zip(BOTH, wanted, strict=True):
        assert_equal(pipeline.run(arrays), whole)


@pytest.mark.parametrize("size", [600e6, pytest.param(2.1e9, marks=pytest.mark.system)], ids=["quick", "over 2 GB"])
def test_weights_in_files_are_built_without_being_read_into_memory(tmp_path, size) -> None:
    rows = int(size) // 4096
    big = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, 1024], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(rows * 4096))):
        big.external_data.add(key=key, value=value)
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 4096)
        file.seek((rows - 1) * 4096)
        file.write(np.full(1024, 3, np.float32).tobytes())
    model = make_model(
        [helper.make_node("Gather", ["w", "ids"], ["a"]), helper.make_node("Neg", ["a"], ["y"])],
        [tensor("ids", [2], TensorProto.INT64)],
        [tensor("y", [2, 1024])],
        [big],
    )
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    main = [sys.executable, "-c", "from ruvcompile.cli import main; main()"]
    flags = ["--target", "host", "--nodes", "2", "--stages", "2", "--json", "-q"]
    command = [*main, "build", "net.onnx", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["peak_rss_bytes"] < 400e6
    assert [stage["weight_bytes"] for stage in told["stages"]] == [rows * 4096, 0]
    (tmp_path / "w.bin").unlink()
    found = open_local(tmp_path / "dist" / "manifest.toml").run({"ids": np.array([0, rows - 1])})
    assert found["y"].tolist() == [[0.0] * 1024, [-3.0] * 1024]
    for path in tmp_path.rglob("*.bin"):
        path.unlink()  # pytest would keep them


def test_a_tied_table_is_in_both_stages_and_counted_in_both(tmp_path) -> None:
    table = np.random.default_rng(0).standard_normal((50, 16))
    model = make_model(
        [
            helper.make_node("Gather", ["table", "ids"], ["h"]),
            helper.make_node("Relu", ["h"], ["g"]),
            helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
            helper.make_node("MatMul", ["g", "turned"], ["y"]),
        ],
        [tensor("ids", ["n"], TensorProto.INT64)],
        [tensor("y", ["n", 50])],
        [weight("table", table)],
    )
    result, specs, directories = built(model, tmp_path, cut="g", shape=("ids=4",))
    assert [stage["weight_bytes"] for stage in result["stages"]] == [50 * 16 * 4] * 2
    assert specs[0].forward == ["g"], "the table itself does not travel"
    (one,), (other,) = ([path.name for path in (each / "weights").iterdir()] for each in directories)
    assert one == other, "the same bytes under the same name"
    arrays = {"ids": np.array([3, 1, 49])}
    assert_equal(open_local(tmp_path / "dist" / "manifest.toml").run(arrays), run_original(model, arrays))


def test_a_stage_has_nothing_of_the_layout_of_the_machine_that_built_it(tmp_path) -> None:
    """Blocks of 8 or 16 channels are what this machine's kernels like; another machine, or back end, reads the file."""
    random = np.random.default_rng(0)
    kernels = [weight(name, 0.1 * random.standard_normal((16, 16, 3, 3))) for name in ("w", "v")]
    pads = {"pads": [1, 1, 1, 1]}
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["a"], **pads),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "v"], ["y"], **pads),
        ],
        [tensor("x", [1, 16, 12, 12])],
        [tensor("y", [1, 16, 12, 12])],
        kernels,
    )
    _, specs, directories = built(model, tmp_path, cut="b")
    x = random.standard_normal((1, 16, 12, 12)).astype(np.float32)
    carried = {"x": x}
    for spec, directory in zip(specs, directories, strict=True):
        nodes = nodes_of(directory / spec.model)
        assert {node.domain for node in nodes} == {""}
        assert {node.op_type for node in nodes} <= {"Conv", "Relu"}
        evaluator = ReferenceEvaluator(onnx.load(directory / spec.model))
        names = [port.name for port in spec.outputs]
        carried = dict(zip(names, evaluator.run(names, carried), strict=True))
    assert_equal(carried, run_original(model, {"x": x}))
