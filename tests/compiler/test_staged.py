"""What goes wrong where the stages of a build are run together is told in the words of the run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ruvcompile.measure.staged import NotMeasuredError, Reality, mean_of, measure_staged, turns


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
    """Of a run with several numbers and of one with a single one; a stage that nobody asked anything took no time.

    The smaller numbers take another turn, for which no prompt is computed again.
    """
    taken = turns(streams, graph=False)
    runs = [
        {
            "streams": count,
            "tokens_per_s": 10.0 * count,
            "stages": [
                {"measured_ms": 2.0 * count, "own_ms": 1.5 * count, "peak_rss_bytes": 99},
                {"measured_ms": None, "own_ms": None, "peak_rss_bytes": None},
            ],
        }
        for count in taken
    ]
    told = json.dumps({"runs": runs, "mean": []} if len(runs) > 1 else runs[0])
    run = tmp_path / "run"
    asked = f"--streams {','.join(map(str, taken))} --prompt-tokens 68 --max-tokens 64 --reuse"
    run.write_text(f"#!/bin/sh\ncase \"$*\" in *'{asked}') echo '{told}';; esac\n")
    run.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(run))
    assert measure_staged(tmp_path / "manifest.toml", streams, depth=100) == tuple(
        Reality((2.0 * count, 0.0), (99, None), 10.0 * count, count, (1.5 * count, 0.0)) for count in streams
    )


def test_what_was_seen_twice_is_told_by_its_mean() -> None:
    """Of rates the one of the mean round: 100 and 50 per second are 10 and 20 ms."""
    once, again = (
        Reality((2.0, 0.0), (99, None), 100.0, 1, (1.5, 0.0)),
        Reality((4.0, 3.0), (70, 7), 50.0, 1, (2.5, 1.0)),
    )
    expected = Reality((3.0, 3.0), (99, 7), pytest.approx(2 / 0.03), 1, (2.0, 1.0))  # type: ignore[arg-type]
    assert mean_of([once, again]) == expected


def test_every_number_but_many_prompts_takes_two_turns() -> None:
    assert turns((1, 2, 8), graph=False) == (1, 2, 8, 1, 2)
    assert turns((1,), graph=False) == (1, 1)
    assert turns((1, 2), graph=True) == (1, 2, 1, 2)
