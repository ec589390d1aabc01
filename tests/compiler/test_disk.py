"""Room on the disk: asked for before anything is written, and one error where it runs out all the same."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ruvcompile import cli, parts, passes
from ruvcompile.load import load
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import program_units
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from tests.compiler.builds import TWO_STAGES, build
from tests.models import write_tiny_gguf

LAYERS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("disk") / "tiny.gguf", quant="F16", layers=LAYERS, tied=False)


@pytest.fixture(scope="module")
def source(model) -> Program:
    return passes.run(load(str(model)))


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=size))


def test_the_disk_is_asked_before_anything_is_written(model, tmp_path, monkeypatch, capsys) -> None:
    free(monkeypatch, 64 << 20)
    monkeypatch.setattr(WeightStore, "put", lambda *_: pytest.fail("a weight was written"))
    assert cli.run(["build", str(model), *TWO_STAGES, "--output", str(tmp_path / "dist"), "--json"]) == 7
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["ref"] == "disk-short"
    assert "64.0 MiB are free" in error["message"]
    assert list(tmp_path.iterdir()) == []


def test_there_is_room_for_what_is_said_to_be_needed(model, tmp_path, monkeypatch) -> None:
    """The weights of the bundles together, with what both hold: never more than was asked for."""
    asked: list[int] = []
    monkeypatch.setattr("ruvcompile.disk.SPARE_BYTES", 0)
    usage = shutil.disk_usage("/")

    class Free(int):
        def __lt__(self, needed: object) -> bool:
            return bool(asked.append(int(needed)))  # type: ignore[call-overload, func-returns-value]

        def __add__(self, _there: int) -> Free:
            return self

    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=Free(1 << 60)))
    build(model, tmp_path / "dist", quant="int4")
    weights = sum(path.stat().st_size for path in (tmp_path / "dist").rglob("weights/*.bin"))
    needed = asked[0]
    assert weights <= needed + 64 * 1024
    assert needed < 1.3 * weights


FULL = """
import resource, sys
from ruvcompile import cli
from ruvcompile.lower import weights
original = weights.WeightStore.put
def put(self, values):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
    return original(self, values)
weights.WeightStore.put = put
sys.exit(cli.run(sys.argv[2:]))
"""


@pytest.mark.parametrize("limit", [0, 5000, 60_000])
def test_a_disk_that_fills_up_is_one_error_and_leaves_nothing(model, tmp_path, limit: int) -> None:
    """From the first weight on no file can grow beyond the limit, wherever the build then is."""
    build(model, tmp_path / "dist", quant="int8")
    before = (tmp_path / "dist" / "manifest.toml").read_bytes()
    words = ["--quant", "int8", "--costs", str(tmp_path / "dist" / "costs.toml"), "-o", str(tmp_path / "dist")]
    command = ["build", str(model), *TWO_STAGES, *words, "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(limit), *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("error[") == 1
    assert os.strerror(errno.EFBIG) in done.stderr or "trace-cut-off" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]
    assert (tmp_path / "dist" / "manifest.toml").read_bytes() == before


def test_weights_that_cannot_be_linked_are_counted_twice(source, tmp_path, monkeypatch) -> None:
    from ruvcompile.disk import check_disk
    from ruvrun.errors import MachineError

    program = quantise(source, "int4")
    units = program_units(program)
    whole = parts.weight_bytes(program, units)
    monkeypatch.setattr("ruvcompile.disk.SPARE_BYTES", 0)
    free(monkeypatch, whole)
    check_disk(tmp_path, program, units, 1)
    free(monkeypatch, whole - 1)
    with pytest.raises(MachineError, match="disk"):
        check_disk(tmp_path, program, units, 1)
    monkeypatch.setattr("ruvcompile.disk.can_link", lambda _: False)
    free(monkeypatch, 2 * whole - 1)
    with pytest.raises(MachineError, match="disk"):
        check_disk(tmp_path, program, units, 1)
    free(monkeypatch, 2 * whole)
    check_disk(tmp_path, program, units, 1)
