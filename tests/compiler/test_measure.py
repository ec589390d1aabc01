"""The measure step: what a table lacks is measured by the runtime's own command, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ruvcompile.errors import InputError
from ruvcompile.fleet import FleetNode
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure import decoder as measuring
from ruvcompile.measure import held
from ruvcompile.measure.fleet import measure_fleet
from ruvcompile.measure.terms import Terms
from ruvcompile.passes.pieces import program_units
from ruvcompile.plan import Member
from ruvcompile.program import Program
from ruvcompile.progress import Silent
from ruvcompile.targets import load_target
from ruvrun.costs import CostTable, LinkCost
from tests.compiler.builds import Noting, rates
from tests.compiler.whole_tables import HERE, away, keys_of, member, rows_of, table_of
from tests.decoders import tiny_program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("model"), layers=2)


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


def test_what_was_measured_of_another_machine_stays_where_the_rest_is_scaled(program, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(measuring, "profile_stage", Measured(program))
    monkeypatch.setattr("ruvcompile.measure.fleet.measure_rates", rates)
    keys, told = list(dict.fromkeys(keys_of(program))), Noting()
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
