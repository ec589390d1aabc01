"""How far pipelines are from what their weights mean: measured, bounded, written into the manifest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ruvcompile import cli
from ruvcompile.progress import Silent
from ruvcompile.verify.divergence import Divergence
from ruvcompile.verify.equality import Comparison, measure
from ruvcompile.verify.forced import Reading, forced_logits, in_blocks, readings
from ruvcompile.verify.staged import Sameness
from ruvrun.executors import Span, load_decoder
from ruvrun.manifest import load_manifest
from tests.compiler.builds import build
from tests.decoders import tiny_program
from tests.mixed import ONNX, OPEN, WAYS, four_ways, write_fleet
from tests.models import write_tiny_gguf


def test_with_float_activations_only_rounding_is_left(tmp_path) -> None:
    program = tiny_program(tmp_path, "int4", accuracy=1, layers=2)
    found = measure(program, four_ways(program, tmp_path), 150, tmp_path / "uncut", 1, Silent())
    assert [each.backends for each in found] == [*WAYS]
    for each in found:
        assert each.exact
        assert each.found.tokens == 150
        assert each.found.top1 == 1
        assert 0 <= each.found.kl < 1e-9
        assert 0 < each.found.largest < 1e-3
        assert each.beyond == []
    for mixed in found[2:]:
        assert mixed.beside.keys() == {ONNX, OPEN}
    # Law 1: the uncut model on a back end is what both stages on it are.
    assert found[2].beside[ONNX] == found[0].found
    assert found[2].beside[OPEN] == found[1].found


@pytest.mark.parametrize("kv_type", ["f32", "u8"])
def test_with_fewer_bits_more_is_lost_and_mixed_pipelines_lose_no_more(kv_type, tmp_path) -> None:
    program = tiny_program(tmp_path, "int4", layers=2)
    found = measure(program, four_ways(program, tmp_path, kv_type), 300, tmp_path / "uncut", 1, Silent())
    for each in found:
        assert not each.exact
        assert 1e-4 < each.found.kl < 0.05
    worse = max(each.found.kl for each in found[:2])
    assert all(each.found.kl < 1.5 * worse for each in found[2:])


def test_keys_and_values_in_fewer_bits_are_no_floats(tmp_path) -> None:
    program = tiny_program(tmp_path, "int4", accuracy=1, layers=2)
    ways = four_ways(program, tmp_path, "u8")
    found = measure(program, {7: ways[0], 9: ways[2]}, 40, tmp_path / "uncut", 1, Silent())
    assert [(each.pipeline, each.exact) for each in found] == [(7, True), (9, False)]
    assert found[1].found.kl > 1e3 * found[0].found.kl


def test_large_models_are_compared_part_by_part(tmp_path, monkeypatch) -> None:
    program = tiny_program(tmp_path, "int4", layers=2)
    mixed = {0: four_ways(program, tmp_path)[2]}
    (whole,) = measure(program, mixed, 40, tmp_path / "whole", 1, Silent())
    monkeypatch.setattr("ruvcompile.parts.PART_BYTES", 1)
    (parted,) = measure(program, mixed, 40, tmp_path / "parts", 1, Silent())
    assert parted.found.kl == pytest.approx(whole.found.kl, rel=1e-6)
    for backend in (ONNX, OPEN):
        assert parted.beside[backend].kl == pytest.approx(whole.beside[backend].kl, rel=1e-6)


def divergence(kl: float, same: int = 1000) -> Divergence:
    return Divergence(tokens=1000, same=same, sum_kl=1000 * kl, largest=1.0)


@pytest.mark.parametrize(
    ("exact", "found", "alone", "told"),
    [
        (True, divergence(1e-3, 995), (), []),
        (True, divergence(1e-9, 994), (), ["same first choice 99.40 %"]),
        (True, divergence(1.1e-3, 990), (), ["mean KL 0.0011", "same first choice"]),
        (False, divergence(0.01, 900), (), []),
        (False, divergence(0.011), (), ["at most 0.01"]),
        (False, divergence(0.0047), (0.004, 0.003), []),
        (False, divergence(0.0049), (0.004, 0.003), ["more than 1.2 times 0.004"]),
        (False, divergence(0.0009), (0.0001, 0.0002), []),
        (False, divergence(float("nan")), (), ["mean KL nan"]),
    ],
)
def test_what_is_beyond_a_bound_is_told(exact, found, alone, told) -> None:
    beside = {f"one {number}": divergence(kl) for number, kl in enumerate(alone)}
    said = Comparison(0, (ONNX, OPEN), exact, found, beside).beyond
    assert len(said) == len(told)
    assert all(part in text for part, text in zip(told, said, strict=True)), said


def test_a_text_is_read_in_both_modes() -> None:
    assert readings(20, 12, 4) == [
        *(Reading(0, 0, 4), Reading(4, 4, 2)),
        *(Reading(at, at, 1) for at in range(6, 12)),
        Reading(12, 0, 4),
        *(Reading(12 + at, at, 1) for at in range(4, 8)),
    ]
    assert readings(20, 12, 8, single=False) == [Reading(0, 0, 8), Reading(8, 8, 4), Reading(12, 0, 8)]


def test_forced_logits_are_those_of_the_executor(tmp_path) -> None:
    program = tiny_program(tmp_path, "int4", layers=2)
    ways = four_ways(program, tmp_path)
    ids = np.arange(3, 40)
    calls = readings(len(ids), 24, 5)
    for stages in ways.values():
        executors = [load_decoder(path, spec, context=24, slots=1, threads=1) for path, spec in stages]
        wanted = []
        for call in calls:
            tensors = {"input_ids": ids[call.at : call.at + call.tokens]}
            for executor in executors:
                tensors = executor.step([Span(0, call.position, call.tokens, call.tokens)], tensors)
            wanted.append(tensors["logits"].copy())
        found = [*in_blocks(forced_logits(stages, ids, calls, 1), 10)]
        assert [len(block) for block in found] == [10, 10, 10, 7]
        assert np.array_equal(np.concatenate(found), np.concatenate(wanted))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """A build of two stages, the first on ONNX Runtime and the second on OpenVINO."""
    folder: Path = tmp_path_factory.mktemp("mixed")
    write_tiny_gguf(folder / "tiny.gguf", layers=2)
    fleet = str(write_fleet(folder, "host", "intel-cpu"))
    build(folder / "tiny.gguf", folder / "dist", fleet=fleet, stages=2, activations="float")
    return folder / "dist"


def test_verify_writes_what_it_found_into_every_manifest(mixed, capsys) -> None:
    before = load_manifest(mixed / "manifest.toml")
    assert [stage.backend for stage in before.stage] == [ONNX, OPEN]
    assert before.program.activations == "float"
    assert before.equality == []
    arguments = ["verify", str(mixed / "manifest.toml"), "--model", str(mixed.parent / "tiny.gguf")]
    assert cli.run([*arguments, "--tokens", "120", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["identical"] is told["mixed"] is True
    assert told["top1_agreement"] == 1
    assert told["beyond"] == []
    (figures,) = told["equality"]
    assert figures["alone"].keys() == {ONNX, OPEN}
    after = load_manifest(mixed / "manifest.toml")
    assert after.id == before.id
    (entry,) = after.equality
    assert (entry.pipeline, entry.backends, entry.floats, entry.tokens) == (0, [ONNX, OPEN], True, 120)
    assert entry.mean_kl == pytest.approx(told["mean_kl"], rel=1e-4)
    assert entry.max_logit_diff == pytest.approx(told["max_logit_diff"], rel=1e-4)
    assert {path.read_bytes() for path in mixed.rglob("manifest.toml")} == {(mixed / "manifest.toml").read_bytes()}
    assert cli.run([*arguments, "--tokens", "64"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("in company against alone: identical (4 cases, 256 tokens)")
    assert "onnxruntime + openvino (float activations) against float64: KL" in " ".join(said.split())
    (entry,) = load_manifest(mixed / "manifest.toml").equality
    assert entry.tokens == 64


def test_verify_fails_beyond_its_bounds_in_one_error(mixed, capsys, monkeypatch) -> None:
    monkeypatch.setattr("ruvcompile.verify.equality.MOST_KL_FLOAT", 0.0)
    monkeypatch.setattr("ruvcompile.verify.equality.LEAST_AGREEMENT", 2.0)
    assert cli.run(["verify", str(mixed / "manifest.toml"), "--tokens", "40", "--json"]) == 5
    told = capsys.readouterr()
    assert len(json.loads(told.out)["beyond"]) >= 2
    assert told.err.count("error[") == 1
    assert "error[verify-too-far]" in told.err
    assert "same first choice" in told.err


def test_a_mixed_pipeline_whose_tokens_depend_on_company_is_told(mixed, capsys, monkeypatch) -> None:
    monkeypatch.setattr("ruvcompile.verify.staged.same_tokens", lambda *_: Sameness(False, 128, 2))
    assert cli.run(["verify", str(mixed / "manifest.toml"), "--tokens", "0", "--json"]) == 5
    told = capsys.readouterr()
    assert json.loads(told.out)["identical"] is False
    assert "depends on its company" in told.err


def test_pipelines_of_one_back_end_are_measured_where_that_is_asked(tmp_path, capsys) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", layers=1)
    build(model, tmp_path / "dist")
    manifest = tmp_path / "dist" / "manifest.toml"
    bytes_before = manifest.read_bytes()
    assert cli.run(["verify", str(manifest), "--json"]) == 0
    assert "equality" not in json.loads(capsys.readouterr().out)
    assert manifest.read_bytes() == bytes_before
    assert cli.run(["verify", str(manifest), "--tokens", "50", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["equality"][0]["alone"] == {}
    assert load_manifest(manifest).equality[0].floats is False
