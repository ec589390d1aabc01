"""`ruvrun profile` as a person gives it: a stage in, a cost table out, every mistake one error, no process left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ruvcompile.load import load
from ruvcompile.passes import run as run_passes
from ruvrun.costs import CostTable, load_costs
from ruvrun.machine import cores
from ruvrun.profile.beside import with_cores
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.table import MOST_PACKED
from tests.decoders import tiny_program
from tests.runtime.profiles import children_of, write_sheeted

EXPORTED = Path(__file__).parents[1] / "data" / "onnx_decoders" / "optimum-gpt_neox"
QUICK = ("--seconds", "0.1", "--threads", "1")


def command(*words: object) -> list[str]:
    return [sys.executable, "-P", "-m", "ruvrun", "profile", *map(str, words)]


def run(*words: object) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(command(*words, "--json"), capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    return write_sheeted(tiny_program(folder, layers=2), folder)[0][0]


@pytest.fixture(scope="module")
def measured(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[CostTable, dict[str, Any], str]:
    output = tmp_path_factory.mktemp("table") / "costs.toml"
    code, told, said = run(bundle, "-o", output, "--beside", "2", "--rows", "12", *QUICK)
    assert code == 0, told
    assert [path.name for path in output.parent.iterdir()] == ["costs.toml"]
    return load_costs(output), told, said


def test_a_table_holds_units_overhead_and_where_they_are_from(measured: tuple[CostTable, dict[str, Any], str]) -> None:
    table, told, _ = measured
    assert sorted(row.label for row in table.unit) == ["embed", "head", "layers.*.attn", "layers.*.mlp"]
    assert all((row.target, row.threads, row.beside) == ("host", 1, 2) for row in table.unit)
    assert {max(point.rows for point in row.curve) for row in table.unit} == {16}, "as many as were asked for"
    assert all(row.weight_bytes / 2 < row.resident_bytes <= MOST_PACKED * row.weight_bytes for row in table.unit)
    (overhead,) = table.overhead
    assert (overhead.kind, overhead.target, overhead.threads, overhead.beside) == ("decoder", "host", 1, 2)
    assert overhead.stage_ms > 0
    assert overhead.head_ms > 0
    assert 30 << 20 < overhead.runtime_bytes < 300 << 20
    (source,) = table.provenance
    assert f"{cores()} cores" in source.machine
    assert source.threads == 1
    assert "onnxruntime" in source.software
    assert source.features or os.uname().machine not in ("x86_64", "aarch64")
    assert [unit["label"] for unit in told["units"]] == [row.label for row in table.unit]
    assert told["overhead"][0]["stage_ms"] == overhead.stage_ms


def test_a_table_that_is_there_keeps_its_other_rows(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "costs.toml"
    done = subprocess.run(
        command(bundle, "-o", output, *QUICK), capture_output=True, text=True, timeout=300, check=True
    )
    first = load_costs(output)
    assert "layers.*.mlp: " in done.stdout
    assert f"wrote {output}" in done.stdout
    assert "threads" not in done.stderr.replace("--threads 1", ""), "what was given is no default"
    code, _, said = run(bundle, "-o", output, "--seconds", "0.1", "--beside", "9")
    assert code == 0
    assert "--threads 1 (default)" in said
    both = load_costs(output)
    assert {row.beside for row in both.unit} == {1, 9}
    assert [row for row in both.unit if row.beside == 1] == first.unit
    assert {row.beside for row in both.overhead} == {1, 9}


def test_a_decoder_that_runs_as_exported(tmp_path: Path) -> None:
    ((directory, _),) = write_sheeted(run_passes(load(str(EXPORTED))), tmp_path)
    code, told, _ = run(directory, "-o", tmp_path / "costs.toml", *QUICK)
    assert code == 0, told
    assert load_costs(tmp_path / "costs.toml").overhead[0].stage_ms > 0


def test_a_part_of_a_model_has_no_ring(tmp_path: Path) -> None:
    stages = write_sheeted(tiny_program(tmp_path, layers=2), tmp_path, [3])
    code, told, _ = run(stages[1][0], "-o", tmp_path / "costs.toml", *QUICK)
    assert code == 0
    assert told["overhead"] == []
    assert any("not measured" in note for note in told["notes"])
    assert sorted(unit["label"] for unit in told["units"]) == ["head", "layers.*.attn", "layers.*.mlp"]


def test_every_mistake_is_one_error(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "text.toml").write_text("no table")
    for words, ref, code in (
        ((tmp_path / "none", "-o", tmp_path / "costs.toml"), "file-missing", 3),
        ((bundle,), "output-missing", 2),
        ((bundle, "-o", tmp_path / "costs.toml", "--answer"), "answer-alone", 2),
        ((bundle, "--peer", "a", "--answer"), "answer-alone", 2),
        ((bundle, "--peer", "a", "-o", tmp_path / "costs.toml", "--rows", "4"), "option-of-other-models", 2),
        ((bundle, "--answer", "--threads", "2"), "option-of-other-models", 2),
        ((bundle, "-o", tmp_path / "none" / "costs.toml"), "output-folder-missing", 3),
        ((bundle, "-o", tmp_path / "text.toml"), "output-not-ours", 3),
        ((bundle, "-o", tmp_path / "costs.toml", "--cpus", "x"), "cpus-wrong", 2),
        ((bundle, "-o", tmp_path / "costs.toml", "--cpus", "4095", *QUICK), "cpus-refused", 7),
        ((bundle, "-o", tmp_path / "costs.toml", "--beside", "0"), "usage", 2),
        ((bundle, "-o", tmp_path / "costs.toml", "--threads", "4095"), "threads-over-cores", 2),
        ((bundle, "-o", tmp_path / "costs.toml", "--threads", "2", "--cpus", "0"), "threads-over-cores", 2),
        ((bundle, "-o", tmp_path / "costs.toml", "--cpus", "0,1;0"), "threads-over-cores", 2),
        ((bundle, "-o", tmp_path / "costs.toml", "--node", "pi-0"), "node-unknown", 2),
        ((bundle, "-o", tmp_path / "costs.toml", "--seconds", "nan"), "usage", 2),
    ):
        found, told, _ = run(*words)
        assert (told["error"]["ref"], found) == (ref, code), told
        assert told["error"]["hint"]
    assert [path.name for path in tmp_path.iterdir()] == ["text.toml"]


def test_a_stage_that_cannot_run_is_told_in_its_own_words(tmp_path: Path) -> None:
    ((directory, spec),) = write_sheeted(tiny_program(tmp_path, layers=1), tmp_path)
    (directory / spec.model).write_bytes(b"no graph")
    code, told, _ = run(directory, "-o", tmp_path / "costs.toml", *QUICK)
    assert (code, told["error"]["ref"]) == (5, "bundle-altered")
    assert not (tmp_path / "costs.toml").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_it(bundle: Path, tmp_path: Path, number: signal.Signals) -> None:
    words = command(bundle, "-o", tmp_path / "costs.toml", "--beside", "2", "--seconds", "60", "--threads", "1")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while not (children := children_of(process.pid)) and time.monotonic() < until:
            time.sleep(0.02)
        assert children, "it has started something"
        process.send_signal(number)
        process.wait(30)
    until = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
    assert list(tmp_path.iterdir()) == []


def test_company_gets_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ruvrun.machine.allowed", lambda: {0, 1, 2, 5, 7})
    assert with_cores(Conditions(beside=1)).cpus == ()
    assert with_cores(Conditions(beside=3)).cpus == ((0,), (1,), (2,))
    assert with_cores(Conditions(threads=2, beside=2)).cpus == ((0, 1), (2, 5))
    assert with_cores(Conditions(threads=2, beside=9)).cpus == ((0, 1), (2, 5)), "no more than there are cores for"
    assert with_cores(Conditions(beside=2, cpus=((5,),))).cpus == ((5,), (0,)), "the named one is not given twice"
    named = ((7,), (5,))
    assert with_cores(Conditions(beside=2, cpus=named)).cpus == named
