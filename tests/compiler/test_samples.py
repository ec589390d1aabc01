from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.samples import sample
from ruvcompile.whole import observe, run_whole
from ruvrun.errors import FitError, InputError, UsageError
from tests.graphs import PP_OCR, SILERO_VAD, make_model, model_path, program_of, tensor, weight


def model_of(nodes, inputs, outputs, weights=()):
    return program_of(make_model(nodes, inputs, outputs, weights)).model


def identity(*shape, dtype=TensorProto.FLOAT):
    return model_of(
        [helper.make_node("Identity", ["x"], ["y"])], [tensor("x", shape, dtype)], [tensor("y", shape, dtype)]
    )


def lookup():
    """A table of seven rows: an id above six does not run."""
    return model_of(
        [helper.make_node("Gather", ["table", "input_ids"], ["y"])],
        [tensor("input_ids", ["batch", "seq"], TensorProto.INT64)],
        [tensor("y", ["batch", "seq", 3])],
        [weight("table", np.ones((7, 3)))],
    )


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        (["n", 3, "h", "w"], (1, 3, 224, 224)),
        (["n", "h", "w", 3], (1, 224, 224, 3)),
        (["batch", "seq", 16], (1, 16, 16)),
        ([4, 5], (4, 5)),
        ([], ()),
    ],
)
def test_open_dimensions_are_filled_by_convention(shape, wanted) -> None:
    found = sample(identity(*shape))
    assert found.arrays["x"].shape == wanted
    assert found.choices[0].startswith(f"input x: float32 {'x'.join(map(str, wanted)) or 'scalar'}, ")
    assert found.choices[0].endswith("(default)")


def test_a_size_that_does_not_run_is_passed_over() -> None:
    """Only 32 runs: the reshape wants so many."""
    model = model_of(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [tensor("x", [1, "n"])],
        [tensor("y", [4, 8])],
        [weight("shape", [4, 8], np.int64)],
    )
    assert sample(model).arrays["x"].shape == (1, 32)


def test_the_same_every_time() -> None:
    first, second = sample(identity(2, 3)), sample(identity(2, 3))
    np.testing.assert_array_equal(first.arrays["x"], second.arrays["x"])
    assert first.choices == second.choices


def test_ids_stay_below_the_table_they_look_up() -> None:
    found = sample(lookup())
    ids = found.arrays["input_ids"]
    assert ids.dtype == np.int64
    assert ids.max() == 6
    assert found.choices == ("input input_ids: int64 1x16, random in 0..6 (default)",)


def test_shape_decides_and_binds_the_name_of_a_dimension() -> None:
    model = model_of(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [tensor("a", ["n", 3]), tensor("b", ["n", 3])],
        [tensor("y", ["n", 3])],
    )
    found = sample(model, shapes={"a": (5, 3)})
    assert found.arrays["b"].shape == (5, 3)
    assert found.choices[0] == "input a: float32 5x3 as given, random, normal (default)"


@pytest.mark.parametrize(
    ("shapes", "ref"),
    [
        ({"y": (1,)}, "shape-unknown"),
        ({"x": (2,)}, "shape-wrong"),
        ({"x": (2, 4)}, "shape-wrong"),
        ({"x": (0, 3)}, "shape-empty"),
    ],
)
def test_a_shape_that_cannot_be_is_wrong_usage(shapes, ref) -> None:
    with pytest.raises(UsageError) as caught:
        sample(identity("n", 3), shapes=shapes)
    assert caught.value.ref == ref


def test_state_may_begin_as_nothing() -> None:
    nodes = [helper.make_node("Concat", ["past_keys", "x"], ["present_keys"], axis=1)]
    model = model_of(
        nodes, [tensor("past_keys", [1, "past", 4]), tensor("x", [1, "n", 4])], [tensor("present_keys", [1, "all", 4])]
    )
    assert sample(model, shapes={"past_keys": (1, 0, 4)}).arrays["past_keys"].shape == (1, 0, 4)


@pytest.mark.parametrize(("shape", "shapes"), [((2**40, 8), {}), ((2**62, 8), {}), (("n", 3), {"x": (10**20, 3)})])
def test_an_input_larger_than_memory_is_told_before_it_is_made(shape, shapes) -> None:
    with pytest.raises(FitError) as caught:
        sample(identity(*shape), shapes=shapes)
    assert caught.value.ref == "sample-too-large"


def test_inputs_are_taken_as_they_are(tmp_path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "in.npz", x=x)
    found = sample(identity("n", 3), inputs=tmp_path / "in.npz")
    np.testing.assert_array_equal(found.arrays["x"], x)
    assert found.choices == (f"input x: float32 2x3, from {tmp_path / 'in.npz'}",)


def test_integers_may_be_of_another_width_but_lose_nothing(tmp_path) -> None:
    np.savez(tmp_path / "in.npz", x=np.array([1, 2, 3], np.int32))
    assert sample(identity(3, dtype=TensorProto.INT64), inputs=tmp_path / "in.npz").arrays["x"].dtype == np.int64
    np.savez(tmp_path / "in.npz", x=np.array([1, 2, 300]))
    with pytest.raises(InputError) as caught:
        sample(identity(3, dtype=TensorProto.UINT8), inputs=tmp_path / "in.npz")
    assert caught.value.ref == "input-type-wrong"


