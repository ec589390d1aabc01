"""A graph cut for a machine with an accelerator: what it could take, in the fewest parts, which are the whole."""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ruvcompile.accelerator import target_of
from ruvcompile.accelerator.divided import divide
from ruvcompile.cli import run
from ruvcompile.errors import FitError, UsageError
from ruvcompile.passes.units import Unit
from tests.compiler.accelerators import TARGET, build, options, plan
from tests.graphs import PP_OCR, make_model, model_path, tensor, weight
from tests.models import write_tiny_gguf

# What is whose


def test_the_accelerator_gets_what_it_could_take_and_the_cpu_the_rest(detector: Path, tmp_path: Path) -> None:
    result = plan(detector, tmp_path / "dist")
    assert [(part["on"], part["operators"]) for part in result["parts"]] == [
        ("accelerator", {"Conv": 2, "Relu": 1, "Reshape": 1}),
        ("cpu", {"TopK": 1}),
        ("accelerator", {"MatMul": 1, "Reshape": 1}),
    ]
    assert result["parts"][1]["why"] == ["TopK is not among its operators"]
    assert not (tmp_path / "dist.parts").exists()
    assert "--hw-arch hailo10h" in result["commands"][0]


def test_a_part_that_is_not_worth_the_way_stays(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
        helper.make_node("NonZero", ["y"], ["z"], name="nonzero"),
        helper.make_node("Relu", ["y"], ["r"], name="relu"),
        helper.make_node("Where", ["c", "r", "y"], ["v"], name="where"),
        helper.make_node("Sigmoid", ["v"], ["s"], name="sigmoid"),
    ]
    inputs = [tensor("x", [1, 4]), tensor("c", [1, 4], TensorProto.BOOL)]
    outputs = [tensor("s", [1, 4]), tensor("z", None, TensorProto.INT64)]
    path = tmp_path / "net.onnx"
    onnx.save(make_model(nodes, inputs, outputs, [weight("w", np.eye(4))], opset=17), path)
    parts = plan(path, tmp_path / "dist", shape=())["parts"]
    assert [part["on"] for part in parts] == ["accelerator", "cpu"]
    assert parts[0]["operators"] == {"MatMul": 1, "Relu": 1}
    assert parts[1]["operators"] == {"NonZero": 1, "Sigmoid": 1, "Where": 1}


def test_weights_that_are_computed_are_no_weights(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["y"], name="conv"),
        helper.make_node("Conv", ["y", "w"], ["z"], name="other"),
    ]
    inputs = [tensor("x", [1, 2, 6, 6]), tensor("k", [2, 2, 3, 3])]
    path = tmp_path / "net.onnx"
    onnx.save(make_model(nodes, inputs, [tensor("z", None)], [weight("w", np.ones((2, 2, 3, 3)))], opset=17), path)
    parts = plan(path, tmp_path / "dist", shape=())["parts"]
    assert [(part["on"], part["why"]) for part in parts] == [
        ("cpu", ["Conv has weights that are computed"]),
        ("accelerator", []),
    ]


