"""A checkpoint directory is read right, or refused with one error; no damage to it gives anything else."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvcompile.load import load
from ruvcompile.load.directory import directory_name
from ruvcompile.load.safetensors import FLOATS, Shard, open_shard, stored
from ruvrun.errors import InputError
from tests.checkpoints import CONFIGS, Tensors, encode, random_tensors, write_directory, write_gguf, write_safetensors

CONFIG = CONFIGS["llama"]
INDEX = "model.safetensors.index.json"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return random_tensors(CONFIG)


@pytest.fixture
def tiny(tmp_path: Path, tensors: Tensors) -> Path:
    """A checkpoint in three shards."""
    return write_directory(tmp_path / "tiny", CONFIG, tensors, shards=3)


def refusal(path: Path) -> InputError:
    """The error that loading ``path`` gives; it has all that an error needs."""
    with pytest.raises(InputError) as caught:
        load(str(path))
    error = caught.value
    assert error.exit_code == 3
    assert error.hint
    assert "\n" not in error.message
    return error


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file, or take out those that become ``...``."""
    said = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not ...}))


def shard(directory: Path, number: int) -> Path:
    return directory / f"model-{number:05}-of-00003.safetensors"


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def opened(path: Path) -> Shard:
    return open_shard(path, "the-file")


# Reading


@pytest.mark.parametrize("kind", sorted(FLOATS))
def test_every_float_type_is_widened_exactly(kind: str, tmp_path: Path) -> None:
    values = np.array([[0.0, -1.5, 3.0e-5, 65504.0], [2.0**-14, -0.0, 0.333251953125, 1e-3]], np.float32)
    if kind == "BF16":
        values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if kind == "F16":
        values = values.astype(np.float16).astype(np.float32)
    found = opened(write_safetensors(tmp_path / "m", {"x": values}, kind))
    tensor = stored(found, found.entries["x"])
    assert tensor.bits == {"F64": 32, "F32": 32, "F16": 16, "BF16": 16}[kind]
    read = tensor.read()
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, values)
    assert np.signbit(read[1, 1])


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_rows_are_those_of_the_whole(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ruvcompile.load.safetensors._AT_ONCE", 64)  # so that a read takes many steps
    values = np.random.default_rng(0).integers(-100, 100, (7, 5)).astype(np.float32)
    found = opened(write_safetensors(tmp_path / "m", {"a": values, "b": values * 2}, kind))
    tensor = stored(found, found.entries["b"])
    assert tensor.rows is not None
    np.testing.assert_array_equal(tensor.read(), values * 2)
    for start in range(7):
        np.testing.assert_array_equal(tensor.rows(start, 7), values[start:] * 2)


def test_a_number_that_no_float32_holds_is_an_error_not_infinity(tmp_path: Path) -> None:
    path = raw_file(
        tmp_path / "m", {"x": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}, struct.pack("<d", 1e300)
    )
    found = opened(path)
    with pytest.raises(InputError, match="damaged"):
        stored(found, found.entries["x"]).read()


def test_a_sparse_shard_of_a_terabyte_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    rows, columns = 1 << 23, 1 << 16
    size = rows * columns * 2
    path = raw_file(tmp_path / "m", {"x": {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, size]}})
    start = path.stat().st_size
    try:
        os.truncate(path, start + size)
    except OSError:
        pytest.skip("this file system has no files of a terabyte")
    with path.open("r+b") as stream:
        stream.seek(start + 5 * columns * 2)
        stream.write(encode(np.full(3, 2.0, np.float32), "BF16"))
    tracemalloc.start()
    try:
        found = opened(path)
        tensor = stored(found, found.entries["x"])
        assert tensor.rows is not None
        assert tensor.rows(5, 6)[0, :4].tolist() == [2, 2, 2, 0]
        assert tensor.rows(rows - 1, rows).sum() == 0
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# What a container must not be

ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{", "not sound JSON"),
        (b"[]", "not sound JSON"),
        (b'{"x": NaN}', "not sound JSON"),
        (b"\xff\xfe{}", "not sound JSON"),
        (b"[" * 100_000, "not sound JSON"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not sound JSON"),
        (b'{"x": 1, "x": 1}', "not sound JSON"),
        ({"x": 3}, "damaged"),
        ({"x": {"dtype": "F32", "shape": [2]}}, "damaged"),
        ({"x": {**ENTRY, "more": 1}}, "damaged"),
        ({"x": {**ENTRY, "shape": "2 2"}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2, -2]}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2, True]}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2.0, 2]}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2] * 9}}, "damaged"),
        ({"x": {**ENTRY, "shape": [1 << 62, 1 << 62]}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2, 3]}}, "damaged"),
        ({"x": {**ENTRY, "data_offsets": [0]}}, "damaged"),
        ({"x": {**ENTRY, "data_offsets": [16, 0]}}, "damaged"),
        ({"x": {**ENTRY, "data_offsets": [-16, 0]}}, "damaged"),
        ({"x": {**ENTRY, "data_offsets": [8, 24]}}, "truncated"),
        ({"x": {**ENTRY, "data_offsets": [1 << 60, (1 << 60) + 16]}}, "truncated"),
        ({"x": ENTRY, "y": {**ENTRY, "data_offsets": [0, 16]}}, "damaged"),
        ({"x": ENTRY, "y": {"dtype": "F16", "shape": [1], "data_offsets": [14, 16]}}, "damaged"),
        ({"x": {**ENTRY, "dtype": "Q9"}}, "'Q9'"),
        ({"x": {**ENTRY, "dtype": ["F32"]}}, "['F32']"),
    ],
)
def test_a_header_that_lies_is_refused(header: Any, says: str, tmp_path: Path) -> None:
    path = raw_file(tmp_path / "m", header, bytes(16))
    with pytest.raises(InputError) as caught:
        opened(path)
    assert says in caught.value.message
    assert "the-file" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("length", [1 << 63, 1 << 40, 17, 9])
