"""The families: what they compute, and which tensors they take for theirs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ruvcompile.errors import InputError
from ruvcompile.load.checkpoint import build_decoder
from ruvcompile.load.families import family_of
from ruvcompile.load.stored import Checkpoint
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import program_units
from ruvcompile.program import Program
from ruvcompile.whole import open_session, run
from ruvrun.executors import Span
from tests import hugging_face
from tests.checkpoints import CONFIGS, random_tensors
from tests.compiler.families import WINDOWS
from tests.decoders import family_checkpoint, family_program, open_decoders, write_stages

TOKENS = np.random.default_rng(5).integers(3, 300, 44)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in CONFIGS if name not in ("phi3-partial", "qwen2", "llama-yarn")},
    "llama-yarn": ("llama-yarn", {"rope_theta": 500.0}),
    "phi3-partial": ("phi3", {"hidden_size": 128, "partial_rotary_factor": 0.5}),
    "qwen2": ("qwen2", WINDOWS),
    "qwen3-windows": ("qwen3", WINDOWS),
}


def weights(checkpoint: Checkpoint) -> dict[str, Any]:
    family = family_of(checkpoint)
    return family.weights(checkpoint, family.describe(checkpoint))


def canonical(program: Program, ids: np.ndarray) -> np.ndarray:
    decoder = program.decoder
    assert decoder is not None
    empty = np.zeros((1, decoder.kv_heads, 0, decoder.head_size), np.float32)
    state = {f"past_{half}.{layer}": empty for half in ("key", "value") for layer in range(decoder.layers)}
    tokens = {"input_ids": ids[None], "position_ids": np.arange(len(ids))[None]}
    logits: np.ndarray = run(open_session(program.model, threads=1), tokens | state)["logits"][0]
    return logits


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_model(case: str, tmp_path: Path) -> None:
    """A prompt longer than any window: the canonical graph as it is, and two stages in chunks and single tokens."""
    name, keys = CASES[case]
    config = {**CONFIGS[name], **keys}
    wanted = hugging_face.logits(
        config, {n: t.read() for n, t in family_checkpoint(name, **keys).tensors.items()}, TOKENS
    )
    program = family_program(name, **keys)
    close = {"rtol": 0, "atol": 2e-4 * np.abs(wanted).max()}
    np.testing.assert_allclose(canonical(program, TOKENS), wanted, **close)
    cut = len(program_units(program)) // 2
    stages = write_stages(program, (cut,), tmp_path, WeightStore(tmp_path / "store"))
    executors, found, at = open_decoders(stages, context=len(TOKENS), slots=2), [], 0
    for size in (7, 23, *[1] * 8, 6):
        tensors = {"input_ids": TOKENS[at : at + size]}
        for executor in executors:
            tensors = executor.step([Span(1, at, size, size)], tensors)
        found.append(tensors["logits"].copy())
        at += size
    np.testing.assert_allclose(np.concatenate(found), wanted, **close)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("quant", ["int4", "int8"])
def test_quantised_stages_compute_what_the_quantised_program_says(case: str, quant: str, tmp_path: Path) -> None:
    name, keys = CASES[case]
    program = family_program(name, quant, accuracy=1, **keys)
    (stage,) = write_stages(program, (), tmp_path, WeightStore(tmp_path / "store"))
    (executor,) = open_decoders([stage], context=len(TOKENS), slots=1)
    found = executor.step([Span(0, 0, len(TOKENS), len(TOKENS))], {"input_ids": TOKENS})["logits"]
    wanted = canonical(program, TOKENS)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=4e-4 * np.abs(wanted).max())
    kinds = [node.op_type for node in onnx.load(stage[0] / stage[1].model, load_external_data=False).graph.node]
    layers = program.decoder.layers if program.decoder else 0
    assert kinds.count("MatMulNBits") == 4 * layers + 1, "stacked q/k/v, o, stacked gate/up, down; the head"
    assert kinds.count("GroupQueryAttention") == layers
    assert not {"Attention", "RotaryEmbedding", "Sigmoid"} & set(kinds)
    assert kinds.count("Add") == 1, "the last of the residual; biases are inside products"


def test_a_part_of_a_head_that_the_kernel_cannot_rotate_is_refused(tmp_path: Path) -> None:
    program = family_program("phi3-partial")
    with pytest.raises(InputError, match="12 channels") as error:
        write_stages(program, (), tmp_path, WeightStore(tmp_path / "store"))
    assert error.value.ref == "rotary-size"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_graph_is_standard_onnx(name: str) -> None:
    model = family_program(name).model
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    windows = any("left_window_size" in node.attributes for node in model.graph)
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 25 if windows else 23}
    for node in model.graph:
        assert node.outputs[0].name == ("logits" if node is model.graph.outputs[0].producer() else str(node.name)[1:])
        assert all(value is None or (value.shape is not None and value.dtype is not None) for value in node.outputs)


@pytest.mark.parametrize("name", ["llama", "phi3", "gemma3"])
def test_a_tensor_that_is_missing_is_named(name: str) -> None:
    checkpoint = family_checkpoint(name)
    for absent in checkpoint.tensors:
        if absent.startswith("model.layers.1.") or absent == "model.norm.weight":
            tensors = {key: value for key, value in checkpoint.tensors.items() if key != absent}
            with pytest.raises(InputError, match=re.escape(absent)) as error:
                weights(replace(checkpoint, tensors=tensors))
            assert error.value.ref == "tensor-missing"


@pytest.mark.parametrize(
    "extra",
    [
        "model.layers.1.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.3.mlp.up_proj.weight",
    ],
)
def test_a_tensor_that_nothing_accounts_for_is_refused(extra: str) -> None:
    """A bias that the configuration does not speak of, norms of another family, a layer too many."""
    checkpoint = family_checkpoint("llama")
    tensors = {**checkpoint.tensors, extra: checkpoint.tensors["model.norm.weight"]}
    with pytest.raises(InputError) as error:
        weights(replace(checkpoint, tensors=tensors))
    assert extra in " ".join(error.value.context)


def test_tables_of_old_converters_are_no_weights() -> None:
    checkpoint = family_checkpoint("llama")
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": checkpoint.tensors["model.norm.weight"]}
    assert weights(checkpoint).keys() == weights(replace(checkpoint, tensors={**checkpoint.tensors, **extra})).keys()


def test_a_head_that_is_missing_is_told_what_may_be_meant() -> None:
    checkpoint = replace(family_checkpoint("llama"), config={**CONFIGS["llama"], "tie_word_embeddings": False})
    with pytest.raises(InputError, match=re.escape("lm_head.weight")) as error:
        weights(checkpoint)
    assert "tie_word_embeddings" in str(error.value.hint)
    assert "huggingface" in str(error.value.hint)


def test_shapes_are_told_as_they_lie_in_the_file() -> None:
    checkpoint = replace(family_checkpoint("llama"), config={**CONFIGS["llama"], "num_key_value_heads": 4})
    family = family_of(checkpoint)
    form = family.describe(checkpoint)
    with pytest.raises(InputError) as error:
        build_decoder(form, family.weights(checkpoint, form), "model")
    assert "k_proj" in error.value.message
    assert error.value.context == ("it is 32 x 64; the model's metadata asks for 64 x 64",)


def test_a_fused_tensor_of_another_size_is_refused() -> None:
    checkpoint = family_checkpoint("phi3")
    name = "model.layers.1.self_attn.qkv_proj.weight"
    tensors = {**checkpoint.tensors, name: checkpoint.tensors["model.layers.1.mlp.gate_up_proj.weight"]}
    with pytest.raises(InputError, match=re.escape("gate_up_proj")) as error:
        weights(replace(checkpoint, tensors=tensors))
    assert error.value.ref == "tensor-shape-wrong"


@pytest.mark.parametrize("by_rows", [True, False])
def test_the_parts_of_a_fused_tensor_are_its_rows(by_rows: bool) -> None:
    checkpoint = family_checkpoint("phi3")
    if not by_rows:
        tensors = {name: replace(stored, rows=None) for name, stored in checkpoint.tensors.items()}
        checkpoint = replace(checkpoint, tensors=tensors)
    fused = random_tensors(CONFIGS["phi3"])["model.layers.1.self_attn.qkv_proj.weight"]
    found = weights(checkpoint)
    start = 0
    for part, count in (("q", 64), ("k", 32), ("v", 32)):
        weight = found[f"layers.1.attn.{part}_proj.weight"]
        np.testing.assert_array_equal(weight.read(), fused[start : start + count].T)
        assert weight.shape == (64, count)
        if by_rows:
            np.testing.assert_array_equal(weight.rows(3, 9), fused[start + 3 : start + 9])
        else:
            assert weight.rows is None
        start += count
