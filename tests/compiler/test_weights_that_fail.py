"""Weights that cannot be read when they are needed, long after the model was opened: one error, and nothing built."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ruvcompile.cli import run
from ruvcompile.load import load
from ruvrun.errors import InputError
from tests.checkpoints import CONFIGS, Tensors, random_tensors, write_directory, write_gguf

CONFIG = CONFIGS["llama"]
NAME = "model.layers.1.mlp.up_proj.weight"
Change = Callable[[Path], object]


def spoilt(value: float, name: str = NAME) -> Tensors:
    tensors = random_tensors(CONFIG)
    tensors[name].reshape(-1)[77 % tensors[name].size] = value
    return tensors


def build(model: Path, output: Path, *flags: str) -> int:
    return run(["build", str(model), "--target", "host", "--nodes", "1", "-o", str(output), "-q", *flags])


@pytest.mark.parametrize("quant", ["auto", "none"])
@pytest.mark.parametrize("name", [NAME, "model.norm.weight", "model.embed_tokens.weight"])
def test_a_weight_that_is_no_number_ends_the_build(
    quant: str, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = write_directory(tmp_path / "tiny", CONFIG, spoilt(np.nan, name), kind="BF16")
    assert build(model, tmp_path / "dist", "--quant", quant) == 3
    told = capfd.readouterr().err
    assert told.startswith("error[tensor-not-finite]: ")
    assert name in told
    assert "Traceback" not in told
    assert "Warning" not in told
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32", "F64"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_infinities_are_found_in_every_type_whole_or_by_rows(kind: str, value: float, tmp_path: Path) -> None:
    program = load(str(write_directory(tmp_path / "tiny", CONFIG, spoilt(value), kind=kind)))
    weight = program.model.graph.initializers["layers.1.mlp.up_proj.weight"].const_value
    assert weight is not None
    with pytest.raises(InputError, match=NAME):
        weight.numpy()
    program.model.graph.initializers["layers.0.mlp.up_proj.weight"].const_value.numpy()


def test_large_weights_whose_sum_is_no_number_are_sound(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    tensors[NAME] = np.full_like(tensors[NAME], 3e38)
    program = load(str(write_directory(tmp_path / "tiny", CONFIG, tensors)))
    assert program.model.graph.initializers["layers.1.mlp.up_proj.weight"].const_value.numpy().max() == np.float32(3e38)


def test_a_model_that_computes_no_numbers_is_not_built(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tensors = random_tensors(CONFIG)
    tensors[NAME] *= np.float32(1e37)
    model = write_directory(tmp_path / "tiny", CONFIG, tensors)
    assert build(model, tmp_path / "dist") == 3
    assert "error[model-not-finite]" in capfd.readouterr().err
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_a_gguf_is_held_to_the_same(kind: str, tmp_path: Path) -> None:
    program = load(str(write_gguf(tmp_path / "tiny.gguf", CONFIG, spoilt(np.inf), kind)))
    weight = program.model.graph.initializers["layers.1.mlp.up_proj.weight"].const_value
    with pytest.raises(InputError) as caught:
        weight.numpy()
    assert (caught.value.ref, "blk.1.ffn_up.weight" in caught.value.message) == ("tensor-not-finite", True)


@pytest.mark.parametrize(
    ("change", "ref"),
    [
        (Path.unlink, "file-unreadable"),
        (lambda path: os.truncate(path, 3000), "model-changed"),
        (lambda path: path.open("ab").write(b"more"), "model-changed"),
        (lambda path: os.utime(path, ns=(1, 1)), "model-changed"),
    ],
)
@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_a_model_that_goes_away_during_a_build_is_no_bug_of_ours(
    kind: str,
    change: Change,
    ref: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if kind == "gguf":
        model = file = write_gguf(tmp_path / "tiny.gguf", CONFIG, random_tensors(CONFIG))
    else:
        model = write_directory(tmp_path / "tiny", CONFIG, random_tensors(CONFIG))
        file = model / "model.safetensors"

    def load_then_change(path: str) -> object:
        program = load(path)
        change(file)
        return program

    monkeypatch.setattr("ruvcompile.front.load", load_then_change)
    assert build(model, tmp_path / "dist") == 3
    told = capfd.readouterr().err
    assert told.startswith("error[")
    assert ref in told.splitlines()[0]
    assert not (tmp_path / "dist").exists()
