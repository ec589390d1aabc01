"""The measure step: what a table lacks is measured by the runtime's own command, and nothing else."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ruvcompile.errors import InputError, MachineError
from ruvcompile.fleet import FleetNode
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure import decoder as measuring
from ruvcompile.measure import held, profiled
from ruvcompile.measure.fleet import measure_fleet
from ruvcompile.measure.given import read_given
from ruvcompile.measure.terms import Terms
from ruvcompile.measure.threads import as_measured
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.plan import Member
from ruvcompile.program import Program
from ruvcompile.progress import Progress, Silent
from ruvcompile.targets import load_target
from ruvrun.costs import CostTable, LinkCost, Overhead, Point, Provenance, UnitCost, dump_costs, merge
from tests.compiler.builds import rates
from tests.decoders import tiny_program
from tests.runtime.profiles import write_sheeted

HERE = Provenance(machine="m", cpu="c", software="s", date="2026-01-01")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("model"), layers=2)


def keys_of(program: Program) -> tuple[str, ...]:
    return unit_keys(program, program_units(program))


def table_of(program: Program, *, beside: int = 1, overhead: bool = True, curve: bool = True) -> CostTable:
    """A table of this machine with one thread."""
    rows = [
        UnitCost(
            key=key, label="unit", target="host", backend="onnxruntime", threads=1, beside=beside, ms=1.0 + beside,
            source=0, curve=[Point(ms=1.0), Point(ms=2.0, rows=2)] if curve else [],
        )
        for key in dict.fromkeys(keys_of(program))
    ]  # fmt: skip
    own = Overhead(
        kind="decoder", target="host", backend="onnxruntime", threads=1, beside=beside, source=0, stage_ms=beside
    )
    return CostTable(provenance=[HERE], unit=rows, overhead=[own] if overhead else [])


def member(name: str, *, threads: int = 1, beside: int = 1) -> Member:
    return Member(
        FleetNode(name=name, target="host", address="local"),
        load_target("host", None).on("onnxruntime"),
        threads,
        beside,
    )


class Measured:
    """In place of the command: what it was asked for, and a table of it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.asked: list[tuple[int, int]] = []
        self.rows: list[int] = []

    def __call__(self, directory: Path, terms: Terms, **_: Any) -> CostTable:
        assert (directory / "units.toml").is_file()
        self.rows.append(terms.rows)
        self.asked.append((terms.threads, terms.beside))
        return msgspec.structs.replace(table_of(self.program, beside=terms.beside), provenance=[HERE])


def fleet(program: Program, known: CostTable, members: list[Member], folder: Path, **more: int) -> CostTable:
    units = program_units(program)
    return measure_fleet(
        program, units, keys_of(program), known, members, {},
        store=WeightStore(folder / "store"), scratch=folder / "scratch", progress=Silent(), **more,
    )  # fmt: skip


def test_every_kind_of_member_is_measured_in_its_company(program, tmp_path, monkeypatch) -> None:
    command = Measured(program)
    monkeypatch.setattr(measuring, "profile_stage", command)
    members = [member("a", beside=2), member("b", beside=2), member("c", beside=1)]
    found = fleet(program, CostTable(), members, tmp_path)
    assert command.asked == [(1, 2), (1, 1)]
    assert {(row.beside, row.ms) for row in found.unit} == {(2, 3.0), (1, 2.0)}
    assert {(row.beside, row.stage_ms) for row in found.overhead} == {(2, 2.0), (1, 1.0)}
    assert list((tmp_path / "scratch").iterdir()) == [], "what was run is gone"


def test_as_many_rows_are_measured_as_steps_will_have(program, tmp_path, monkeypatch) -> None:
    command = Measured(program)
    monkeypatch.setattr(measuring, "profile_stage", command)
    fleet(program, CostTable(), [member("a")], tmp_path, most_rows=32)
    assert command.rows == [32]


@pytest.mark.parametrize(("streams", "told"), [(0, ()), (8, ()), (12, ("12",)), (99, ("32",))])
def test_a_given_table_says_where_its_curves_end(program, tmp_path, streams: int, told: tuple[str, ...]) -> None:
    known = table_of(program)
    curve = [Point(ms=1.0 + rows, rows=rows, depth=64) for rows in (1, 2, 4, 8)]
    curved = msgspec.structs.replace(known, unit=[msgspec.structs.replace(row, curve=curve) for row in known.unit])
    (tmp_path / "given.toml").write_bytes(dump_costs(curved))
    found, notes = read_given([tmp_path / "given.toml"], set(keys_of(program)), {}, streams)
    assert len(found.unit) == len(known.unit)
    said = [note for note in notes if "were not measured" in note]
    assert len(said) == len(told)
    for note, rows in zip(said, told, strict=True):
        assert f"steps of more than 8 sequences were not measured on host, and there may be some of {rows}" in note
        assert f"--streams {rows}" in note