def test_what_has_a_size_in_one_run_only_stays(tmp_path: Path, nothing_installed: None) -> None:
    """What NonZero finds is of another size with other data, and so is all that is computed of it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], name="first"),
        helper.make_node("NonZero", ["y"], ["where"], name="nonzero"),
        helper.make_node("Cast", ["where"], ["places"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["places"], ["rows"], name="turn"),
        helper.make_node("MatMul", ["rows", "v"], ["scores"], name="second"),
        helper.make_node("Shape", ["scores"], ["size"], name="shape"),
        helper.make_node("Reshape", ["scores", "size"], ["z"], name="reshape"),
    ]
    weights = [weight("w", np.eye(4)), weight("v", np.ones((2, 3)))]
    path = tmp_path / "net.onnx"
    onnx.save(make_model(nodes, [tensor("x", [1, 4])], [tensor("z", None)], weights, opset=17), path)
    parts = plan(path, tmp_path / "dist", shape=())["parts"]
    assert [(part["on"], part["nodes"]) for part in parts] == [("accelerator", 1), ("cpu", 6)]
    assert "MatMul has a tensor whose size does not follow from the sizes of the inputs" in parts[1]["why"]
    with pytest.raises(FitError):
        build(path, tmp_path / "dist", shape=())
    values, kept = _run_parts(tmp_path / "dist.parts"), np.load(tmp_path / "dist.parts" / "values.npz")
    np.testing.assert_allclose(values["z"], kept["z"], rtol=1e-5)
    _, rest = tomllib.loads((tmp_path / "dist.parts/parts.toml").read_text())["part"]
    assert not isinstance(rest["outputs"][0]["shape"][0], int), "it is not what it was in that run"


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[list[Unit], list[bool]]:
    units, sides = [], []
    for number in range(draw(st.integers(1, 7))):
        before = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3)) if number else []
        units.append(Unit((f"n{number}",), tuple(f"v{each}" for each in before), (f"v{number}",)))
        sides.append(draw(st.booleans()))
    return units, sides


def _fewest(units: list[Unit], sides: list[bool]) -> int:
    """The fewest turns over all orders of computation."""
    best = len(units)
    for order in itertools.permutations(range(len(units))):
        place = {f"v{number}": at for at, number in enumerate(order)}
        if all(place[name] < at for at, number in enumerate(order) for name in units[number].inputs):
            best = min(best, sum(1 for _ in itertools.groupby(sides[number] for number in order)))
    return best


@given(_graphs())
def test_parts_are_the_fewest_and_in_an_order_of_computation(graph) -> None:
    units, sides = graph
    parts = divide(units, sides, lambda _: True)
    assert sorted(number for part in parts for number in part.units) == list(range(len(units)))
    assert all(sides[number] is part.taken for part in parts for number in part.units)
    made: set[str] = set()
    for part in parts:
        for number in part.units:
            assert made.issuperset(units[number].inputs)
            made.update(units[number].outputs)
    assert len(parts) == _fewest(units, sides)


@given(_graphs(), st.sets(st.integers(0, 6)))
def test_only_parts_with_what_is_worth_it_are_taken(graph, worthy) -> None:
    units, sides = graph
    for part in divide(units, sides, worthy.__contains__):
        assert not part.taken or worthy.intersection(part.units)
        assert not part.taken or all(sides[number] for number in part.units)


# What is written


def _run_parts(folder: Path) -> dict[str, np.ndarray]:
    """The parts one after the other, from the inputs in values.npz."""
    listed = tomllib.loads((folder / "parts.toml").read_text())["part"]
    kept = np.load(folder / "values.npz")
    made = {name for part in listed for name in (port["name"] for port in part["outputs"])}
    values = {name: kept[name] for name in kept.files if name not in made}
    for part in listed:
        session = onnxruntime.InferenceSession(folder / f"{part['name']}.onnx", providers=["CPUExecutionProvider"])
        names = [port["name"] for port in part["outputs"]]
        feeds = {port["name"]: values[port["name"]] for port in part["inputs"]}
        values |= dict(zip(names, session.run(names, feeds), strict=True))
    return values


def test_without_the_compiler_the_parts_are_there_and_it_says_what_is_missing(
    detector: Path, tmp_path: Path, nothing_installed: None
) -> None:
    with pytest.raises(FitError) as caught:
        build(detector, tmp_path / "dist")
    error = caught.value
    assert (error.ref, error.exit_code) == ("accelerator-compiler-missing", 4)
    assert "there is no command `hailo` here" in error.context
    assert "2 for the Hailo-10H (of 6 nodes), 1 for the CPU (of 1 node)" in error.context[1]
    folder = tmp_path / "dist.parts"
    assert f"{folder}/compile.sh" in str(error)
    assert {path.name for path in folder.iterdir()} == {
        *("parts.toml", "values.npz", "compile.sh", "README.md"),
        *("part_0.onnx", "part_1.onnx", "part_2.onnx"),
    }
    assert not (tmp_path / "dist").exists()


def test_the_parts_together_are_the_whole(detector: Path, tmp_path: Path, nothing_installed: None) -> None:
    with pytest.raises(FitError):
        build(detector, tmp_path / "dist")
    folder = tmp_path / "dist.parts"
    values, kept = _run_parts(folder), np.load(folder / "values.npz")
    whole = onnxruntime.InferenceSession(detector, providers=["CPUExecutionProvider"])
    expected = dict(zip(["scores", "where"], whole.run(["scores", "where"], {"image": kept["image"]}), strict=True))
    np.testing.assert_array_equal(values["where"], expected["where"])
    np.testing.assert_allclose(values["scores"], expected["scores"], rtol=1e-5)
    for name in kept.files:
        np.testing.assert_allclose(values[name], kept[name], rtol=1e-5)


def test_every_size_in_a_part_is_fixed(detector: Path, tmp_path: Path, nothing_installed: None) -> None:
    with pytest.raises(FitError):
        build(detector, tmp_path / "dist")
    for path in sorted((tmp_path / "dist.parts").glob("*.onnx")):
        model = onnx.load(path)
        onnx.checker.check_model(model)
        ports = [*model.graph.input, *model.graph.output, *model.graph.value_info]
        assert all(dim.HasField("dim_value") for port in ports for dim in port.type.tensor_type.shape.dim)
        assert not {"Shape", "Gather", "Unsqueeze", "Constant"} & {node.op_type for node in model.graph.node}
        assert not [each for each in model.graph.initializer if each.data_location == TensorProto.EXTERNAL]


def test_the_same_again_is_the_same(detector: Path, tmp_path: Path, nothing_installed: None) -> None:
    found = []
    for _ in range(2):
        with pytest.raises(FitError):
            build(detector, tmp_path / "dist")
        found.append({path.name: path.read_bytes() for path in (tmp_path / "dist.parts").iterdir()})
    assert found[0] == found[1]


def test_what_is_no_folder_of_parts_is_not_replaced(detector: Path, tmp_path: Path, nothing_installed: None) -> None:
    (tmp_path / "dist.parts").mkdir()
    (tmp_path / "dist.parts" / "mine").write_text("")
    with pytest.raises(Exception, match="is not a folder of parts"):
        build(detector, tmp_path / "dist")
    assert (tmp_path / "dist.parts" / "mine").exists()


# The vendor's compiler

# What is refused


def test_a_decoder_is_refused_with_what_the_vendor_offers(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", layers=1)
    with pytest.raises(FitError) as caught:
        build(model, tmp_path / "dist", shape=())
    assert caught.value.ref == "accelerator-decoder"
    assert "hailo-ollama" in (caught.value.hint or "")


def test_a_graph_with_nothing_for_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    nodes = [helper.make_node("Sin", ["x"], ["y"], name="sin")]
    onnx.save(make_model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 4])], opset=17), path)
    with pytest.raises(FitError) as caught:
        build(path, tmp_path / "dist", shape=())
    assert caught.value.ref == "accelerator-nothing"
    assert caught.value.context == ("Sin is not among its operators",)


def test_an_opset_that_its_parser_does_not_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    onnx.save(make_model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 4])], [weight("w", np.eye(4))], opset=21), path)
    with pytest.raises(FitError, match="has opset 21"):
        build(path, tmp_path / "dist", shape=())


def test_it_is_one_machine(detector: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        target_of(options(detector, tmp_path / "dist", nodes="2"))
    assert caught.value.ref == "accelerator-alone"


# From the command line


def test_the_command_says_the_same(
    detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    line = [str(detector), "--target", TARGET, "--shape", "image=1x3x8x8"]
    assert run(["plan", *line]) == 0
    shown = capsys.readouterr().out
    assert "Hailo-10H" in shown
    assert "TopK is not among its operators" in shown
    assert "hailo compiler part_0_optimized.har" in shown
    assert run(["build", *line, "--json"]) == 4
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["ref"] == "accelerator-compiler-missing"


def test_a_real_detector_is_cut(tmp_path: Path, nothing_installed: None) -> None:
    with pytest.raises(FitError) as caught:
        build(model_path(PP_OCR), tmp_path / "dist", shape=("x=1x3x64x64",))
    assert caught.value.ref == "accelerator-compiler-missing"
    folder = tmp_path / "dist.parts"
    parts = tomllib.loads((folder / "parts.toml").read_text())["part"]
    taken = [part for part in parts if part["on"] == "accelerator"]
    assert sum(part["nodes"] for part in taken) > 0.9 * sum(part["nodes"] for part in parts)
    values, kept = _run_parts(folder), np.load(folder / "values.npz")
    for name in kept.files:
        np.testing.assert_allclose(values[name], kept[name], rtol=1e-3, atol=1e-4)
