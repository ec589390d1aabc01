"""What goes wrong where the stages of a build are run together is told in the words of the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ruvcompile.measure.staged import NotMeasuredError, measure_staged


def test_an_error_of_the_run_is_that_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies in the folder from which a build is started: it is no part of the runtime."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('not the one that was meant')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotMeasuredError) as error:
        measure_staged(tmp_path / "manifest.toml", 1)
    assert error.value.ref == "file-missing"
    assert error.value.hint == "check the path"


def test_a_run_that_says_nothing_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    run.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(run))
    with pytest.raises(NotMeasuredError) as error:
        measure_staged(tmp_path / "manifest.toml", 1)
    assert error.value.message == "ruvrun bench ended: exit code 3: out of luck"
    assert error.value.context == ("out of luck",)
