"""The process that measures: its errors, its last words, its progress and its notes reach the person."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ruvcompile.errors import InputError, MachineError
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure import profiled
from ruvcompile.measure.terms import Terms
from ruvcompile.program import Program
from ruvcompile.progress import Progress, Silent
from ruvrun.costs import CostTable
from tests.decoders import tiny_program
from tests.runtime.profiles import write_sheeted


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("model"), layers=2)


def test_what_goes_wrong_there_is_raised_here(program, tmp_path) -> None:
    """An error of the command, as the error it is."""
    ((directory, _),) = write_sheeted(program, tmp_path)
    (directory / "units.toml").unlink()
    with pytest.raises(InputError) as error:
        profile(directory, tmp_path)
    assert error.value.ref == "probe-not-whole"
    assert error.value.hint


def profile(directory: Path, scratch: Path, progress: Progress = Silent()) -> CostTable:  # noqa: B008 - nothing in it
    terms = Terms("host", "onnxruntime", 1, 1, WeightStore(scratch / "store"), scratch, progress)
    return profiled.profile_stage(directory, terms, model="m")


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("import sys; print('out of luck', file=sys.stderr); sys.exit(1)", "exit code 1"),
    ],
)
def test_a_process_that_dies_is_told_with_its_last_words(tmp_path, monkeypatch, script: str, how: str) -> None:
    started = profiled._started
    monkeypatch.setattr(profiled, "_started", lambda _: started([sys.executable, "-c", script]))
    with pytest.raises(MachineError) as error:
        profile(tmp_path, tmp_path)
    assert error.value.ref == "profile-died"
    assert how in error.value.message
    assert ("out of luck" in error.value.context) == ("luck" in script)


def test_progress_and_notes_reach_the_person(tmp_path, monkeypatch) -> None:
    (tmp_path / "costs.toml").write_text("format = 1\n")
    script = (
        "import sys, pathlib\n"
        "print('steps 1/6', 'steps 2/6', 'profile 1/3', sep='\\n', file=sys.stderr)\n"
        f"pathlib.Path({str(tmp_path / 'measured.toml')!r}).write_text('format = 1\\n')\n"
        'print(\'{"notes": ["noisy: very"]}\')\n'
    )
    started = profiled._started
    monkeypatch.setattr(profiled, "_started", lambda _: started([sys.executable, "-c", script]))
    told = Told()
    table = profile(tmp_path, tmp_path, told)
    assert table == CostTable()
    assert (told.steps, told.notes) == (3, ["noisy: very"])
    assert not (tmp_path / "measured.toml").exists()


class Told(Silent):
    """Counts steps and keeps notes."""

    def __init__(self) -> None:
        self.steps = 0
        self.notes: list[str] = []

    def step(self, *_: object, **__: object) -> Any:
        return self

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, amount: int = 1) -> None:
        self.steps += amount

    def note(self, text: str) -> None:
        self.notes.append(text)