def test_a_complete_table_measures_nothing(program, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(measuring, "profile_stage", None)
    link = LinkCost(sender="a", receiver="b", latency_ms=1.0, bytes_per_s=1e6, source=0)
    known = msgspec.structs.replace(table_of(program, beside=2), link=[link])
    assert fleet(program, known, [member("a", beside=2)], tmp_path) == known, "links that were measured stay"


def test_the_table_of_a_kind_of_its_own_counts_in_any_company(program, tmp_path, monkeypatch) -> None:
    """A slowed process here, say: measured anew, it would be measured as the machine that it is not."""
    monkeypatch.setattr(measuring, "profile_stage", None)
    own = replace(load_target("host"), name="half")
    node = FleetNode(name="a", target="half", address="local")
    rows = [msgspec.structs.replace(row, target="half") for row in table_of(program).unit]
    overheads = [msgspec.structs.replace(row, target="half") for row in table_of(program).overhead]
    known = msgspec.structs.replace(table_of(program), unit=rows, overhead=overheads)
    assert fleet(program, known, [Member(node, own, 1, 2)], tmp_path).unit == rows


def test_what_cannot_be_scaled_is_refused_before_anything_is_measured(program, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(measuring, "profile_stage", None)
    away = Member(FleetNode(name="a", target="intel-gpu", address="a.local"), load_target("intel-gpu"), 1, 1)
    with pytest.raises(InputError) as error:
        fleet(program, CostTable(), [away], tmp_path)
    assert error.value.ref == "rates-unknown"


def away(usual: int = 4, **told: Any) -> Member:
    """A Pi; ``told`` is what the fleet file says of it."""
    return Member(FleetNode(name="a", target="pi5", address="a.local", **told), load_target("pi5"), usual)


def rows_of(
    program: Program, threads: int, *, ms: float = 1.0, target: str = "pi5", software: str = "ruvrun 1", beside: int = 1
) -> CostTable:
    """All rows of a kind of machine with so many threads."""
    known = table_of(program, beside=beside)
    kind = {"target": target, "threads": threads}
    return CostTable(
        provenance=[msgspec.structs.replace(HERE, software=software)],
        unit=[msgspec.structs.replace(row, ms=ms, **kind) for row in known.unit],
        overhead=[msgspec.structs.replace(row, stage_ms=ms, **kind) for row in known.overhead],
    )


def test_what_was_measured_of_another_machine_stays_where_the_rest_is_scaled(program, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(measuring, "profile_stage", Measured(program))
    monkeypatch.setattr("ruvcompile.measure.fleet.measure_rates", rates)
    keys, told = list(dict.fromkeys(keys_of(program))), Told()
    whole = rows_of(program, 4, ms=77.0, beside=2)
    for part, note in (
        (msgspec.structs.replace(whole, unit=whole.unit[:1]), "the tables lack 3 of 4 parts on pi5: that is scaled"),
        (msgspec.structs.replace(whole, overhead=[]), "the tables lack what a step costs beside the parts on pi5"),
    ):
        units = program_units(program)
        found = measure_fleet(
            program, units, keys_of(program), part, [away()], {},
            store=WeightStore(tmp_path / "store"), scratch=tmp_path / "scratch", progress=told,
        )  # fmt: skip
        assert sorted(row.key for row in found.unit) == sorted(keys), "each once"
        own = {row.key for row in part.unit}
        assert {row.key: row.ms for row in found.unit if not found.scaled(row)} == dict.fromkeys(own, 77.0)
        assert {(row.target, row.threads) for row in (*found.unit, *found.overhead)} == {("pi5", 4)}
        assert [found.scaled(row) for row in found.overhead] == [not part.overhead]
        assert told.notes.pop().startswith(note)


@pytest.mark.parametrize("turned", [False, True])
def test_what_was_measured_counts_before_what_was_scaled_in_whatever_order(program, tmp_path, turned: bool) -> None:
    tables = [rows_of(program, 4, ms=2.0), rows_of(program, 4, ms=100.0, software="scaled by 3; ruvrun 1")]
    for number, table in enumerate(tables):
        (tmp_path / f"{number}.toml").write_bytes(dump_costs(table))
    paths = [tmp_path / "0.toml", tmp_path / "1.toml"]
    found, _ = read_given(paths[::-1] if turned else paths, set(keys_of(program)), {})
    assert {row.ms for row in found.unit} == {row.stage_ms for row in found.overhead} == {2.0}
    assert not any(map(found.scaled, [*found.unit, *found.overhead]))


@pytest.mark.parametrize(("spread", "told"), [(0.2, False), (0.34, True)])
def test_a_noisy_table_is_told_with_its_spread(program, tmp_path, spread: float, told: bool) -> None:
    known = table_of(program)
    noisy = msgspec.structs.replace(known.unit[-1], spread=spread)
    path = tmp_path / "given.toml"
    path.write_bytes(dump_costs(msgspec.structs.replace(known, unit=[*known.unit[:-1], noisy])))
    _, notes = read_given([path], set(keys_of(program)), {"host": "m"})
    said = [note for note in notes if "noisy" in note]
    wanted = [f"{path}: noisy: steps on host spread by 34 %: measure again when less runs on it"]
    assert said == (wanted if told else [])


SCALED = {"software": "scaled by 3; ruvrun 1"}


@pytest.mark.parametrize(
    ("known", "member", "threads"),
    [
        ([], away(), 4),
        ([(4, 1.0, {})], away(), 4),
        ([(3, 1.0, {})], away(), 3),
        ([(3, 1.0, {}), (4, 2.0, {})], away(), 3),
        ([(3, 2.0, {}), (4, 1.0, {})], away(), 4),
        ([(3, 1.0, {}), (4, 1.0, {})], away(), 3),
        ([(3, 1.0, {})], away(4, threads=4), 4),
        ([(3, 1.0, {}), (2, 2.0, {})], away(2, cpus=(0, 1)), 2),
        ([(3, 2.0, {}), (4, 1.0, SCALED)], away(), 3),
        ([(3, 1.0, {"target": "pi4"})], away(), 4),
        ([(1, 1.0, {"target": "host"})], member("here", threads=2), 2),
        ([(1, 1.0, {"target": "host"}), (2, 2.0, {"target": "host"})], member("here", threads=2), 1),
        ([(2, 2.0, {"target": "host"}), (4, 1.0, {"target": "host"})], member("here", threads=2), 2),
        ([(1, 1.0, {"target": "host", "beside": 2}), (2, 2.0, {"target": "host"})], member("here", threads=2), 2),
    ],
    ids=[
        "nothing known", "usual", "another alone", "fewer are faster", "more are faster", "as fast with fewer",
        "as asked", "no more than cores", "scaled is no measurement", "of another kind", "here it can be measured",
        "here, both known", "here, no more than its share", "here, in its company",
    ],
)  # fmt: skip
def test_who_says_no_threads_works_with_as_many_as_was_measured_best(program, known, member, threads) -> None:
    tables = [rows_of(program, number, ms=ms, **more) for number, ms, more in known]
    (found,), notes = as_measured(program, keys_of(program), merge(tables), [member])
    assert found == replace(member, threads=threads)
    name = member.target.name
    changed = threads != member.threads
    assert notes == ((f"{threads} threads on {name}, as measured best (default)",) if changed else ())


def test_threads_of_which_a_part_was_not_measured_are_none(program) -> None:
    known = rows_of(program, 3)
    known = msgspec.structs.replace(known, unit=known.unit[1:])
    assert as_measured(program, keys_of(program), known, [away()]) == ((away(),), ())


def test_what_is_missing_is_measured_and_what_is_known_stays(program, tmp_path, monkeypatch) -> None:
    command = Measured(program)
    monkeypatch.setattr(measuring, "profile_stage", command)
    known = table_of(program, overhead=False)
    first = msgspec.structs.replace(known.unit[0], ms=99.0)
    for given in (
        msgspec.structs.replace(known, unit=[first, *known.unit[1:]]),  # no overhead
        msgspec.structs.replace(table_of(program), unit=[first]),  # one unit only
    ):
        command.asked.clear()
        found = fleet(program, given, [member("a")], tmp_path)
        assert command.asked == [(1, 1)]
        assert [row.ms for row in found.unit if row.key == first.key] == [99.0]
        assert {row.key for row in found.unit} == set(keys_of(program))
        assert len(found.overhead) == 1
    command.asked.clear()
    fleet(program, table_of(program, beside=2), [member("a", beside=1)], tmp_path)
    assert command.asked == [(1, 1)], "other company is another kind"


def test_an_old_table_has_no_overheads_and_is_complete(program) -> None:
    old = table_of(program, overhead=False, curve=False)
    assert held(program, keys_of(program), old, "host", "onnxruntime", 1, 1) == old


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
