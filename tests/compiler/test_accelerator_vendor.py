"""The vendor's compiler, where it is installed: what it makes, what it refuses, and the script of its commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ruvcompile.accelerator.vendor import compile_parts
from ruvcompile.errors import FitError
from ruvcompile.targets import load_target
from tests.compiler.accelerators import build


def _vendor(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A `hailo` command that does what the script says, and keeps what it was called with."""
    folder.mkdir()
    command = folder / "hailo"
    command.write_text(f'#!/bin/bash\nset -eu\necho "$@" >>{folder}/calls\n{script}\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "calls"


MAKES = """
case "$1" in
    parser) test -f "$3"; touch "${@: -1}" ;;
    optimize) test -f "$2"; touch "${@: -1}" ;;
    compiler) test -f "$2"; touch "$(basename "$2" _optimized.har).hef" ;;
esac
"""


def test_where_the_compiler_is_the_parts_are_compiled(
    detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _vendor(tmp_path / "bin", monkeypatch, MAKES)
    result = build(detector, tmp_path / "dist")
    assert result["compiled"] == ["part_0.hef", "part_2.hef"]
    assert all((tmp_path / "dist.parts" / name).is_file() for name in result["compiled"])
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["parser", "optimize", "compiler"] * 2
    assert calls.read_text().count("--hw-arch hailo10h") == 6


def test_what_the_compiler_refuses_is_told_in_its_words(
    detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _vendor(tmp_path / "bin", monkeypatch, 'echo "UnsupportedLayerError: no"; read -r answer; exit 0')
    with pytest.raises(FitError) as caught:
        build(detector, tmp_path / "dist")
    assert caught.value.ref == "accelerator-refuses"
    assert "UnsupportedLayerError: no" in caught.value.context
    assert (tmp_path / "dist.parts" / "part_0.onnx").is_file()
    assert not list((tmp_path / "dist.parts").glob("*.hef"))


def test_a_step_of_a_command_that_is_not_here_is_told(tmp_path: Path) -> None:
    (tmp_path / "part_0.onnx").write_bytes(b"")
    accelerator = load_target("pi5-hailo10h").accelerator
    assert accelerator is not None
    with pytest.raises(FitError) as caught:
        compile_parts(tmp_path, {"part_0": ["no-such-command part_0.onnx"]}, accelerator)
    assert caught.value.ref == "accelerator-refuses"
    assert "no-such-command" in caught.value.context[-1]


def test_a_compiler_that_makes_nothing_is_told(detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _vendor(tmp_path / "bin", monkeypatch, "exit 0")
    with pytest.raises(FitError, match=r"made no part_0\.hef"):
        build(detector, tmp_path / "dist")


def test_the_script_runs_the_same_commands(
    detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_installed: None
) -> None:
    with pytest.raises(FitError):
        build(detector, tmp_path / "dist")
    script = tmp_path / "dist.parts" / "compile.sh"
    monkeypatch.setenv("PATH", os.defpath)
    refused = subprocess.run([str(script)], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr.count("\n  hint: ")) == (7, 1)
    assert refused.stderr.startswith("error[compiler-missing]: there is no command hailo here\n")
    _vendor(tmp_path / "bin", monkeypatch, MAKES)
    subprocess.run([str(script)], check=True)
    assert sorted(path.name for path in script.parent.glob("*.hef")) == ["part_0.hef", "part_2.hef"]
