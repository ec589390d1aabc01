"""Stages are loaded as they would serve, as far as there is memory beside what runs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ruvrun import machine
from ruvrun.doctor.finding import Finding
from ruvrun.doctor.selfcheck import selfcheck
from ruvrun.errors import IntegrityError
from ruvrun.needs import needs
from ruvrun.placement import place, space
from tests.runtime.builds import write_build

ROOM = import_module("ruvrun.doctor.selfcheck")  # by its name it is the function


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The streams with which stages were loaded."""
    found: list[int] = []
    monkeypatch.setattr(ROOM, "load_worker", lambda *_, streams, **__: found.append(streams))
    monkeypatch.setattr(ROOM, "_tokenizer", lambda _: Finding("self-check of the head", "ok", ""))
    return found


def checked(manifest: Path) -> list[str]:
    return [one.state for one in look(manifest)]


def look(manifest: Path, context: int | None = None) -> list[Finding]:
    placement = place(manifest, "b")
    return list(selfcheck(placement, space(placement.manifest, context, None)))


def test_with_all_the_space_that_was_planned_or_with_one_stream_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[int]
) -> None:
    manifest = write_build(tmp_path)
    placement = place(manifest, "b")
    planned = space(placement.manifest, None, None)
    assert planned.streams > 1
    whole, least = (
        needs(placement.manifest, ["b"], context=planned.context, streams=streams)[0].total
        for streams in (planned.streams, 1)
    )
    for free, streams, state in ((whole, planned.streams, "ok"), (whole - 1, 1, "ok"), (least - 1, None, "warn")):
        monkeypatch.setattr(machine, "memory_available", lambda free=free: free)
        loaded.clear()
        assert checked(manifest) == [state]
        assert loaded == ([] if streams is None else [streams])


def test_a_stage_that_computes_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(*_: Any, **__: Any) -> None:
        raise IntegrityError("golden-mismatch", "it computes something else", hint="build it again")

    monkeypatch.setattr(ROOM, "load_worker", differs)
    (found,) = look(write_build(tmp_path))
    assert (found.state, found.exit_code, found.hint) == ("fail", 5, "build it again")
    assert found.why
