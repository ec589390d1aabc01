"""Signed weights in 8 bits: ONNX Runtime can turn each of them, in every form, and no graph computes anything else.

What is asked of ONNX Runtime on a PC without VNNI is asked here, whatever CPU the tests have: with all it does when it
loads a graph, and with the kernels it takes then. What it makes of the graph is read from the file that it writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ruvcompile.passes.turnable import turnable
from ruvrun.executors.sessions import open_exact, open_session
from ruvrun.pipeline import open_local
from tests.compiler.builds import build
from tests.eight_bits import FORMS, MATRICES, ROWS, WIDTH, WITHOUT_ZERO, Layer, arrays, graph
from tests.graphs import Array, make_model, program_of, raw_program, run_original, tensor, weight

ENTRY = "session.x64quantprecision"
CERTAIN = 64
"""Weights up to this one are never cut off, and not turned."""


@pytest.fixture(autouse=True)
def without_vnni() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ruvrun.executors.sessions.cpu_features", lambda: ("avx2", "fma"))
        yield


def turned(model: onnx.ModelProto, folder: Path, inputs: dict[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """What a graph computes where weights are turned, and the signed ones that are left."""

    def options() -> ort.SessionOptions:
        found = ort.SessionOptions()
        found.log_severity_level = 4
        found.optimized_model_filepath = str(folder / "made.onnx")
        return found

    session = open_exact(model.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    results = dict(zip(names, session.run(names, inputs), strict=True))
    return results, signed(onnx.load(folder / "made.onnx").graph)


def signed(graph: onnx.GraphProto) -> list[str]:
    """The int8 weights that hold more than is certain, of bodies too."""
    found = []
    for each in graph.initializer:
        if each.data_type == TensorProto.INT8 and np.abs(onnx.numpy_helper.to_array(each).astype(int)).max() > CERTAIN:
            found.append(each.name)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += signed(attribute.g)
    return found


def passed(model: onnx.ModelProto) -> onnx.ModelProto:
    return ir.to_proto(program_of(model).model)


def asked(session: Any) -> bool:
    """Whether a session was loaded with weights that are turned."""
    try:
        return bool(session.get_session_options().get_session_config_entry(ENTRY) == "1")
    except RuntimeError:
        return False


SHARED = {
    "one": [0],
    "a zero point": [0, 1],
    "a weight and a zero point": [0, 0],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weights", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("zero", [0, None], ids=["zero point", "no zero point"])
@pytest.mark.parametrize("channels", [False, True], ids=["one scale", "a scale for each channel"])
def test_each_form_is_turned_whatever_its_operators_share(
    tmp_path: Path, form: str, weights: list[int], zero: int | None, channels: bool
) -> None:
    layers = [Layer(form, number, zero, channels) for number in weights]
    wanted = run_original(graph(layers, unsigned=True), arrays())
    assert np.unique(wanted["y"]).size > 10
    found, left = turned(passed(graph(layers)), tmp_path, arrays())
    np.testing.assert_array_equal(found["y"], wanted["y"])
    assert left == []


@st.composite
def drawn(draw: st.DrawFn) -> list[Layer]:
    layers = []
    for _ in range(draw(st.integers(1, 5))):
        form = draw(st.sampled_from(FORMS))
        zero = draw(st.sampled_from([0, 0, 1, None] if form in WITHOUT_ZERO else [0, 0, 1]))
        layers.append(Layer(form, draw(st.integers(0, 1)), zero, draw(st.booleans())))
    return layers


@given(drawn(), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_no_graph_has_a_weight_that_cannot_be_turned_and_none_computes_anything_else(
    tmp_path_factory: pytest.TempPathFactory, layers: list[Layer], seed: int
) -> None:
    model, inputs = graph(layers), arrays(seed)
    given_bytes = model.SerializeToString()
    found, left = turned(passed(model), tmp_path_factory.mktemp("made"), inputs)
    np.testing.assert_array_equal(found["y"], run_original(graph(layers, unsigned=True), inputs)["y"])
    assert left == []
    assert model.SerializeToString() == given_bytes


@pytest.mark.parametrize("form", MATRICES)
def test_what_shares_nothing_and_has_its_zero_point_stays_the_very_same(form: str) -> None:
    program = raw_program(graph([Layer(form, 0, 0), Layer(form, 1, 1)]))
    assert turnable(program) is program


def test_a_graph_without_signed_weights_stays_the_very_same() -> None:
    layers = [Layer(form, 0, 0) for form in FORMS]
    program = raw_program(graph([*layers, *layers], unsigned=True))
    assert turnable(program) is program


def test_only_what_was_shared_is_new_and_the_rest_keeps_its_place() -> None:
    model = graph([Layer("dynamic", 0, 0), Layer("dynamic", 1, 0)])
    program = raw_program(model)
    before = ir.to_proto(program.model).SerializeToString()
    made = ir.to_proto(turnable(program).model)
    assert ir.to_proto(program.model).SerializeToString() == before
    old, new = ({each.name: each for each in one.graph.initializer} for one in (model, made))
    assert new.keys() - old.keys() == {"n0.0/own"}
    assert all(new[name] == old[name] for name in old)
    changed = [(a, b) for a, b in zip(model.graph.node, made.graph.node, strict=True) if list(a.input) != list(b.input)]
    (((was, now),)) = changed
    assert (was.op_type, list(now.input)) == ("MatMulInteger", [*was.input[:3], "n0.0/own"])


def test_a_matrix_that_is_dequantised_for_two_readers_is_turned_by_the_build(tmp_path: Path) -> None:
    def model(*, unsigned: bool) -> onnx.ModelProto:
        made = graph([Layer("qdq"), Layer("qdq")], unsigned=unsigned)
        first, second = (node for node in made.graph.node if node.output[0] in ("0.w", "1.w"))
        made.graph.node.remove(second)
        for node in made.graph.node:
            node.input[:] = [first.output[0] if name == second.output[0] else name for name in node.input]
        return made

    found, left = turned(passed(model(unsigned=False)), tmp_path, arrays())
    np.testing.assert_array_equal(found["y"], run_original(model(unsigned=True), arrays())["y"])
    assert left == []


def test_the_newest_form_of_a_product_is_turned_by_the_build(tmp_path: Path) -> None:
    layers = [Layer("QLinearMatMul", 0), Layer("QLinearMatMul", 0), Layer("QLinearMatMul", 1)]
    found, left = turned(passed(graph(layers, opset=21)), tmp_path, arrays())
    np.testing.assert_array_equal(found["y"], run_original(graph(layers, unsigned=True, opset=21), arrays())["y"])
    assert left == []


def choosing(kind: type[np.generic]) -> onnx.ModelProto:
    """A product in the branch of an If, which captures its weight, and one outside that reads the same."""
    kernel = np.random.default_rng(0).integers(-128, 128, (WIDTH, WIDTH))
    zero = 128 if kind is np.uint8 else 0
    product = [helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["inside"], name="in")]
    other = [helper.make_node("MatMulInteger", ["q", "own", "z", "ownz"], ["besides"], name="other")]
    branch = helper.make_graph(product, "then", [], [tensor("inside", [ROWS, WIDTH], TensorProto.INT32)])
    weights = [weight("own", kernel.T + zero, kind), weight("ownz", zero, kind)]
    ports = [tensor("besides", [ROWS, WIDTH], TensorProto.INT32)]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["flag"], to=TensorProto.BOOL),
        helper.make_node(
            "If", ["flag"], ["u"], then_branch=branch, else_branch=helper.make_graph(other, "else", [], ports, weights)
        ),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["v"]),
    ]
    outputs = [tensor(name, [ROWS, WIDTH], TensorProto.INT32) for name in ("u", "v")]
    given_weights = [weight("w", kernel + zero, kind), weight("wz", zero, kind)]
    return make_model(nodes, [tensor("x", [ROWS, WIDTH])], outputs, given_weights)


def test_what_a_branch_reads_is_turned_by_the_build(tmp_path: Path) -> None:
    for inputs in (arrays(), {"x": np.zeros((ROWS, WIDTH), np.float32)}):
        found, left = turned(passed(choosing(np.int8)), tmp_path, inputs)
        wanted = run_original(choosing(np.uint8), inputs)
        assert all((found[name] == wanted[name]).all() for name in ("u", "v"))
        assert left == []


def test_signed_activations_keep_their_signed_weights() -> None:
    """There are no kernels for unsigned weights beside them."""
    nodes = [helper.make_node("QLinearMatMul", [*"qsz", *"wsz", *"sz"], ["y"], name="product")]
    weights = [weight("w", np.full((WIDTH, WIDTH), 100), np.int8), weight("s", 0.1), weight("z", 0, np.int8)]
    ports = [[tensor(name, [ROWS, WIDTH], TensorProto.INT8)] for name in "qy"]
    model = make_model(nodes, *ports, weights, opset=21)
    inputs = {"q": np.full((ROWS, WIDTH), 100, np.int8)}
    assert run_original(passed(model), inputs)["y"].tolist() == run_original(model, inputs)["y"].tolist()


def test_in_a_build_the_copies_of_a_weight_are_one_file_and_each_stage_is_turned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [Layer("qdq conv"), Layer("QLinearConv"), Layer("qdq conv", channels=True), Layer("dynamic")]
    external = {"save_as_external_data": True, "location": "net.bin", "size_threshold": 16}
    onnx.save(graph(layers), tmp_path / "net.onnx", **external)
    build(tmp_path / "net.onnx", tmp_path / "dist", cut="2.rows")
    opened: list[Any] = []

    def remember(*args: Any, **options: Any) -> Any:
        opened.append(open_session(*args, **options))
        return opened[-1]

    monkeypatch.setattr("ruvrun.executors.onnxruntime.open_session", remember)
    found = open_local(tmp_path / "dist" / "manifest.toml").run(arrays())
    np.testing.assert_array_equal(found["y"], run_original(graph(layers, unsigned=True), arrays())["y"])
    assert [asked(session) for session in opened] == [True, True]
    kernels = {path.name for path in (tmp_path / "dist").glob("bundles/*/weights/*.bin")}
    assert len(kernels) == 1


def test_a_graph_of_an_earlier_build_is_loaded_as_it_was(tmp_path: Path) -> None:
    model = graph([Layer("dynamic"), Layer("dynamic", 1)])
    onnx.save(model, tmp_path / "old.onnx")
    session = open_session(tmp_path / "old.onnx", threads=1)
    assert not asked(session)
    (found,) = session.run(["y"], arrays())
    np.testing.assert_array_equal(found, run_original(model, arrays())["y"])
    onnx.save(passed(model), tmp_path / "new.onnx")
    assert asked(open_session(tmp_path / "new.onnx", threads=1))
