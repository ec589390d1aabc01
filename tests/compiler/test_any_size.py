"""A build whose model is larger than the memory: the same bits part by part, and no matrix whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvcompile import parts, passes
from ruvcompile.load import load
from ruvcompile.lower.weights import WeightStore, can_link
from ruvcompile.matrices import FloatTensor, row_blocks
from ruvcompile.measure import decoder as measuring
from ruvcompile.measure.terms import Terms
from ruvcompile.parts import Parts, run_parts
from ruvcompile.passes.levels import quantise_rows
from ruvcompile.passes.pieces import pieces, program_units, unit_keys
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from ruvcompile.progress import Silent
from ruvcompile.verify.floats import float_groups, run_floats
from ruvcompile.whole import run_whole
from tests.compiler.builds import build, check_whole
from tests.decoders import write_stages
from tests.models import write_tiny_gguf
from tests.quantised import quantised

LAYERS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("any-size") / "tiny.gguf", quant="F16", layers=LAYERS, tied=False)


@pytest.fixture(scope="module")
def source(model) -> Program:
    return passes.run(load(str(model)))


def matrix(rows: int, columns: int, *, transposed: bool, limit: int) -> tuple[FloatTensor, np.ndarray]:
    """A matrix that refuses to be read whole, and to hand out more than ``limit`` rows; and what is in it."""
    array = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)

    def read() -> np.ndarray:
        raise AssertionError("the whole matrix was read")

    def some(start: int, stop: int) -> np.ndarray:
        assert 0 <= start < stop <= rows
        assert stop - start <= limit
        return array[start:stop]

    shape = (columns, rows) if transposed else (rows, columns)
    return FloatTensor(read, shape, name="w", metadata={}, rows=some, transposed=transposed), array


@given(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.integers(1, 7))
def test_a_matrix_is_read_some_rows_at_a_time(rows: int, columns: int, transposed: bool, limit: int) -> None:
    tensor, array = matrix(rows, columns, transposed=transposed, limit=limit)
    found = list(row_blocks(tensor, transposed=transposed, block=4 * columns * limit))
    np.testing.assert_array_equal(np.concatenate(found), array)


@given(st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_any_other_matrix_is_read_whole_and_handed_out_in_parts(rows: int, columns: int, transposed: bool) -> None:
    array = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    tensor = ir.Tensor(array.T if transposed else array)
    found = list(row_blocks(tensor, transposed=transposed, block=8 * columns))
    assert all(len(block) <= 2 for block in found)
    np.testing.assert_array_equal(np.concatenate(found), array)


def test_the_other_orientation_is_not_mistaken_for_rows() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = FloatTensor(lambda: array, (2, 3), name="w", metadata={}, rows=lambda a, b: array[a:b])
    np.testing.assert_array_equal(np.concatenate(list(row_blocks(tensor, transposed=True))), array.T)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=4), st.sampled_from([32, 64, 4096]), st.sampled_from([4, 8]))
def test_quantised_in_parts_is_quantised_whole(sizes: list[int], columns: int, bits: int) -> None:
    """Wherever the parts end, and whatever of them is worked on at once."""
    weight = np.random.default_rng(columns).standard_normal((sum(sizes), columns)).astype(np.float32)
    whole = quantised(weight, bits)
    made = quantise_rows(np.split(weight, np.cumsum(sizes)[:-1]), weight.shape, bits)
    row_by_row = quantise_rows(list(weight[:, None]), weight.shape, bits)
    for found in (made, row_by_row):
        np.testing.assert_array_equal(found.values, whole.values)
        np.testing.assert_array_equal(found.scales, whole.scales)
        assert (found.zeros is None) == (whole.zeros is None) == (bits == 8)
        if found.zeros is not None and whole.zeros is not None:
            np.testing.assert_array_equal(found.zeros, whole.zeros)


def test_no_large_matrix_of_a_file_is_read_whole_by_a_build(model, tmp_path, monkeypatch) -> None:
    """Not to quantise it, not for the loss: every one of this model's is read by rows."""
    whole: Counter[str] = Counter()
    original = FloatTensor.numpy

    def numpy(self: FloatTensor) -> np.ndarray:
        whole[str(self.name)] += len(self.shape) == 2 and self.rows is not None
        return original(self)

    monkeypatch.setattr(FloatTensor, "numpy", numpy)
    monkeypatch.setattr("ruvcompile.verify.floats.LARGE", 1024)
    build(model, tmp_path / "dist", quant="int4")
    assert whole
    assert not +whole


