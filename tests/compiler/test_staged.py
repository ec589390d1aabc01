"""What goes wrong where the stages of a build are run together is told in the words of the run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ruvcompile.measure.staged import NotMeasuredError, Reality, measure_staged


def test_an_error_of_the_run_is_that_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies in the folder from which a build is started: it is no part of the runtime."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('not the one that was meant')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotMeasuredError) as error:
        measure_staged(tmp_path / "manifest.toml", (1,))
    assert error.value.ref == "file-missing"
    assert error.value.hint == "check the path"


def test_a_run_that_says_nothing_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    run.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(run))
    with pytest.raises(NotMeasuredError) as error:
        measure_staged(tmp_path / "manifest.toml", (1,))
    assert error.value.message == "ruvrun bench ended: exit code 3: out of luck"
    assert error.value.context == ("out of luck",)


@pytest.mark.parametrize("streams", [(1, 4), (1,)])
def test_each_number_of_streams_is_seen_by_itself(
    streams: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run with several numbers and of one with a single one; a stage that nobody asked anything took no time."""
    runs = [
        {
            "streams": count,
            "tokens_per_s": 10.0 * count,
            "stages": [
                {"measured_ms": 2.0 * count, "own_ms": 1.5 * count, "peak_rss_bytes": 99},
                {"measured_ms": None, "own_ms": None, "peak_rss_bytes": None},
            ],
        }
        for count in streams
    ]
    told = json.dumps({"runs": runs, "mean": []} if len(runs) > 1 else runs[0])
    run = tmp_path / "run"
    run.write_text(f"#!/bin/sh\ncase \"$*\" in *'--streams {','.join(map(str, streams))} '*) echo '{told}';; esac\n")
    run.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(run))
    assert measure_staged(tmp_path / "manifest.toml", streams) == tuple(
        Reality((2.0 * count, 0.0), (99, None), 10.0 * count, count, (1.5 * count, 0.0)) for count in streams
    )
