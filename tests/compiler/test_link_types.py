"""``--link-type``: what plans make of links at half the bytes, and what builds and ``verify`` make of the answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ruvcompile import cli, front
from ruvcompile import compile as steps
from ruvcompile.errors import IntegrityError, UsageError
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.progress import Silent
from ruvcompile.settle.links import WORTH_IT
from ruvcompile.verify.equality import measure
from ruvcompile.verify.staged import is_rounded, same_chains
from ruvrun.costs import load_costs
from ruvrun.manifest import Tensor, load_manifest
from ruvrun.pipeline import halves, join_local
from tests.assumed import assume_costs
from tests.compiler.builds import Noting, build, check_whole, options, plan, write_costs
from tests.decoders import Stage, ask, open_pipeline, tiny_program
from tests.models import write_tiny_gguf

LAYERS = 3
SLOW = '\n[[link]]\nbandwidth = "512kbit"\nlatency = "0.1ms"\n'
FAST = '\n[[link]]\nbandwidth = "1Gbit"\nlatency = "0.1ms"\n'


@pytest.fixture(scope="module")
def model(folder) -> Path:
    return write_tiny_gguf(folder / "tiny.gguf", layers=LAYERS)


@pytest.fixture(scope="module")
def half(model, folder) -> Path:
    """A build of two stages whose link rounds."""
    build(model, folder / "half", link_type="f16")
    return folder / "half"


@pytest.fixture(scope="module")
def costs(model, folder) -> Path:
    """Every unit costs 1 ms a row."""
    build(model, folder / "plain")
    return write_costs(folder / "even.toml", load_costs(folder / "plain" / "costs.toml"), {})


def over(link: str, folder: Path) -> str:
    """A fleet of two machines with this link between them."""
    nodes = [
        f'[[node]]\nname = "{name}"\ntarget = "host"\nthreads = 1\naddress = "10.0.0.{number}"\n'
        for number, name in enumerate("ab", 1)
    ]
    path = folder / f"{'slow' if link == SLOW else 'fast'}.toml"
    path.write_text("\n".join(nodes) + link)
    return str(path)


@pytest.fixture
def _one_thread(monkeypatch) -> None:
    monkeypatch.setattr("ruvcompile.compile.allowed", lambda: {0, 1})
    monkeypatch.setattr("ruvcompile.compile.cores", lambda: 2)


def planned(model: Path, folder: Path, costs: Path, link: str, kind: str) -> dict[str, Any]:
    # The cut is forced, so that only the link differs.
    flags = {"costs": (str(costs),), "cut": "layers.1/attn/add", "streams": 8, "replicas": 1}
    return plan(model, folder, fleet=over(link, folder), link_type=kind, **flags)


@pytest.mark.usefixtures("_one_thread")
def test_at_half_the_bytes_a_link_takes_half_the_time(model, folder, costs) -> None:
    wide, narrow = (planned(model, folder, costs, SLOW, kind) for kind in ("f32", "f16"))
    assert (wide["stages"][0]["cut_bytes"], narrow["stages"][0]["cut_bytes"]) == (256, 128)
    # One row of 256 bytes over 64 kB/s is 4 ms.
    apart = 1e3 / wide["predicted_tokens_per_s_one"] - 1e3 / narrow["predicted_tokens_per_s_one"]
    assert apart == pytest.approx(2.0, abs=0.05)
    assert narrow["link_type"] == "f16"
    assert "link_type" not in wide
    for key in ("weight_bytes", "kv_bytes", "predicted_rss_bytes"):
        assert [stage[key] for stage in wide["stages"]] == [stage[key] for stage in narrow["stages"]], key


@pytest.mark.usefixtures("_one_thread")
def test_auto_takes_float16_on_a_slow_link_and_not_on_a_fast_one(model, folder, costs, tmp_path) -> None:
    rows = {"embed": 0.5, "layers.*.attn": 0.5, "layers.*.mlp": 0.5, "head": 0.5}
    light = write_costs(tmp_path / "light.toml", load_costs(costs), rows)
    slow, fast = (planned(model, folder, light, link, "auto") for link in (SLOW, FAST))
    wide, narrow = (planned(model, folder, light, SLOW, kind) for kind in ("f32", "f16"))
    assert narrow["predicted_tokens_per_s"] > WORTH_IT * wide["predicted_tokens_per_s"]
    assert slow["link_type"] == "f16"
    assert slow["predicted_tokens_per_s"] == narrow["predicted_tokens_per_s"]
    assert "link_type" not in fast
    assert fast["stages"][0]["cut_bytes"] == 256


def test_one_stage_has_no_links_to_round(model, tmp_path) -> None:
    result = build(model, tmp_path / "dist", nodes="1", link_type="f16")
    manifest, _ = check_whole(tmp_path / "dist")
    assert manifest.equality == []
    assert "link_type" not in result


def wires(tensors: list[Tensor]) -> set[str]:
    return {tensor.wire for tensor in tensors}


def test_a_build_says_what_crosses_its_links_and_how_far_that_is_off(half) -> None:
    manifest, specs = check_whole(half)
    first, last = manifest.stage
    assert (wires(first.inputs), wires(first.outputs)) == ({""}, {"float16"})
    assert (wires(last.inputs), wires(last.outputs)) == ({"float16"}, {""})
    assert [spec.inputs for spec in specs] == [stage.inputs for stage in manifest.stage]
    (entry,) = manifest.equality
    assert (entry.tokens, entry.floats) == (256, False)
    assert 0 < entry.mean_kl <= 0.01
    assert {path.read_bytes() for path in half.rglob("manifest.toml")} == {(half / "manifest.toml").read_bytes()}


def test_verify_holds_such_a_build_against_bounds(half, model, capsys, monkeypatch) -> None:
    arguments = ["verify", str(half / "manifest.toml"), "--model", str(model), "--tokens", "100"]
    assert cli.run([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["identical"] is told["rounded"] is True
    assert "mixed" not in told
    (figures,) = told["equality"]
    assert figures["mean_kl"] != figures["alone"]["onnxruntime"]["mean_kl"], "the link is part of what is measured"
    assert cli.run(arguments) == 0
    assert capsys.readouterr().out.startswith("in company against alone: identical")
    monkeypatch.setattr("ruvcompile.verify.equality.MOST_KL", 0.0)
    assert cli.run(arguments) == 5
    said = capsys.readouterr().err
    assert "error[verify-too-far]" in said
    assert "--link-type f32" in said


def two(program: Any, folder: Path, link_type: str, backend: str = "onnxruntime") -> list[Stage]:
    store, units = WeightStore(folder / "store"), program_units(program)
    kind = {"backend": backend, "target": "host", "link_type": link_type}
    return [
        (path := folder / f"{backend}-{link_type}-{number}", write_stage(program, piece, path, store, **kind))
        for number, piece in enumerate(pieces(program, units, (len(units) // 2,)))
    ]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_only_the_links_are_off_and_by_little(backend, tmp_path) -> None:
    program = tiny_program(tmp_path, "int4", accuracy=1, layers=LAYERS)
    wide, narrow = (two(program, tmp_path, kind, backend) for kind in ("f32", "f16"))
    assert (is_rounded(wide), is_rounded(narrow)) == (False, True)
    exact, rounded = measure(program, {0: wide, 1: narrow}, 150, tmp_path / "uncut", 1, Silent())
    assert (exact.exact, rounded.exact) == (True, False)
    assert exact.found.kl < 1e-9 < rounded.found.kl < 1e-4
    assert rounded.found.top1 > 0.98
    assert rounded.beside[backend].kl < 1e-9
    assert rounded.beyond == []
    assert same_chains(program, [narrow], tmp_path / "scratch", 1).same, "alone and in company"


def test_large_stages_round_at_their_ends_and_nowhere_inside(tmp_path, monkeypatch) -> None:
    program = tiny_program(tmp_path, "int4", layers=LAYERS)
    build(tmp_path / "tiny.gguf", tmp_path / "whole", link_type="f16", quant="int4")
    monkeypatch.setattr("ruvcompile.parts.PART_BYTES", 1)
    build(tmp_path / "tiny.gguf", tmp_path / "parted", link_type="f16", quant="int4")
    assert program.decoder is not None
    whole, parted = (load_manifest(tmp_path / name / "manifest.toml") for name in ("whole", "parted"))
    assert parted.program.loss == whole.program.loss
    for node in ("host-0", "host-1"):
        goldens = [np.load(tmp_path / name / "bundles" / node / "golden.npz") for name in ("whole", "parted")]
        assert all(np.array_equal(goldens[0][key], goldens[1][key]) for key in goldens[0].files)


def test_answers_over_links_that_round_come_from_the_engine_too(tmp_path) -> None:
    program = tiny_program(tmp_path, "int4", accuracy=1, layers=LAYERS)
    requests = [ask(number, range(3 + number, 20), 12) for number in range(3)]
    narrow = open_pipeline(two(program, tmp_path, "f16"), context=64, streams=3)
    together = narrow.generate(requests)
    assert all(len(tokens) == 12 for tokens in together.values())
    for request in requests:
        assert narrow.generate([request])[request.id] == together[request.id], "whatever the company"


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_tokens_that_are_too_loud_for_a_link_end_nobody(backend, tmp_path, monkeypatch) -> None:
    """Half of the vocabulary is a million times as large, so some rows of most steps are beyond float16."""
    monkeypatch.setattr("tests.models.np.random.default_rng", lambda seed: Loud(seed, slice(None, None, 2)))
    program = tiny_program(tmp_path, "int4", layers=LAYERS, tied=False)
    monkeypatch.undo()
    narrow = join_local(two(program, tmp_path, "f16", backend), context=64, streams=4)
    seen: list[bool] = []
    kept = narrow.workers[1].handle

    def handle(message: Any, tensors: Any) -> Any:
        seen.extend(array.dtype == np.float32 for array in tensors.values())
        return kept(message, tensors)

    monkeypatch.setattr(narrow.workers[1], "handle", handle)
    loud, quiet = [range(4, 12, 2), range(40, 50, 2)], [range(5, 13, 2), range(41, 51, 2)]
    requests = [ask(number, prompt, 24) for number, prompt in enumerate([*loud, *quiet])]
    together = narrow.generate(requests)
    assert set(seen) == {True, False}
    for request in requests:
        assert len(together[request.id]) == 24
        assert narrow.generate([request])[request.id] == together[request.id], "whatever the company"
    wide = join_local(two(program, tmp_path, "f32", backend), context=64, streams=4)
    assert [tokens[0] for tokens in wide.generate(requests).values()] == [tokens[0] for tokens in together.values()]


def built(model: Path, folder: Path, told: Noting, kind: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        assume_costs(patch)
        patch.setattr("ruvcompile.settle.links.WORTH_IT", 0.0)  # so that the choice falls on float16
        steps.build(options(model, folder / "dist", link_type=kind), told)


def test_answers_too_far_off_are_refused_or_go_over_float32(model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ruvcompile.verify.equality.MOST_KL", 0.0)
    with pytest.raises(IntegrityError) as error:
        built(model, tmp_path, Noting(), "f16")
    assert (error.value.ref, error.value.exit_code) == ("link-too-far", 5)
    assert "mean KL" in error.value.context[0]
    assert not (tmp_path / "dist").exists()
    told = Noting()
    built(model, tmp_path, told, "auto")
    manifest, specs = check_whole(tmp_path / "dist")
    assert all(wires([*spec.inputs, *spec.outputs]) == {""} for spec in specs)
    assert manifest.equality == []
    assert sum(note.startswith("links carry float32 after all: ") for note in told.notes) == 1


def test_activations_beyond_float16_are_refused_by_their_magnitude(tmp_path, monkeypatch) -> None:
    """An embedding a million times as large: norms make the same of it, and a link cannot hold it."""
    monkeypatch.setattr("tests.models.np.random.default_rng", lambda seed: Loud(seed))
    model = write_tiny_gguf(tmp_path / "loud.gguf", layers=LAYERS, quant="F32")
    monkeypatch.undo()
    with pytest.raises(IntegrityError) as error:
        built(model, tmp_path, Noting(), "f16")
    assert (error.value.ref, error.value.exit_code) == (halves.OVERFLOW, 5)
    assert "has a value of magnitude" in error.value.message
    assert not (tmp_path / "dist").exists()
    told = Noting()
    built(model, tmp_path, told, "auto")
    assert any("has a value of magnitude" in note for note in told.notes)
    assert check_whole(tmp_path / "dist")[0].equality == []


class Loud:
    """Draws some rows of the embedding, which comes first, a million times as large."""

    def __init__(self, seed: int, rows: slice = slice(None)) -> None:
        self._random, self._scale, self._rows = np.random.Generator(np.random.PCG64(seed)), 1e6, rows

    def standard_normal(self, shape: Any) -> Any:
        values = self._random.standard_normal(shape)
        values[self._rows] *= self._scale
        self._scale = 1.0
        return values


def test_a_type_that_there_is_not_is_refused(model, capsys) -> None:
    assert cli.run(["plan", str(model), "--target", "host", "--link-type", "f8"]) == 2
    said = capsys.readouterr().err
    assert "error[link-type-unknown]" in said
    assert "'f8'" in said


def test_a_decoder_that_is_run_as_exported_sends_what_it_has(model, tmp_path, monkeypatch) -> None:
    kept = front.run_passes

    def exported(program: Any) -> Any:
        made = kept(program)
        return replace(made, decoder=replace(made.decoder, exported=True))

    monkeypatch.setattr(front, "run_passes", exported)
    with pytest.raises(UsageError, match="run as it was exported"):
        build(model, tmp_path / "dist", link_type="f16")