def test_the_float_program_is_what_onnx_runtime_computes(source, monkeypatch) -> None:
    monkeypatch.setattr("ruvcompile.verify.floats.LARGE", 1024)
    decoder = source.decoder
    ids = np.array([5, 290, 5, 7, 113, 64, 2])
    groups = float_groups(source)
    products = [group[0].name for group in groups if group[0].op_type == "MatMul"]
    assert len(products) == 7 * LAYERS + 1
    assert [node for group in groups for node in group] == list(source.model.graph)
    empty = np.zeros((1, decoder.kv_heads, 0, decoder.head_size), np.float32)
    given_ = {str(value.name): empty for value in source.model.graph.inputs}
    given_ |= {"input_ids": ids[None], "position_ids": np.arange(len(ids))[None]}
    wanted = run_whole(source.model, given_)["logits"][0]
    steps: list[int] = []
    found = run_floats(source, groups, ids, 1, lambda: steps.append(1))
    assert len(steps) == len(groups)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_part_by_part_is_the_same_build(model, tmp_path, monkeypatch) -> None:
    """Golden checks, their bounds and the loss, bit by bit: the manifests have one id."""
    monkeypatch.setattr(parts, "PART_BYTES", 1)
    run: list[str] = []
    original = parts.write_stage

    def write(program, piece, directory, store, **options):
        run.append(piece.nodes[0])
        return original(program, piece, directory, store, **options)

    monkeypatch.setattr(parts, "write_stage", write)
    made = build(model, tmp_path / "parts", quant="int4")
    units = 2 * LAYERS + 2
    assert len(run) == 2 * units, "every unit alone: for the golden checks, and for the loss"
    monkeypatch.undo()
    whole = build(model, tmp_path / "whole", quant="int4", costs=(str(tmp_path / "parts" / "costs.toml"),))
    assert made["id"] == whole["id"]
    assert made["loss"] == whole["loss"]
    check_whole(tmp_path / "parts")
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )


def test_a_part_takes_no_second_copy_and_is_gone_behind_the_next(source, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 1)
    program = quantise(source, "int4")
    units = program_units(program)
    store = WeightStore(tmp_path / "store")
    stages = write_stages(program, (4,), tmp_path, store)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    divided = Parts(program, units, pieces(program, units, (4,)), stages, store, scratch)
    seen = []
    for directory, spec in divided.of(1):
        assert list(scratch.iterdir()) == [directory]
        linked = [(directory / file.path).stat().st_nlink for file in spec.files if file.path.startswith("weights/")]
        if can_link(tmp_path):
            assert all(count >= 3 for count in linked), "in the store, in the stage, and here"
        seen.append(directory)
    assert len(seen) == len(units) - 4
    assert list(scratch.iterdir()) == []
    ids = {"input_ids": np.arange(5)}
    together = run_parts(stages, ids, rows=5, threads=1)["logits"]
    np.testing.assert_array_equal(run_parts(divided.all(), ids, rows=5, threads=1)["logits"], together)


def test_of_a_large_decoder_one_layer_of_every_kind_is_measured(source, tmp_path, monkeypatch) -> None:
    program = quantise(source, "int4")
    units = program_units(program)
    keys = unit_keys(program, units)
    assert measuring.sampled(program, units, keys)[0] is program, "a small one is run as it is"
    monkeypatch.setattr(measuring, "SAMPLE_BYTES", 1)
    _, parted, _ = measuring.sampled(program, units, keys)
    assert [unit.nodes[0] for unit in parted] == [units[number].nodes[0] for number in (0, 1, 2, len(units) - 1)]
    table = measuring.measure_decoder(
        program,
        units,
        keys,
        Terms("host", "onnxruntime", 1, 1, WeightStore(tmp_path / "store"), tmp_path, Silent()),
    )
    assert {row.key for row in table.unit} == set(keys)
    assert all(row.ms > 0 for row in table.unit)
    (head,) = [row for row in table.unit if row.key == keys[-1]]
    assert "MatMulNBits" in {node.op for node in head.node}
    written = {path.name for path in (tmp_path / "store").iterdir()}
    assert len(written) < len(units), "what is not run is not quantised either"
    assert {path.name for path in tmp_path.iterdir()} == {"store"}, "nothing else stays"


def test_as_many_more_layers_as_fit_are_measured(source, monkeypatch) -> None:
    program = quantise(source, "int4")
    units = program_units(program)
    keys = unit_keys(program, units)
    room = sum(parts.weight_bytes(program, [unit]) for unit in [*units[:5], units[-1]])
    monkeypatch.setattr(measuring, "SAMPLE_BYTES", room)
    _, parted, _ = measuring.sampled(program, units, keys)
    assert len(parted) == 6


def test_groups_are_written_no_more_at_once_than_there_is_room(tmp_path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    held = {"now": 0, "most": 0, "alone": True}
    store = WeightStore(tmp_path / "store")
    store._room.size = 100_000

    def read(size: int) -> ir.TensorProtocol:
        held["now"] += size
        held["most"] = max(held["most"], held["now"])
        held["alone"] &= size <= 100_000 or held["now"] == size
        array = np.random.default_rng(size).integers(0, 255, size, np.uint8)
        held["now"] -= size
        return ir.Tensor(array)

    def value(number: int, size: int) -> ir.Value:
        made = ir.Value(name=f"w{number}")
        made.const_value = ir.LazyTensor(
            lambda: read(size), dtype=ir.DataType.UINT8, shape=ir.Shape((size,)), name=made.name
        )
        return made

    sizes = [40_000 + number for number in range(6)] + [150_000]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda pair: store.put([value(*pair)]), enumerate(sizes)))
    assert [next(iter(each.values())).length for each in made] == sizes
    assert held["most"] <= 150_000
    assert held["alone"]


def test_a_program_without_decoder_is_not_divided(source, tmp_path) -> None:
    program = replace(source, decoder=None)
    stage = (tmp_path, write_stages(quantise(source, "int4"), (), tmp_path, WeightStore(tmp_path / "store"))[0][1])
    divided = Parts(program, (), (), [stage], WeightStore(tmp_path / "other"), tmp_path)
    assert list(divided.of(0)) == [stage]
