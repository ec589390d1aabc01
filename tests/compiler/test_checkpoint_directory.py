"""Checkpoint directories: what one must not be, where it may lie, and the ways in which it may be written."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ruvcompile.load import load
from ruvcompile.load.directory import directory_name
from tests.checkpoints import CONFIGS, Tensors, random_tensors, write_directory, write_gguf, write_safetensors
from tests.compiler.directories import CONFIG, INDEX, Change, edit, raw_file, refusal, shard

# What a directory must not be


def copy_shard(directory: Path) -> None:
    shard(directory, 2).write_bytes(shard(directory, 1).read_bytes())


def move_tensor(directory: Path) -> None:
    index = directory / INDEX
    said = json.loads(index.read_text())["weight_map"]
    said["model.norm.weight"] = shard(directory, 1 + ("00001" in said["model.norm.weight"])).name
    edit(index, weight_map=said)


def index(directory: Path, **changes: Any) -> None:
    path = directory / INDEX
    said = {**json.loads(path.read_text())["weight_map"], **changes}
    edit(path, weight_map={name: file for name, file in said.items() if file is not None})


@pytest.mark.parametrize(
    ("change", "ref", "says"),
    [
        (lambda path: shard(path, 2).unlink(), "shard-missing", "model-00002-of-00003"),
        (lambda path: (path / INDEX).unlink(), "shard-missing", "model-00001-of-00003"),
        (lambda path: (shard(path, 2).unlink(), shard(path, 2).symlink_to("gone")), "shard-missing", "00002"),
        (copy_shard, "shard-index-wrong", "both in"),
        (move_tensor, "shard-index-wrong", "model.norm.weight should be in"),
        (lambda path: index(path, ghost=shard(path, 1).name), "shard-index-wrong", "none of the shards"),
        (lambda path: index(path, **{"model.norm.weight": None}), "shard-index-wrong", "does not name"),
        (lambda path: index(path, ghost="../tiny/config.json"), "shard-index-wrong", "no file of this directory"),
        (lambda path: index(path, ghost="/etc/passwd"), "shard-index-wrong", "no file of this directory"),
        (lambda path: index(path, ghost=".."), "shard-index-wrong", "no file of this directory"),
        (lambda path: edit(path / INDEX, weight_map=[]), "shard-index-wrong", "weight_map"),
        (lambda path: index(path, x=3), "shard-index-wrong", "weight_map"),
        (lambda path: (path / INDEX).write_text("{"), "json-wrong", "index.json"),
        (lambda path: os.truncate(shard(path, 2), shard(path, 2).stat().st_size - 1), "safetensors-truncated", "00002"),
        (lambda path: os.truncate(shard(path, 2), 5), "safetensors-truncated", "00002"),
        (lambda path: (path / "tokenizer.json").unlink(), "tokenizer-missing", "tokenizer.model"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "tokenizer-invalid", "tokenizer.json"),
        (lambda path: edit(path / "tokenizer_config.json", added_tokens_decoder=[3]), "tokenizer-wrong", "no object"),
        (lambda path: edit(path / "tokenizer_config.json", added_tokens_decoder={"x": {}}), "tokenizer-wrong", "'x'"),
        (
            lambda path: edit(path / "tokenizer_config.json", added_tokens_decoder={"7": {"content": "<new>"}}),
            "tokenizer-wrong",
            "'<new>' is token 7",
        ),
        (lambda path: (path / "generation_config.json").write_text('{"eos_token_id": 300}'), "tokenizer-wrong", "300"),
        (lambda path: (path / "generation_config.json").write_text('{"eos_token_id": "2"}'), "tokenizer-wrong", "'2'"),
        (lambda path: (path / "config.json").unlink(), "directory-without-model", "config.json"),
        (lambda path: (path / "config.json").write_text("<html>"), "json-wrong", "config.json"),
        (lambda path: (path / "config.json").write_text("[1]"), "json-wrong", "config.json"),
        (lambda path: (path / "config.json").write_text('{"rope_theta": NaN}'), "json-wrong", "NaN"),
        (lambda path: (path / "config.json").write_text('{"rope_theta": 1e999}'), "json-wrong", "out of range"),
    ],
)  # fmt: skip
def test_a_directory_that_does_not_fit_is_refused(change: Change, ref: str, says: str, sharded: Path) -> None:
    change(sharded)
    error = refusal(sharded)
    assert error.ref == ref
    assert says in f"{error.message} {error.context}"


@pytest.mark.parametrize(
    ("changes", "ref"),
    [
        ({"model_type": ...}, "config-wrong"),
        ({"model_type": 7}, "config-wrong"),
        ({"model_type": "mamba"}, "model-unsupported"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "model-unsupported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "model-unsupported"),
        ({"text_config": [1]}, "config-wrong"),
        ({"hidden_size": ...}, "config-wrong"),
        ({"hidden_size": "64"}, "config-wrong"),
        ({"hidden_size": -64}, "config-wrong"),
        ({"hidden_size": 64.5}, "config-wrong"),
        ({"hidden_size": True}, "config-wrong"),
        ({"hidden_size": 1 << 70}, None),
        ({"head_dim": 1 << 40}, None),
        ({"num_hidden_layers": 1 << 40}, None),
        ({"num_attention_heads": 1 << 40}, None),
        ({"intermediate_size": 1 << 40}, "tensor-shape-wrong"),
        ({"vocab_size": 1 << 40}, "tensor-shape-wrong"),
        ({"max_position_embeddings": 1 << 50}, None),
        ({"num_hidden_layers": 2}, "model-unsupported"),  # the third layer's tensors would be ignored
        ({"num_hidden_layers": 4}, "tensor-missing"),
        ({"intermediate_size": 128}, "tensor-shape-wrong"),
        ({"rms_norm_eps": "small"}, "config-wrong"),
        ({"rope_theta": 0}, "config-wrong"),
        ({"rope_scaling": "linear"}, "config-wrong"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "model-unsupported"),
        ({"tie_word_embeddings": "yes"}, "config-wrong"),
        ({"hidden_act": "relu6"}, "model-unsupported"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    changes: dict[str, Any], ref: str | None, sharded: Path
) -> None:
    edit(sharded / "config.json", **changes)
    tracemalloc.start()
    try:
        error = refusal(sharded)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert ref in (None, error.ref)


def test_an_unknown_architecture_is_told_those_that_are_known_and_the_way_through_torch(sharded: Path) -> None:
    edit(sharded / "config.json", model_type="mamba")
    error = refusal(sharded)
    assert "'mamba'" in error.message
    assert all(name in error.context[0] for name in ("gemma3", "llama", "mistral", "phi3", "qwen3", "smollm3"))
    assert "huggingface" in str(error.hint)


@pytest.mark.parametrize("kind", ["F8_E4M3", "I8", "U8"])
def test_a_quantised_tensor_is_refused_by_name_and_type(kind: str, tmp_path: Path, tensors: Tensors) -> None:
    directory = write_directory(tmp_path / "tiny", CONFIG, tensors)
    raw = (directory / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    entry = header["model.layers.1.mlp.up_proj.weight"]
    begin = entry["data_offsets"][0]
    header["model.layers.1.mlp.up_proj.weight"] = {
        "dtype": kind, "shape": entry["shape"], "data_offsets": [begin, begin + int(np.prod(entry["shape"]))]
    }  # fmt: skip
    raw_file(directory / "model.safetensors", header, raw[8 + length :])
    error = refusal(directory)
    assert error.ref == "tensor-type-unknown"
    assert "model.layers.1.mlp.up_proj.weight" in error.message
    assert kind in error.message
    assert "BF16" in error.context[0]


def test_a_missing_tensor_is_named(tmp_path: Path, tensors: Tensors) -> None:
    less = {name: array for name, array in tensors.items() if name != "model.layers.1.mlp.up_proj.weight"}
    error = refusal(write_directory(tmp_path / "tiny", CONFIG, less, shards=2))
    assert error.ref == "tensor-missing"
    assert "model.layers.1.mlp.up_proj.weight" in error.message


def test_only_weights_under_pytorch_names_get_a_hint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    error = refusal(tmp_path)
    assert error.ref == "shard-missing"
    assert "pytorch_model.bin" in error.context[0]
    assert error.hint == "save it as safetensors"
    assert "directory" in str(refusal(write_safetensors(tmp_path / "m.safetensors", {})).hint)


def test_a_pipe_is_refused_where_opening_it_would_wait_for_ever(sharded: Path) -> None:
    for name in ("tokenizer_config.json", shard(sharded, 2).name, "config.json"):
        (sharded / name).unlink()
        os.mkfifo(sharded / name)
        error = refusal(sharded)
        assert (error.ref, name in error.message) == ("file-unreadable", True)
    assert refusal(sharded / "config.json").ref == "file-unreadable"


# Where a model may lie


def test_a_cache_of_the_hub_is_read_through_its_links(tmp_path: Path, sharded: Path) -> None:
    cache = tmp_path / "models--some org--Tiny-Chat"
    snapshot, blobs = cache / "snapshots" / "0123abcd", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(sharded.iterdir())):
        path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / f"{number:064x}")
    program = load(str(snapshot))
    assert program.name == "Tiny-Chat"
    assert program.model.graph.initializers["embed.weight"].const_value.numpy().shape == (300, 64)


def test_a_read_only_directory_with_spaces_and_letters_of_other_scripts(tmp_path: Path, tensors: Tensors) -> None:
    directory = write_directory(tmp_path / "mein Modell ü 模型", CONFIG, tensors, shards=2)
    plain = load(str(write_directory(tmp_path / "plain", CONFIG, tensors, shards=2)))
    for path in directory.iterdir():
        path.chmod(0o444)
    directory.chmod(0o555)
    try:
        program = load(f"{directory}/")
    finally:
        directory.chmod(0o755)
    assert program.name == "mein Modell ü 模型"
    assert program.source.path == str(directory)
    assert program.source.sha256 == plain.source.sha256
    assert program.head_files == plain.head_files


def test_the_name_is_that_of_the_directory_also_from_within_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Tiny").mkdir()
    monkeypatch.chdir(tmp_path / "Tiny")
    assert directory_name(Path()) == "Tiny"
    assert directory_name(Path("../Tiny/")) == "Tiny"


def test_what_a_program_came_from_is_named_by_its_content(tmp_path: Path, tensors: Tensors) -> None:
    def name(changed: Tensors, where: str, shards: int = 1) -> str:
        return load(str(write_directory(tmp_path / where, CONFIG, changed, shards=shards))).source.sha256

    first = name(tensors, "a")
    assert name(tensors, "b") == first
    tuned = dict(tensors)
    tuned["model.layers.2.mlp.up_proj.weight"] = tensors["model.layers.2.mlp.up_proj.weight"] + np.float32(0.5)
    assert name(tuned, "c") != first
    assert name(tensors, "d", shards=2) != first
    (tmp_path / "a" / "chat_template.jinja").write_text("{{ messages }}")
    assert load(str(tmp_path / "a")).source.sha256 != first


def test_a_directory_of_one_other_model_is_that_model(tmp_path: Path, tensors: Tensors) -> None:
    write_gguf(tmp_path / "tiny.gguf", CONFIG, tensors)
    (tmp_path / "README.md").write_text("a model")
    program = load(str(tmp_path))
    assert program.name == "tiny"
    assert program.source.path == f"{tmp_path}/tiny.gguf"
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    error = refusal(tmp_path)
    assert error.ref == "model-ambiguous"
    assert error.context == ("other.gguf, tiny.gguf",)
    assert str(tmp_path / "other.gguf") in str(error.hint)


def test_a_directory_of_something_else_is_told_what_is_in_it(tmp_path: Path) -> None:
    assert refusal(tmp_path).context == ("it is empty",)
    (tmp_path / "cat.jpg").write_bytes(b"")
    assert refusal(tmp_path).context == ("it holds cat.jpg",)


# The ways that checkpoints are written


def test_the_text_part_of_a_model_of_several_inputs(tmp_path: Path) -> None:
    text = {key: value for key, value in CONFIGS["gemma3"].items() if key != "eos_token_id"}
    tensors = random_tensors(text)
    alone = load(str(write_directory(tmp_path / "alone", text, tensors)))
    outer = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}, "eos_token_id": [2, 5]}
    for style in ("language_model.model.", "model.language_model."):
        renamed = {style + name.removeprefix("model."): array for name, array in tensors.items()}
        tower = "vision_tower.x.weight" if style.startswith("language") else "model.vision_tower.x.weight"
        renamed[tower] = np.ones((2, 3), np.float32)
        program = load(str(write_directory(tmp_path / style, outer, renamed, shards=2)))
        assert program.decoder is not None
        assert alone.decoder is not None
        assert program.decoder.eos == (0, 2, 5)
        assert program.decoder.vocab == alone.decoder.vocab
        for name, value in alone.model.graph.initializers.items():
            ours = program.model.graph.initializers[name].const_value
            assert ours is not None
            assert value.const_value is not None
            np.testing.assert_array_equal(ours.numpy(), value.const_value.numpy())


def test_a_decoder_saved_without_its_head_and_with_a_buffer(tmp_path: Path, tensors: Tensors) -> None:
    bare = {name.removeprefix("model."): array for name, array in tensors.items()}
    bare["layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    program = load(str(write_directory(tmp_path / "bare", CONFIG, bare)))
    assert program.decoder is not None
    assert program.decoder.layers == 3
