"""Quantised weights: their error, what the kernels make of them, and that a float is read only when it is written."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ruvcompile.load import load
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes import run as run_passes
from ruvcompile.passes.levels import BLOCK
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import BITS, Decoder, Program
from ruvcompile.whole import run_whole
from ruvrun.errors import InputError
from tests.decoders import tiny_program, write_stages
from tests.graphs import make_model, program_of, tensor, weight
from tests.models import write_tiny_gguf
from tests.quantised import dequantised, quantised

DECODER = Decoder("llama", 1, 64, 1, 1, 64, 10, 64, ())
KINDS = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "one-sided": lambda random, shape: random.random(shape) + 1,
    "negative": lambda random, shape: -random.random(shape) - 2,
    "outliers": lambda random, shape: random.standard_normal(shape) * np.where(random.random(shape) > 0.98, 40, 1),
    "tiny": lambda random, shape: random.standard_normal(shape) * 1e-6,
    "zero": lambda _, shape: np.zeros(shape),
    "few": lambda random, shape: random.integers(-1, 2, shape),
}


def linear(matrix: np.ndarray, bits: str = "32") -> Program:
    """``y = x @ matrix`` as if it were a decoder."""
    size, out = matrix.shape
    program = program_of(
        make_model(
            [helper.make_node("MatMul", ["x", "w"], ["y"], name="linear")],
            [tensor("x", ["rows", size])],
            [tensor("y", ["rows", out])],
            [weight("w", matrix)],
        )
    )
    program.model.graph.initializers["w"].metadata_props[BITS] = bits
    return replace(program, decoder=DECODER)


def embedding(table: np.ndarray) -> Program:
    """Rows of ``table`` as if it were a decoder."""
    program = program_of(
        make_model(
            [helper.make_node("Gather", ["w", "ids"], ["y"], name="embed")],
            [tensor("ids", ["n"], TensorProto.INT64)],
            [tensor("y", ["n", table.shape[1]])],
            [weight("w", table)],
        )
    )
    return replace(program, decoder=DECODER)


def stored(program: Program) -> dict[str, np.ndarray]:
    return {name: value.const_value.numpy() for name, value in program.model.graph.initializers.items()}


def nearest(blocks: np.ndarray) -> np.ndarray:
    """Plain round to nearest, four bits with a zero point: what a block must not be worse than."""
    low, high = np.minimum(blocks.min(1), 0), np.maximum(blocks.max(1), 0)
    step = np.where(high > low, (high - low) / 15, 1)[:, None]
    zero = np.rint(-low[:, None] / step)
    return (np.clip(np.rint(blocks / step) + zero, 0, 15) - zero) * step


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5))
def test_no_block_is_worse_than_rounded_to_nearest(kind: str, seed: int, rows: int, blocks: int) -> None:
    values = KINDS[kind](np.random.default_rng(seed), (rows, blocks * BLOCK)).astype(np.float32)
    found = dequantised(quantised(values, 4), 4)
    assert found.shape == values.shape
    truth = values.reshape(-1, BLOCK).astype(np.float64)
    error = ((found.reshape(-1, BLOCK) - truth) ** 2).sum(1)
    plain = ((nearest(truth) - truth) ** 2).sum(1)
    assert (error <= plain * 1.001 + 1e-6 * (truth**2).sum(1)).all()


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_eight_bits_are_off_by_half_a_level_at_most(kind: str, seed: int, blocks: int) -> None:
    values = KINDS[kind](np.random.default_rng(seed), (2, blocks * BLOCK)).astype(np.float32)
    found = quantised(values, 8)
    assert found.zeros is None
    half = np.repeat(found.scales, BLOCK, 1) / 2
    assert (np.abs(dequantised(found, 8) - values) <= half * 1.0001).all()


def test_normal_weights_lose_little() -> None:
    values = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    for bits, most in ((4, 0.08), (8, 0.006)):
        error = dequantised(quantised(values, bits), bits) - values
        assert np.sqrt((error**2).mean()) < most


def test_eight_bit_weights_of_a_file_are_kept_exactly(tmp_path) -> None:
    source = run_passes(load(str(write_tiny_gguf(tmp_path / "q8.gguf", quant="Q8_0", layers=1))))
    exact = {name: value.const_value.numpy() for name, value in source.model.graph.initializers.items()}
    found = stored(quantise(source, "auto"))
    for name, form in (("embed.weight", "rows"), ("layers.0.attn.k_proj.weight", "linear")):
        values = found[f"{name}.int8.{form}"]
        levels = values.reshape(values.shape[0], -1).astype(np.float32) - 128
        ours = levels * np.repeat(found[f"{name}.int8.{form}.scales"], BLOCK, 1)
        np.testing.assert_array_equal(ours, exact[name] if form == "rows" else exact[name].T)


@pytest.mark.parametrize("quant", ["int4", "int8"])
@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_the_matrix_kernel_reads_the_blocks_as_we_do(quant: str, blocks: int) -> None:
    """Row k of the identity picks row k of the weight; an odd number of blocks leaves half a byte of zero points."""
    bits = int(quant[3:])
    matrix = np.random.default_rng(blocks).standard_normal((blocks * BLOCK, 7)).astype(np.float32) + 0.5
    program = quantise(linear(matrix), quant, accuracy=1)
    found = run_whole(program.model, {"x": np.eye(blocks * BLOCK, dtype=np.float32)})["y"]
    np.testing.assert_allclose(found, dequantised(quantised(matrix.T, bits), bits).T, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("quant", ["int4", "int8"])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_gather_kernel_reads_the_blocks_as_we_do(quant: str, blocks: int) -> None:
    bits = int(quant[3:])
    table = np.random.default_rng(blocks).standard_normal((6, blocks * BLOCK)).astype(np.float32) - 0.5
    program = quantise(embedding(table), quant)
    ids = np.array([5, 0, 3, 3], np.int64)
    found = run_whole(program.model, {"ids": ids})["y"]
    wanted = dequantised(quantised(table, bits), bits)[ids]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("held", "quant", "wanted"),
    [
        *(("32", "auto", 4), ("16", "auto", 4), ("8", "auto", 8), ("6", "auto", 8), ("5", "auto", 8), ("4", "auto", 4)),
        *(("4", "int8", 8), ("8", "int4", 4)),
    ],
)
def test_bits_follow_the_file_or_the_flag(held: str, quant: str, wanted: int) -> None:
    program = quantise(linear(np.ones((BLOCK, 3), np.float32), held), quant)
    (node,) = program.model.graph
    assert (node.op_type, node.domain, node.attributes["bits"].as_int()) == ("MatMulNBits", "com.microsoft", wanted)
    assert len(node.inputs) == (4 if wanted == 4 else 3)


@pytest.mark.parametrize(
    ("stored_as", "embed", "layer"), [("Q4_1", 8, 4), ("Q8_0", 8, 8), ("F32", 4, 4)], ids=lambda value: str(value)
)
def test_auto_on_files(tmp_path, stored_as: str, embed: int, layer: int) -> None:
    source = run_passes(load(str(write_tiny_gguf(tmp_path / "m.gguf", quant=stored_as, layers=1))))
    program = quantise(source, "auto")
    nodes = {node.name: node for node in program.model.graph}
    assert nodes["/embed"].attributes["bits"].as_int() == embed
    assert nodes["/head"].attributes["bits"].as_int() == embed
    assert nodes["/layers.0/mlp/down_proj"].attributes["bits"].as_int() == layer
    assert not any(name.endswith("proj.weight") for name in program.model.graph.initializers)


def test_none_and_other_graphs_are_left_alone(tmp_path) -> None:
    program = tiny_program(tmp_path, "none", layers=1)
    assert quantise(program, "none") is program
    graph = replace(linear(np.ones((BLOCK, 3), np.float32)), decoder=None)
    assert quantise(graph, "int4") is graph


def test_the_program_that_came_in_is_not_changed() -> None:
    program = linear(np.ones((BLOCK, 3), np.float32))
    quantise(program, "int4")
    assert [node.op_type for node in program.model.graph] == ["MatMul"]
    assert set(program.model.graph.initializers) == {"w"}


def test_sizes_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(InputError) as error:
        quantise(linear(np.ones((48, 4), np.float32)), "int4")
    assert error.value.ref == "quant-block"
    assert "48" in error.value.message
    assert "--quant none" in (error.value.hint or "")


def test_unknown_quantisation_is_refused() -> None:
    with pytest.raises(InputError) as error:
        quantise(linear(np.ones((BLOCK, 4), np.float32)), "int2")
    assert error.value.ref == "quant-not-made"


def test_a_float_is_read_once_when_it_is_written_and_not_kept() -> None:
    program = linear(np.ones((BLOCK, 4), np.float32))
    seen: list[weakref.ref[np.ndarray]] = []

    def read() -> ir.Tensor:
        array = np.random.default_rng(0).standard_normal((BLOCK, 4)).astype(np.float32)
        seen.append(weakref.ref(array))
        return ir.Tensor(array)

    value = program.model.graph.initializers["w"]
    value.const_value = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape((BLOCK, 4)), name="w")
    made = quantise(program, "int4")
    assert not seen
    for each in made.model.graph.initializers.values():
        each.const_value.tobytes()
    gc.collect()
    assert len(seen) == 1
    assert seen[0]() is None


def test_an_untied_head_has_weights_of_its_own(tmp_path) -> None:
    program = tiny_program(tmp_path, layers=1, tied=False)
    held = stored(program)
    assert held["embed.weight.int8.rows"].tobytes() != held["head.weight.int8.linear"].tobytes()


def test_a_tied_head_is_the_embedding_byte_by_byte(tmp_path) -> None:
    """One file holds both in a stage that has both ends."""
    program = tiny_program(tmp_path, layers=1)
    held = stored(program)
    for suffix in ("", ".scales"):
        assert held[f"embed.weight.int8.rows{suffix}"].tobytes() == held[f"embed.weight.int8.linear{suffix}"].tobytes()
    ((directory, spec),) = write_stages(program, (), tmp_path / "whole", WeightStore(tmp_path / "store"))
    graph = onnx.load(directory / spec.model, load_external_data=False).graph
    places = {each.name: {entry.key: entry.value for entry in each.external_data} for each in graph.initializer}
    nodes = {node.name: node for node in graph.node}
    embed, head = nodes["/embed"].input[0], nodes["/head"].input[1]
    assert places[embed]["location"] == places[head]["location"]
    assert places[embed]["offset"] == places[head]["offset"]


def test_the_same_file_gives_the_same_bytes(tmp_path) -> None:
    source = run_passes(load(str(write_tiny_gguf(tmp_path / "m.gguf"))))
    one, two = stored(quantise(source, "int4")), stored(quantise(source, "int4"))
    assert one.keys() == two.keys()
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)
