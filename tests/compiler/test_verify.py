"""How far a quantised model is from its file, and whether staged is uncut: figures whose truth is known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ruvcompile import cli, passes
from ruvcompile.load import load
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from ruvcompile.progress import Silent
from ruvcompile.verify import sample_tokens, source_loss
from ruvcompile.verify.divergence import Divergence
from ruvcompile.verify.loss import LOSS_TOKENS
from ruvcompile.verify.staged import same_chunks, same_logits, same_tokens
from ruvcompile.verify.uncut import uncut
from tests.compiler.builds import build, check_whole
from tests.decoders import Stage, write_stages
from tests.models import write_tiny_gguf


@pytest.fixture(scope="module")
def source(folder) -> Program:
    return passes.run(load(str(write_tiny_gguf(folder / "tiny.gguf", quant="Q8_0"))))


def stages_of(program: Program, folder: Path, cuts: tuple[int, ...]) -> list[Stage]:
    return write_stages(program, cuts, folder, WeightStore(folder / "store"))


def test_nothing_is_lost_where_all_values_are_kept(source, tmp_path) -> None:
    """Eight bits of a Q8_0 file are the file's; with float activations only rounding is left."""
    stages = stages_of(quantise(source, "auto", accuracy=1), tmp_path, ())
    loss = source_loss(source, stages, 1, Silent())
    assert loss["tokens"] == LOSS_TOKENS
    assert loss["top1"] > 0.99
    assert 0 <= loss["kl"] < 1e-5


def test_fewer_bits_lose_more_and_stages_lose_nothing(source, tmp_path) -> None:
    eight = source_loss(source, stages_of(quantise(source, "int8"), tmp_path / "8", ()), 1, Silent())
    four = source_loss(source, stages_of(quantise(source, "int4"), tmp_path / "4", ()), 1, Silent())
    assert four["kl"] > 3 * eight["kl"] > 0
    assert four["top1"] < eight["top1"]
    assert source_loss(source, stages_of(quantise(source, "int4"), tmp_path / "4 cut", (2, 5)), 1, Silent()) == four


def test_a_short_context_bounds_the_text(tmp_path) -> None:
    source = passes.run(load(str(write_tiny_gguf(tmp_path / "short.gguf", context=40, layers=1))))
    stages = stages_of(quantise(source, "int8"), tmp_path, ())
    assert source_loss(source, stages, 1, Silent())["tokens"] == 40


def test_divergence_of_known_distributions() -> None:
    """Odds of three to one against even odds, and the first choice in one row of two."""
    exact = np.log(np.array([[3.0, 1.0], [1.0, 3.0]], np.float32)) + 7
    even = np.array([[0.0, 0.0], [5.0, 5.0]], np.float32)
    found, none = Divergence(), Divergence()
    found.add(exact, even)
    assert found.kl == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert (found.top1, found.tokens) == (0.5, 2)
    assert found.largest == pytest.approx(np.log(3) + 7)
    none.add(exact, exact)
    assert (none.kl, none.top1, none.largest) == (0.0, 1.0, 0.0)
    none.add(exact, exact * np.nan)
    assert np.isnan([none.kl, none.largest]).all()


def test_the_sample_text_is_in_the_models_own_tokens(source) -> None:
    ids = sample_tokens(source)
    assert ids.dtype == np.int64
    assert len(ids) > LOSS_TOKENS
    assert ids.min() >= 0
    assert ids.max() < 300


def test_the_same_stages_are_the_same_tokens_and_others_are_not(source, tmp_path) -> None:
    program = quantise(source, "auto")
    stages = stages_of(program, tmp_path, (3,))
    (whole,) = alone = uncut(program, tmp_path / "whole", like=stages[0][1]).stages
    assert (whole[1].backend, whole[1].target) == (stages[0][1].backend, stages[0][1].target)
    same, tokens, cases = same_tokens(program, stages, alone)
    assert same
    assert tokens == 64 * cases
    other = uncut(quantise(source, "int4"), tmp_path / "other", like=stages[0][1]).stages
    assert same_tokens(program, stages, other).same is False


def test_a_large_model_is_compared_by_its_logits_part_by_part(source, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ruvcompile.parts.PART_BYTES", 1)
    program = quantise(source, "auto")
    stages = stages_of(program, tmp_path, (3,))
    whole = uncut(program, tmp_path / "whole", like=stages[0][1])
    assert same_logits(stages, whole, 1) == (True, 24, 1)
    other = uncut(quantise(source, "int4"), tmp_path / "other", like=stages[0][1])
    assert same_logits(stages, other, 1) == (False, 24, 1)
    assert same_chunks(program, stages, 1) == (True, 24, 1)


@pytest.fixture(scope="module")
def built(folder, source) -> Path:
    build(folder / "tiny.gguf", folder / "dist")
    return folder / "dist"


def test_the_command_compares(built, folder, capsys) -> None:
    arguments = ["verify", str(built / "manifest.toml"), "--model", str(folder / "tiny.gguf"), "--json"]
    assert cli.run(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["identical"] is True
    assert told["vs_source"]["kl"] < 0.1


def test_the_command_ends_with_5_when_they_differ(built, folder, capsys, monkeypatch) -> None:
    monkeypatch.setattr("ruvcompile.verify.build.quantise", lambda source, _, **__: quantise(source, "int4"))
    arguments = ["verify", str(built / "manifest.toml"), "--model", str(folder / "tiny.gguf"), "--json"]
    assert cli.run(arguments) == 5
    told = capsys.readouterr()
    assert json.loads(told.out)["identical"] is False
    assert "error[verify-differs]" in told.err


def test_the_source_is_found_from_beside_the_build(built, folder, tmp_path, monkeypatch, capsys) -> None:
    """The manifest names the file as the build was told it; a path that was relative is looked for near the build."""
    monkeypatch.chdir(folder)
    build(Path("tiny.gguf"), Path("relative"), costs=(str(built / "costs.toml"),))
    monkeypatch.chdir(tmp_path)
    assert cli.run(["verify", str(folder / "relative" / "manifest.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identical"] is True


@pytest.mark.parametrize(
    ("damage", "code", "ref"),
    [("byte", 5, "bundle-altered"), ("bundle", 3, "bundle-missing"), ("model", 3, "file-missing")],
)
def test_what_cannot_be_compared(built, tmp_path, capsys, damage, code, ref) -> None:
    output = Path(shutil.copytree(built, tmp_path / "dist"))
    check_whole(output)
    if damage == "byte":
        path = output / "bundles" / "host-1" / "stage.onnx"
        path.write_bytes(b"\0" + path.read_bytes()[1:])
    elif damage == "bundle":
        shutil.rmtree(output / "bundles" / "host-1")
    arguments = ["--model", str(tmp_path / "none.gguf")] if damage == "model" else []
    assert cli.run(["verify", str(output / "manifest.toml"), *arguments, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["error"]["ref"] == ref
