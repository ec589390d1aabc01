"""What users give by mistake, or what was left half done: each is one error that says what to do instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ruvcompile.load import load
from ruvrun.errors import InputError
from tests.checkpoints import CONFIGS, Tensors, write_directory, write_safetensors

CONFIG = CONFIGS["llama"]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4000000000\n"
Change = Callable[[Path], object]


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        load(str(path))
    assert caught.value.exit_code == 3
    return caught.value


# A file in the place of the model


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
)
def test_a_part_of_a_checkpoint_is_told_the_directory(name: str, tmp_path: Path, tensors: Tensors) -> None:
    directory = write_directory(tmp_path / "tiny", CONFIG, tensors, shards=2)
    error = refusal(directory / name)
    assert error.ref == "model-kind-unsupported"
    assert f"{directory}/" in str(error.hint)


@pytest.mark.parametrize(("name", "start"), [("m.bin", b"PK\3\4"), ("m.pt", b"\x80\2"), ("m.pth", b"PK\3\4")])
def test_files_of_torch_are_not_called_damaged_graphs(name: str, start: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(start + bytes(64))
    assert "safetensors" in str(refusal(tmp_path / name).hint)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_what_git_has_not_fetched_is_told_as_such(name: str, checkpoint: Path) -> None:
    (checkpoint / name).write_text(POINTER)
    error = refusal(checkpoint)
    assert (error.ref, name in error.message) == ("file-not-fetched", True)
    assert "git lfs pull" in str(error.hint)
    (checkpoint / "m.gguf").write_text(POINTER)
    assert refusal(checkpoint / "m.gguf").ref == "file-not-fetched"


# A directory of something else


def adapter(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    write_safetensors(directory / "adapter_model.safetensors", {"lora": np.zeros(1, np.float32)})


@pytest.mark.parametrize("configured", [True, False])
def test_an_adapter_is_not_a_model(configured: bool, checkpoint: Path) -> None:
    adapter(checkpoint)
    if not configured:
        (checkpoint / "config.json").unlink()
    assert "merge" in str(refusal(checkpoint).hint)


def test_an_adapter_beside_a_whole_model_is_not_passed_over_in_silence(checkpoint: Path) -> None:
    (checkpoint / "adapter_config.json").write_text("{}")
    (note,) = load(str(checkpoint)).notes
    assert "adapter" in note


@pytest.mark.parametrize(
    ("rename", "says"),
    [
        ("consolidated.safetensors", "model-*.safetensors"),
        ("MODEL.SAFETENSORS", "must be called model.safetensors"),
        ("model-00001-of-00001.safetensors", "copy the index"),
    ],
)
def test_weights_under_another_name_get_the_hint_that_helps(rename: str, says: str, checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / rename)
    error = refusal(checkpoint)
    assert error.ref == "shard-missing"
    assert rename in error.context[0]
    assert says in str(error.hint)


def test_a_link_to_weights_that_are_gone_is_told_as_such(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors").symlink_to("../blobs/gone")
    assert "a link to a file that is not there" in str(refusal(checkpoint).hint)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "tokenizer_config.json").write_text(r'{"chat_template": "\ud800"}'),
        lambda path: (path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "\ud83d"})),
        lambda path: (path / "generation_config.json").write_text(r'{"\udc00": [1]}'),
    ],
)
def test_half_a_character_is_no_sound_json(change: Change, checkpoint: Path) -> None:
    change(checkpoint)
    error = refusal(checkpoint)
    assert (error.ref, error.context) == ("json-wrong", ("a text in it holds half a character (one surrogate of two)",))


def test_a_whole_character_of_two_halves_is_sound(checkpoint: Path) -> None:
    (checkpoint / "tokenizer_config.json").write_text(r'{"chat_template": "\ud83d\ude00"}')
    assert json.loads(load(str(checkpoint)).head_files["chat.json"])["template"] == "😀"


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model."])
def test_a_model_that_was_saved_in_a_wrapper_is_told_as_such(prefix: str, tmp_path: Path, tensors: Tensors) -> None:
    wrapped = {prefix + name: array for name, array in tensors.items()}
    error = refusal(write_directory(tmp_path / "tiny", CONFIG, wrapped))
    assert error.ref == "tensor-missing"
    assert error.context == (f"it has {prefix}model.embed_tokens.weight",)
    assert "wrapper" in str(error.hint)


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
def test_a_single_number_is_no_weight(name: str, tmp_path: Path, tensors: Tensors) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "vocab_size"}
    changed = {**tensors, name: np.array(3, np.float32)}
    assert refusal(write_directory(tmp_path / "tiny", config, changed)).exit_code == 3