@pytest.mark.parametrize(
    ("arrays", "ref"),
    [
        ({"z": np.ones((2, 3), np.float32)}, "input-unknown"),
        ({"x": np.ones((2, 4), np.float32)}, "input-shape-wrong"),
        ({"x": np.ones((2, 3), np.float64)}, "input-type-wrong"),
        ({"x": np.array([{}])}, "inputs-invalid"),
    ],
)
def test_inputs_that_do_not_fit(tmp_path, arrays, ref) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(InputError) as caught:
        sample(identity("n", 3), inputs=tmp_path / "in.npz")
    assert caught.value.ref == ref
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x03\x04broken"])
def test_a_file_that_is_no_archive(tmp_path, content) -> None:
    path = tmp_path / "in.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        sample(identity(2, 3), inputs=path)
    assert caught.value.ref == ("file-missing" if content is None else "inputs-invalid")


def test_when_nothing_runs_the_hint_is_to_give_inputs() -> None:
    """A hundred is added to every id, and the table has seven rows."""
    model = model_of(
        [helper.make_node("Add", ["x", "far"], ["i"]), helper.make_node("Gather", ["table", "i"], ["y"])],
        [tensor("x", [2], TensorProto.INT64)],
        [tensor("y", [2, 3])],
        [weight("far", [100], np.int64), weight("table", np.ones((7, 3)))],
    )
    with pytest.raises(InputError) as caught:
        sample(model)
    assert caught.value.ref == "no-sample-runs"
    assert "--inputs" in caught.value.hint
    assert "x: int64 2" in caught.value.context


def test_finite_results_are_preferred() -> None:
    """Log(x - 0.5) of zeros and of noughts among ones is no number; of ones it is."""
    model = model_of(
        [
            helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["f", "half"], ["d"]),
            helper.make_node("Log", ["d"], ["y"]),
        ],
        [tensor("x", [8], TensorProto.INT64)],
        [tensor("y", [8])],
        [weight("half", 0.5)],
    )
    assert sample(model).arrays["x"].tolist() == [1] * 8


def test_texts_are_chosen_like_anything_else() -> None:
    assert sample(identity(2, dtype=TensorProto.STRING)).arrays["x"].tolist() == ["1", "1"]


def sequences() -> ir.Model:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    inputs = [helper.make_value_info("s", kind), helper.make_value_info("o", optional)]
    nodes = [helper.make_node("SequenceLength", ["s"], ["y"])]
    return program_of(make_model(nodes, inputs, [tensor("y", [], TensorProto.INT64)])).model


def test_a_sequence_is_given_and_an_optional_may_be_left_out(tmp_path) -> None:
    np.savez(tmp_path / "in.npz", **{"s[0]": np.zeros(2, np.float32), "s[1]": np.ones(3, np.float32)})
    found = sample(sequences(), inputs=tmp_path / "in.npz")
    assert [each.shape for each in found.arrays["s"]] == [(2,), (3,)]
    assert found.arrays["o"] is None
    assert found.choices == (
        f"input s: a sequence of 2, from {tmp_path / 'in.npz'}",
        "input o: optional, left out (default)",
    )


@pytest.mark.parametrize(
    ("arrays", "ref"),
    [
        ({}, "input-needed"),
        ({"s": np.zeros(2, np.float32)}, "input-type-wrong"),
        ({"s[0]": np.zeros(2)}, "input-type-wrong"),
        ({"s[0]": np.zeros(2, np.float32), "s[2]": np.zeros(2, np.float32)}, "inputs-invalid"),
        ({"s[0]": np.zeros(2, np.float32), "o[0]": np.zeros(2, np.float32)}, "input-type-wrong"),
    ],
    ids=["missing", "an array", "another type", "a gap", "no sequence"],
)
def test_what_is_no_sequence(tmp_path, arrays, ref) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(InputError) as caught:
        sample(sequences(), inputs=tmp_path / "in.npz")
    assert caught.value.ref == ref


def test_observe_sees_every_value_of_a_run() -> None:
    model = lookup()
    assert observe(model, {"input_ids": np.array([[1, 2]])})["y"].shape == (1, 2, 3)


@pytest.mark.model
def test_real_models_get_inputs_that_mean_something() -> None:
    silero = sample(passes.run(load(str(model_path(SILERO_VAD)))).model)
    assert {name: array.shape for name, array in silero.arrays.items()} == {
        "input": (1, 576),
        "sr": (),
        "state": (2, 1, 128),
    }
    assert silero.arrays["sr"] == 16000
    program = passes.run(load(str(model_path(PP_OCR))))
    assert sample(program.model).arrays["x"].shape == (1, 3, 224, 224)
    asked = sample(program.model, shapes={"x": (1, 3, 64, 96)})
    assert run_whole(program.model, asked.arrays)["sigmoid_0.tmp_0"].shape == (1, 1, 64, 96)
