"""What `ruvrun profile` makes of several stages: who measured what with what, and nothing twice."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ruvrun import machine
from ruvrun.bundle import BUNDLE, StageSpec
from ruvrun.costs import Overhead, Rate, UnitCost
from ruvrun.errors import UsageError
from ruvrun.manifest import MANIFEST, dump_manifest, dump_toml
from ruvrun.profile import decoder, table
from ruvrun.profile.clocked import Count
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.provenance import provenance
from ruvrun.profile.sheet import Sheet, SheetUnit
from ruvrun.profile.table import Segment, profile, segments
from tests.decoders import tiny_program
from tests.runtime.manifests import example
from tests.runtime.profiles import write_sheeted

SPEC = StageSpec(
    kind="graph", backend="onnxruntime", target="host", model="m", first=True, last=True, inputs=[], outputs=[],
    forward=[], files=[],
)  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Stages are named after their units, of which each takes a millisecond more than the last; who was measured."""
    found: list[tuple[str, str]] = []

    def sheet(directory: Path, _spec: StageSpec) -> Sheet:
        return Sheet(unit=[SheetUnit(key=name, label=name, nodes=[name]) for name in directory.name])

    def measure(segment: Segment, own: Sheet, *_: Any) -> tuple[list[UnitCost], None]:
        found.append((segment.directory.name, segment.spec.backend))
        what = {"target": segment.spec.target, "backend": segment.spec.backend, "threads": 1, "source": 0}
        return [UnitCost(key=unit.key, label=unit.key, ms=float(len(found)), **what) for unit in own.unit], None

    monkeypatch.setattr(table, "load_sheet", sheet)
    monkeypatch.setattr(table, "_measure", measure)
    monkeypatch.setattr(table, "back_end", lambda _spec: None)
    return found


def stage(name: str, backend: str = "onnxruntime", target: str = "host") -> Segment:
    return Segment(Path(name), msgspec.structs.replace(SPEC, backend=backend, target=target), network=False)


def test_a_part_that_two_stages_have_is_measured_once_on_each_back_end(measured: list[tuple[str, str]]) -> None:
    stages = [stage("ab"), stage("ba"), stage("bc"), stage("ab", "openvino"), stage("b", target="mine")]
    found = profile(stages, Conditions()).table
    assert measured == [("ab", "onnxruntime"), ("bc", "onnxruntime"), ("ab", "openvino"), ("b", "onnxruntime")]
    rows = {(row.key, row.target, row.backend): row.ms for row in found.unit}
    assert rows == {
        ("a", "host", "onnxruntime"): 1.0, ("b", "host", "onnxruntime"): 1.0, ("c", "host", "onnxruntime"): 2.0,
        ("a", "host", "openvino"): 3.0, ("b", "host", "openvino"): 3.0, ("b", "mine", "onnxruntime"): 4.0,
    }  # fmt: skip


def test_each_back_ends_rows_name_its_own_version(
    measured: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rates(target: str, backend: str, threads: int, **_: Any) -> list[Rate]:
        own = {"target": target, "backend": backend, "threads": threads}
        return [Rate(name="memory_bandwidth", value=1.0, unit="B/s", source=0, **own)]

    monkeypatch.setattr(table, "measure_rates", rates)
    stages = [stage("a"), stage("a", "openvino"), stage("a", "openvino-gpu")]
    made = profile(stages, Conditions(), model="m", figures=True)
    for row in (*made.table.unit, *made.table.rate):
        source = made.table.provenance[row.source]
        package = "onnxruntime" if row.backend == "onnxruntime" else "openvino"
        assert f"{package} {metadata.version(package)}" in source.software
        assert source.model == "m"
    assert [row.backend for row in made.table.rate] == ["onnxruntime", "openvino"]
    assert any("is not measured on openvino-gpu" in note for note in made.notes)


def test_threads_without_a_core_are_told_of(measured: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 2)
    told = [any("wait for one another" in note for note in profile([stage("a")], Conditions(n)).notes) for n in (2, 3)]
    assert told == [False, True]


def test_a_whole_stage_is_measured_in_its_company_and_not_before_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((directory, spec),) = write_sheeted(tiny_program(tmp_path, layers=1), tmp_path)
    events: list[str] = []

    @contextmanager
    def company(*_: Any) -> Iterator[Callable[[], None]]:
        yield lambda: events.append("at work")
        events.append("gone")

    def ring(*_: Any, **__: Any) -> tuple[Overhead, Count]:
        events.append("ring")
        kind = {"kind": "decoder", "target": "host", "backend": "onnxruntime", "threads": 1}
        return Overhead(**kind, source=0, beside=2), Count([], 0, 0, 0)

    def units(*_: Any) -> list[UnitCost]:
        events.append("units")
        return []

    monkeypatch.setattr(table, "company", company)
    monkeypatch.setattr(table, "measure_overhead", ring)
    monkeypatch.setattr(decoder, "measure_decoder", units)
    made = profile([Segment(directory, spec, network=False)], Conditions(beside=2))
    assert events == ["at work", "ring", "at work", "units", "gone"]
    assert [row.beside for row in made.table.overhead] == [2]


def test_a_node_that_there_is_not_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / MANIFEST).write_bytes(dump_manifest(example()))
    with pytest.raises(UsageError, match="no node 'aa'") as caught, segments(tmp_path / "build", "aa"):
        pass
    assert (caught.value.ref, caught.value.hint) == ("node-unknown", "did you mean 'a'?")
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / BUNDLE).write_bytes(dump_toml(SPEC))
    with pytest.raises(UsageError, match="is of no node") as caught, segments(tmp_path / "bundle", "a"):
        pass
    assert caught.value.exit_code == 2


def test_a_table_says_on_what_with_what_and_when() -> None:
    before, found, after = datetime.date.today(), provenance("onnxruntime", "net", 3), datetime.date.today()
    own, python = f"ruvrun {metadata.version('ruvrun')}", f"Python {platform.python_version()}"
    assert found.machine == f"{platform.machine()}, {machine.cores()} cores"
    assert (found.cpu, found.features) == (machine.cpu_name(), machine.cpu_features())
    assert found.software == f"{own}, onnxruntime {metadata.version('onnxruntime')}, {python}"
    assert found.date in {before.isoformat(), after.isoformat()}
    assert (found.model, found.threads) == ("net", 3)
    assert provenance("", "", 0).software == f"{own}, {python}", "a link has no back end"
