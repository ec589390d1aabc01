"""A decoder with few of its layers: everything that its layers cost is in it, and it runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ruvcompile.load import load
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.passes.reduced import kept, layer_of, reduced
from ruvcompile.program import Program
from ruvcompile.whole import run_whole
from ruvrun.executors import Array, Span
from tests.checkpoints import CONFIGS
from tests.decoders import family_program, open_decoders, tiny_program, write_stages

EXPORTS = Path(__file__).parents[1] / "data" / "onnx_decoders"


def keys_of(program: Program) -> tuple[str, ...]:
    return unit_keys(program, program_units(program))


def reduce(program: Program, most: int = 0) -> Program:
    units = program_units(program)
    return reduced(program, units, unit_keys(program, units), most)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_kind_of_unit_of_every_family_stays(name, tmp_path) -> None:
    program = family_program(name)
    small = reduce(program)
    assert set(keys_of(small)) == set(keys_of(program))
    if name == "phi3-partial":  # its heads are of a size that the back end does not take
        return
    stages = write_stages(small, [], tmp_path, WeightStore(tmp_path / "store"))
    (executor,) = open_decoders(stages, context=8, slots=1)
    logits = executor.step([Span(0, 0, 4, 1)], {"input_ids": np.arange(4)})["logits"]
    assert np.isfinite(logits).all()


def test_layers_of_one_kind_are_one_and_the_program_is_not_changed(tmp_path) -> None:
    program = tiny_program(tmp_path, layers=5)
    before = keys_of(program)
    small = reduce(program)
    assert small.decoder is not None
    assert small.decoder.layers == 1
    assert len(keys_of(small)) == 4
    assert [value.name for value in small.model.graph.outputs] == ["logits", "present_key.0", "present_value.0"]
    assert "past_key.1" not in [value.name for value in small.model.graph.inputs]
    assert not any(name.startswith("layers.1.") for name in small.model.graph.initializers)
    assert keys_of(program) == before
    assert program.decoder is not None
    assert program.decoder.layers == 5


def test_more_layers_stay_where_there_is_room(tmp_path) -> None:
    program = tiny_program(tmp_path, layers=5)
    units = program_units(program)
    keys = unit_keys(program, units)
    values = program.model.graph.initializers

    def size(numbers: range) -> int:
        names = [name for number in numbers for name in set(units[number].weights)]
        return sum(value.const_value.nbytes for name in names if (value := values[name]).const_value is not None)

    layer, ends = size(range(1, 3)), size(range(1)) + size(range(11, 12))
    assert kept(program, units, keys, 0) == [0]
    assert kept(program, units, keys, ends + 2 * layer) == [0, 1]
    assert kept(program, units, keys, ends + 2 * layer - 1) == [0]
    assert kept(program, units, keys, 1 << 40) == [0, 1, 2, 3, 4]
    assert reduced(program, units, keys, 1 << 40) is program


def test_what_is_left_computes_what_the_model_does_without_the_others() -> None:
    """Layers that add nothing are no layers."""
    program = family_program("llama", num_hidden_layers=4)
    small = reduce(program)
    for name, value in program.model.graph.initializers.items():
        if re.match(r"layers\.[123]\.(attn\.o_proj|mlp\.down_proj)", name) and value.const_value is not None:
            value.const_value = ir.tensor(np.zeros_like(value.const_value.numpy()), name=name)
    tokens = np.array([[3, 1, 4, 1, 5]])
    found, wanted = (_logits(each, tokens) for each in (small, program))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert np.abs(wanted).max() > 0


def _logits(program: Program, tokens: Array) -> Array:
    arrays = {"input_ids": tokens, "position_ids": np.arange(tokens.shape[1])[None]}
    for value in program.model.graph.inputs:
        if value.name not in arrays:
            assert value.shape is not None
            arrays[str(value.name)] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    return run_whole(program.model, arrays)["logits"]


def test_an_export_that_is_run_as_it_is() -> None:
    program = load(str(EXPORTS / "optimum-gpt_neox" / "model.onnx"))
    assert program.decoder is not None
    assert program.decoder.exported
    small = reduce(program)
    assert set(keys_of(small)) == set(keys_of(program))


def test_which_layer_a_node_is_of() -> None:
    assert [layer_of(name) for name in ("/embed", "/layers.0/attn/q_proj", "/layers.12/mlp_norm", "/head")] == [
        None, 0, 12, None,
    ]  # fmt: skip
