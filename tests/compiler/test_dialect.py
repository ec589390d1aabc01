"""The same model is the same program, whether it comes as a Hugging Face directory or as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer

from ruvcompile.load import load
from ruvcompile.load.gguf_dialect import checkpoint_of
from ruvcompile.load.gguf_file import open_gguf
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from tests.checkpoints import CONFIGS, random_tensors, write_directory, write_gguf

# Stored in a GGUF as float32 that converters compute in float32, so a table made of them is not bit-equal.
STORED_FACTORS = ("llama-llama3", "phi3-long")


def weights(program: Program) -> dict[str, npt.NDArray[np.float32]]:
    return {
        name: value.const_value.numpy()
        for name, value in program.model.graph.initializers.items()
        if value.const_value is not None
    }


def shape(program: Program) -> list[tuple[object, ...]]:
    """Every node, with its attributes and the names it reads and makes."""
    return [
        (
            node.op_type,
            node.name,
            sorted((name, str(attribute.value)) for name, attribute in node.attributes.items()),
            [value.name if value else None for value in node.inputs],
            [value.name for value in node.outputs],
        )
        for node in program.model.graph
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_both_files_give_the_same_program(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    tensors = random_tensors(config)
    one = load(str(write_directory(tmp_path / "tiny", config, tensors, shards=3)))
    other = load(str(write_gguf(tmp_path / "tiny.gguf", config, tensors)))
    assert one.decoder == other.decoder
    assert one.name == other.name == "tiny"
    assert shape(one) == shape(other)
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    for key, array in ours.items():
        if key.startswith("rotary") and name in STORED_FACTORS:
            np.testing.assert_allclose(array, theirs[key], rtol=0, atol=2e-5, err_msg=key)
        else:
            np.testing.assert_array_equal(array, theirs[key], err_msg=key)
    bits = {value.name: value.metadata_props.get("ruv.bits") for value in one.model.graph.initializers.values()}
    assert set(bits.values()) <= {"32", None}  # constants of the form have none


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_both_heads_read_and_speak_alike(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    tensors = random_tensors(config)
    one = load(str(write_directory(tmp_path / "tiny", config, tensors)))
    other = load(str(write_gguf(tmp_path / "tiny.gguf", config, tensors)))
    assert json.loads(one.head_files["chat.json"]) == json.loads(other.head_files["chat.json"])
    ours, theirs = (Tokenizer.from_str(each.head_files["tokenizer.json"].decode()) for each in (one, other))
    for text in ("The cat, and 123 dogs' <|im_start|>user\nnaïve 😀<|im_end|>", "", "  \n\t x"):
        assert ours.encode(text).ids == theirs.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)


@pytest.mark.parametrize(("kind", "bits"), [("F16", "16"), ("Q8_0", "8"), ("Q5_0", "5"), ("Q4_1", "4")])
def test_bits_are_those_of_the_file(kind: str, bits: str, tmp_path: Path) -> None:
    config = CONFIGS["qwen3"]
    program = load(str(write_gguf(tmp_path / "tiny.gguf", config, random_tensors(config), kind)))
    found = {name: value.metadata_props.get("ruv.bits") for name, value in program.model.graph.initializers.items()}
    assert found["layers.0.mlp.down_proj.weight"] == bits
    assert found["layers.0.attn_norm.weight"] == "32"


def test_auto_keeps_what_a_quantised_file_left_wide(tmp_path: Path) -> None:
    """An embedding of 16 bits in a file of 8: whoever made it thought 8 too few for it, so 4 would be wrong."""
    config = CONFIGS["qwen2"]
    path = write_gguf(tmp_path / "mixed.gguf", config, random_tensors(config), "Q8_0", table="F16")
    program = quantise(load(str(path)), "auto")
    bits = {node.name: node.attributes["bits"].as_int() for node in program.model.graph if "bits" in node.attributes}
    assert set(bits.values()) == {8}
    assert "/embed" in bits


@pytest.mark.parametrize("name", ["llama", "smollm3", "gemma2", "phi3"])
def test_rows_of_a_gguf_are_those_of_the_whole(name: str, tmp_path: Path) -> None:
    """Also where rows were permuted: a part of a head is cut out of the head put in order."""
    config = CONFIGS[name]
    file = open_gguf(write_gguf(tmp_path / "tiny.gguf", config, random_tensors(config), "Q8_0"), "tiny")
    checked = 0
    for stored in checkpoint_of(file).tensors.values():
        if stored.rows is not None:
            whole, count = stored.read(), stored.shape[0]
            for start, stop in ((0, count), (1, 2), (count // 3, count // 2 + 3), (count - 1, count), (3, 3)):
                np.testing.assert_array_equal(stored.rows(start, stop), whole[start:stop])
            checked += 1
    assert checked >= 4 * config["num_hidden_layers"]


def test_factors_of_no_published_rule_are_handed_on(tmp_path: Path) -> None:
    config = CONFIGS["llama-llama3"]
    tensors = random_tensors(config)
    plain = load(str(write_gguf(tmp_path / "plain.gguf", {**config, "rope_scaling": None}, tensors)))
    file = open_gguf(write_gguf(tmp_path / "tiny.gguf", config, tensors), "tiny")
    assert checkpoint_of(file).config["rope_scaling"]["rope_type"] == "llama3"
    # Eight divisors of another kind, in the place of those.
    raw = bytearray(file.path.read_bytes())
    at = file.tensors["rope_freqs.weight"].offset
    raw[at : at + 32] = np.array([1, 1, 1, 1, 2, 2, 4, 4], "<f4").tobytes()
    file.path.write_bytes(raw)
    ours, before = weights(load(str(file.path))), weights(plain)
    angles = np.arctan2(before["rotary.sin"][1], before["rotary.cos"][1]) / [1, 1, 1, 1, 2, 2, 4, 4]
    np.testing.assert_allclose(ours["rotary.sin"][1], np.sin(angles), rtol=1e-5)
    np.testing.assert_allclose(ours["rotary.cos"][1], np.cos(angles), rtol=1e-5)