def test_the_length_of_a_header_is_held_against_the_file(length: int, tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", length) + b"{}" + b" " * 6)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="truncated"):
            opened(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_header_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", 1 << 30))
    os.truncate(path, (1 << 30) + 8)
    with pytest.raises(InputError) as caught:
        opened(path)
    assert caught.value.ref == "safetensors-damaged"


@settings(max_examples=150)
@given(data=st.data())
def test_damage_gives_an_error_of_ours_or_a_model_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, tensors: Tensors, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    write_directory(directory, CONFIG, tensors)
    name = data.draw(st.sampled_from(["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]))
    path = directory / name
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, min(len(whole), 6000) - 1))
    patch = data.draw(
        st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, b"0", b'"', b"}", b"-9"]))
    )
    whole[at : at + len(patch)] = patch
    path.write_bytes(whole if data.draw(st.booleans()) else whole[:at])
    with contextlib.suppress(InputError):
        load(str(directory))


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
def test_a_directory_that_does_not_fit_is_refused(change: Change, ref: str, says: str, tiny: Path) -> None:
    change(tiny)
    error = refusal(tiny)
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
def test_a_configuration_that_makes_no_sense_is_refused(changes: dict[str, Any], ref: str | None, tiny: Path) -> None:
    edit(tiny / "config.json", **changes)
    tracemalloc.start()
    try:
        error = refusal(tiny)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert ref in (None, error.ref)


def test_an_unknown_architecture_is_told_those_that_are_known_and_the_way_through_torch(tiny: Path) -> None:
    edit(tiny / "config.json", model_type="mamba")
    error = refusal(tiny)
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


def test_a_pipe_is_refused_where_opening_it_would_wait_for_ever(tiny: Path) -> None:
    for name in ("tokenizer_config.json", shard(tiny, 2).name, "config.json"):
        (tiny / name).unlink()
        os.mkfifo(tiny / name)
        error = refusal(tiny)
        assert (error.ref, name in error.message) == ("file-unreadable", True)
    assert refusal(tiny / "config.json").ref == "file-unreadable"


# Where a model may lie


def test_a_cache_of_the_hub_is_read_through_its_links(tmp_path: Path, tiny: Path) -> None:
    cache = tmp_path / "models--some org--Tiny-Chat"
    snapshot, blobs = cache / "snapshots" / "0123abcd", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(tiny.iterdir())):
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
