"""Small graphs that break tools which cut models, through the front door: built in stages, and run.

Each is equal to what ONNX Runtime says of the very file. What the steps in between make of such graphs is tested
where the steps are (``test_cuts``, ``test_extract``, ``test_canonicalise``); what they cost, in ``test_recipes_cost``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from ruvrun.bundle import StageSpec, load_spec
from ruvrun.pipeline import open_local
from tests.compiler.builds import build, check_whole, plan
from tests.graphs import Array, assert_equal, make_model, run_original, tensor, weight

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def built(model: onnx.ModelProto, folder: Path, **flags: Any) -> tuple[dict[str, Any], list[StageSpec], list[Path]]:
    """What a build of ``model`` in two stages says, its stages, and where each lies."""
    onnx.save(model, folder / "net.onnx")
    result = build(folder / "net.onnx", folder / "dist", **flags)
    manifest, specs = check_whole(folder / "dist")
    return result, specs, [folder / "dist" / "bundles" / each.node for each in manifest.pipeline[0].stages]


def check_cut(
    model: onnx.ModelProto, folder: Path, cut: str, cases: Sequence[Mapping[str, Array]], **flags: Any
) -> list[StageSpec]:
    """Cut ``model`` at the tensors ``cut``; the stages give what the whole gives. Each is a sound model by itself."""
    _, specs, directories = built(model, folder, cut=cut, **flags)
    assert set(specs[0].forward) >= set(cut.split(","))
    for spec, directory in zip(specs, directories, strict=True):
        onnx.checker.check_model(directory / spec.model)
    pipeline = open_local(folder / "dist" / "manifest.toml")
    for arrays in cases:
        assert_equal(pipeline.run(dict(arrays)), run_original(model, arrays))
    return specs


def _nodes(path: Path) -> Sequence[onnx.NodeProto]:
    return onnx.load(path, load_external_data=False).graph.node


def branches(nodes_then: Sequence[onnx.NodeProto], nodes_else: Sequence[onnx.NodeProto]) -> dict[str, onnx.GraphProto]:
    """The attributes of an If whose branches end in ``t`` and ``e``, both 2 x 3."""
    return {
        "then_branch": helper.make_graph(list(nodes_then), "then", [], [tensor("t", [2, 3])]),
        "else_branch": helper.make_graph(list(nodes_else), "else", [], [tensor("e", [2, 3])]),
    }


FLAG = tensor("flag", [], TensorProto.BOOL)
BOTH = [{"x": X, "flag": np.array(flag)} for flag in (True, False)]


@pytest.mark.parametrize("cut", ["a", "r"])
def test_what_only_branches_read_is_read_by_the_node_that_has_them(tmp_path, cut) -> None:
    inner = branches([helper.make_node("Mul", ["r", "w"], ["t"])], [helper.make_node("Sub", ["r", "w"], ["e"])])
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Abs", ["a"], ["r"]),
            helper.make_node("If", ["flag"], ["y"], **inner),
        ],
        [tensor("x", [2, 3]), FLAG],
        [tensor("y", [2, 3])],
        [weight("w", [1, 2, 3])],
    )
    check_cut(model, tmp_path, cut, BOTH)


@pytest.mark.parametrize("cut", ["a", "a,r", "a,r,deep", "r,l"])
def test_what_a_branch_in_a_loop_reads_too(tmp_path, cut) -> None:
    """Bodies in bodies: values of the graph, weights, and what the loop around carries."""
    deep = [helper.make_node("Add", ["carried", "deep"], ["p"]), helper.make_node("Mul", ["p", "r"], ["t"])]
    inner = branches(deep, [helper.make_node("Sub", ["carried", "w"], ["e"])])
    body = helper.make_graph(
        [
            helper.make_node("Less", ["i", "one"], ["at first"]),
            helper.make_node("If", ["at first"], ["next"], **inner),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("carried", [2, 3])],
        [tensor("go_on", [], TensorProto.BOOL), tensor("next", [2, 3])],
    )
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Exp", ["a"], ["r"]),
            helper.make_node("Neg", ["x"], ["deep"]),
            helper.make_node("Loop", ["n", "yes", "a"], ["l"], body=body),
            helper.make_node("Add", ["l", "r"], ["y"]),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3])],
        [weight("n", 3, np.int64), weight("one", 1, np.int64), weight("yes", True, np.bool_), weight("w", [1, 2, 3])],
    )
    check_cut(model, tmp_path, cut, [{"x": X}])


def test_what_the_body_of_a_scan_reads(tmp_path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "row"], ["more"]), helper.make_node("Mul", ["more", "r"], ["out"])],
        "body",
        [tensor("sum", [3]), tensor("row", [3])],
        [tensor("more", [3]), tensor("out", [3])],
    )
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("ReduceMax", ["a", "rows"], ["r"], keepdims=0),
            helper.make_node("Scan", ["start", "a"], ["end", "y"], num_scan_inputs=1, body=body),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3]), tensor("end", [3])],
        [weight("start", [0, 0, 0]), weight("rows", [0], np.int64)],
    )
    check_cut(model, tmp_path, "a,r", [{"x": X}])


def test_functions_of_one_name_are_told_apart(tmp_path) -> None:
    imports = [helper.make_opsetid("", 18)]
    functions, nodes = [], []
    for overload, operator, read, made in (("one", "Neg", "x", "a"), ("two", "Exp", "a", "y")):
        inner = helper.make_node(operator, ["p"], ["q"])
        functions.append(helper.make_function("local", "f", ["p"], ["q"], [inner], imports, overload=overload))
        nodes.append(helper.make_node("f", [read], [made], domain="local", overload=overload))
    model = make_model(nodes, [tensor("x", [2, 3])], [tensor("y", [2, 3])], domains={"local": 1}, functions=functions)
    check_cut(model, tmp_path, "a", [{"x": X}])


def test_a_function_that_is_called_only_inside_a_branch_comes_along(tmp_path) -> None:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    inside = helper.make_function("local", "inside", ["p"], ["q"], [helper.make_node("Neg", ["p"], ["q"])], imports)
    called = [helper.make_node("inside", ["p"], ["m"], domain="local"), helper.make_node("Exp", ["m"], ["q"])]
    outside = helper.make_function("local", "outside", ["p"], ["q"], called, imports)
    inner = branches(
        [helper.make_node("outside", ["a"], ["t"], domain="local")], [helper.make_node("Identity", ["a"], ["e"])]
    )
    model = make_model(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("If", ["flag"], ["y"], **inner)],
        [tensor("x", [2, 3]), FLAG],
        [tensor("y", [2, 3])],
        domains={"local": 1},
        functions=[inside, outside],
    )
    check_cut(model, tmp_path, "a", BOTH)


def test_a_cut_behind_an_operator_that_inference_does_not_know_gets_its_type_from_a_run(tmp_path) -> None:
    fused = helper.make_node("FusedMatMul", ["x", "x"], ["s"], domain="com.microsoft", transB=1)
    model = make_model(
        [fused, helper.make_node("Relu", ["s"], ["y"])],
        [tensor("x", ["rows", 3])],
        [tensor("y", ["rows", "rows"])],
        domains={"com.microsoft": 1},
    )
    cases = [{"x": X}, {"x": np.ones((5, 3), np.float32)}]
    specs = check_cut(model, tmp_path, "s", cases, shape=("x=2x3",))
    assert specs[1].inputs[0].dtype == "float32"
    assert len(specs[1].inputs[0].shape) == 2


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
        nodes = _nodes(directory / spec.model)
        assert {node.domain for node in nodes} == {""}
        assert {node.op_type for node in nodes} <= {"Conv", "Relu"}
        evaluator = ReferenceEvaluator(onnx.load(directory / spec.model))
        names = [port.name for port in spec.outputs]
        carried = dict(zip(names, evaluator.run(names, carried), strict=True))
    assert_equal(carried, run_original(model, {"x": x}))


@pytest.mark.parametrize("outputs", ["cx", "xac"])
def test_an_input_that_is_an_output_comes_through_as_it_is(tmp_path, outputs) -> None:
    """The last stage has nothing to do with x but to hand it on."""
    names = ("Relu", "x", "a"), ("Exp", "a", "b"), ("Neg", "b", "c")
    model = make_model(
        [helper.make_node(operator, [read], [made]) for operator, read, made in names],
        [tensor("x", [2, 3])],
        [tensor(name, [2, 3]) for name in outputs],
    )
    specs = check_cut(model, tmp_path, "a", [{"x": X}])
    assert "x" in specs[0].forward
    assert "x" not in [port.name for port in (*specs[1].inputs, *specs[1].outputs)]


def test_one_stage_that_hands_its_input_on(tmp_path) -> None:
    relu = helper.make_node("Relu", ["x"], ["a"])
    model = make_model([relu], [tensor("x", [2, 3])], [tensor("a", [2, 3]), tensor("x", [2, 3])])
    built(model, tmp_path, nodes="1")
    assert_equal(open_local(tmp_path / "dist" / "manifest.toml").run({"x": X}), {"a": np.maximum(X, 0), "x": X})
    # It is handed on beside the graph: where an input is listed as an output, OpenVINO reads memory that nobody wrote.
    spec = load_spec(tmp_path / "dist" / "bundles" / "host-0")
    assert {port.name for port in spec.inputs}.isdisjoint(port.name for port in spec.outputs)


def test_loops_with_the_same_inner_names_are_cut_apart(tmp_path) -> None:
    def loop(source: str, out: str, operator: str) -> onnx.NodeProto:
        body = helper.make_graph(
            [helper.make_node(operator, ["carried", "x"], ["next"]), helper.make_node("Identity", ["go"], ["go_on"])],
            "body",
            [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("carried", [2, 3])],
            [tensor("go_on", [], TensorProto.BOOL), tensor("next", [2, 3])],
        )
        return helper.make_node("Loop", ["n", "yes", source], [out], body=body)

    model = make_model(
        [loop("x", "a", "Add"), loop("a", "b", "Mul"), helper.make_node("Neg", ["b"], ["next"])],
        [tensor("x", [2, 3])],
        [tensor("next", [2, 3])],
        [weight("n", 2, np.int64), weight("yes", True, np.bool_)],
    )
    specs = check_cut(model, tmp_path, "a", [{"x": X}])
    assert set(specs[0].forward) == {"a", "x"}, "x is captured by the second body"


def test_a_weight_that_is_an_output_and_an_input_that_is_left_out(tmp_path) -> None:
    model = make_model(
        [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Clip", ["a", "", "high"], ["y"])],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3]), tensor("high", [])],
        [weight("high", 1)],
    )
    check_cut(model, tmp_path, "a", [{"x": X}])


def test_names_of_dimensions_survive_the_cut(tmp_path) -> None:
    model = make_model(
        [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Transpose", ["a"], ["y"], perm=[2, 1, 0])],
        [tensor("x", ["batch", 3, "length"])],
        [tensor("y", ["length", 3, "batch"])],
    )
    cases = [{"x": np.random.default_rng(0).standard_normal((n, 3, 7 * n)).astype(np.float32)} for n in (1, 2)]
    specs = check_cut(model, tmp_path, "a", cases, shape=("x=1x3x5",))
    assert specs[0].outputs[0].shape == specs[1].inputs[0].shape == ["batch", 3, "length"]
    assert specs[1].outputs[0].shape == ["length", 3, "batch"]


def test_a_chain_of_twenty_thousand_nodes_is_planned_in_seconds(tmp_path) -> None:
    """Nothing is quadratic, nothing recurs from node to node: else it would be hours, or an error."""
    count = 20_000
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    onnx.save(make_model(nodes, [tensor("v0", ["n", 8])], [tensor(f"v{count}", ["n", 8])]), tmp_path / "net.onnx")
    start = time.process_time()
    result = plan(tmp_path / "net.onnx", tmp_path, shape=("v0=1x8",))
    assert time.process_time() - start < 60  # of all threads; wall time depends on who else is at work
    assert [stage["graph_nodes"] for stage in result["stages"]] == [count // 2] * 2
    assert result["stages"][0]["cut_bytes"] == 32
