"""The reference executor computes what the weights mean: as both back ends do, but for their last digits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from ruvcompile.errors import InputError
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.program import Program
from ruvrun.executors import load_decoder
from ruvrun.executors.reference.operators import Gelu, MatMul, MatMulNBits, widened
from tests.decoders import family_program
from tests.graphs import make_model, program_of, tensor
from tests.logits import answer
from tests.quantised import dequantised, quantised

IDS = np.random.default_rng(7).integers(3, 300, 60)
SIZES = (40, *[1] * 20)
RANDOM = np.random.default_rng(1)


def logits(
    program: Program, backend: str, folder: Path, *, cuts: Sequence[int] = (), sizes: Sequence[int] = SIZES
) -> np.ndarray:
    """Logits of ``IDS`` in chunks of these sizes, in a slot of its own."""
    executors, store = [], WeightStore(folder / "store")
    for number, piece in enumerate(pieces(program, program_units(program), cuts)):
        path = folder / f"{backend}-{len(cuts)}-{number}"
        spec = write_stage(program, piece, path, store, backend=backend, target="host")
        executors.append(load_decoder(path, spec, context=len(IDS), slots=2, threads=1))
    return answer(executors, sizes, ids=np.stack([IDS, IDS]))


# Every weight and every rule of attention that lowering tells apart: windows, caps, biases, norms, no rotary.
@pytest.mark.parametrize(
    ("name", "quant"),
    [(name, "int4") for name in ("mistral", "qwen2", "phi3-long", "gemma2", "gemma3", "smollm3")]
    + [("llama", "int8"), ("llama", "none"), ("gemma2", "none")],
)
def test_a_family_computes_what_it_does_in_float32(name, quant, tmp_path) -> None:
    program = family_program(name, quant, accuracy=1)
    theirs = logits(program, "onnxruntime", tmp_path)
    ours = logits(program, "reference", tmp_path)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_neither_chunks_nor_cuts_change_it(tmp_path) -> None:
    program = family_program("llama", "int4")
    whole = logits(program, "reference", tmp_path)
    for cuts, sizes in (((3,), SIZES), ((2, 5), (7, 53)), ((), (60,))):
        assert np.abs(logits(program, "reference", tmp_path, cuts=cuts, sizes=sizes) - whole).max() < 1e-6


def test_activations_are_never_quantised(tmp_path) -> None:
    one, other = (family_program("llama", "int4", accuracy=level) for level in (1, 4))
    exact = logits(one, "reference", tmp_path / "1")
    assert np.array_equal(logits(other, "reference", tmp_path / "4"), exact)
    assert np.abs(logits(other, "onnxruntime", tmp_path / "4") - exact).max() > 1e-3 * np.abs(exact).max()


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_the_numbers_that_they_stand_for(bits) -> None:
    matrix = RANDOM.standard_normal((6, 96)).astype(np.float32)
    made = quantised(matrix, bits)
    exact = widened(made.values, made.scales, made.zeros, bits, 32)
    assert exact.dtype == np.float64
    assert np.array_equal(exact.astype(np.float32), dequantised(made, bits))
    floats = (
        None if made.zeros is None else np.stack([made.zeros & 15, made.zeros >> 4], -1).reshape(6, -1)[:, :3] * 1.0
    )
    assert np.array_equal(widened(made.values, made.scales, floats, bits, 32), exact)


def test_a_product_is_the_same_in_parts(monkeypatch) -> None:
    matrix = RANDOM.standard_normal((40, 64)).astype(np.float32)
    made, x = quantised(matrix, 4), RANDOM.standard_normal((1, 3, 64))
    exact = x @ widened(made.values, made.scales, made.zeros, 4, 32).T
    monkeypatch.setattr("ruvrun.executors.reference.operators.AT_ONCE", 150)
    sizes = {"N": 40, "K": 64, "bits": 4, "block_size": 32}
    (found,) = MatMulNBits._run(None, x, made.values.reshape(40, 2, 16), made.scales.reshape(-1), made.zeros, **sizes)
    assert np.abs(found - exact).max() < 1e-12
    (biased,) = MatMulNBits._run(None, x, made.values, made.scales, made.zeros, None, np.ones(40), **sizes)
    assert np.array_equal(biased, found + 1)
    (plain,) = MatMul._run(None, x, matrix.T)
    assert np.abs(plain - x @ matrix.T.astype(np.float64)).max() < 1e-12


def test_gelu_and_what_stands_for_it() -> None:
    x = np.array([-2.0, 0.0, 1.0])
    (exact,) = Gelu._run(None, x, "none")
    (near,) = Gelu._run(None, x, "tanh")
    assert exact == pytest.approx([-0.04550026, 0.0, 0.84134475], abs=1e-8)
    assert 1e-5 < np.abs(near - exact).max() < 1e-3


def test_a_graph_has_no_reference(tmp_path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"], "relu")
    program = program_of(make_model([relu], [tensor("x", [1])], [tensor("y", [1])], []))
    (piece,) = pieces(program, program_units(program), ())
    with pytest.raises(InputError) as error:
        write_stage(program, piece, tmp_path, WeightStore(tmp_path / "w"), backend="reference", target="host")
    assert error.value.ref == "reference-unsupported"
