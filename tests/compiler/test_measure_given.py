"""Tables that were given: which rows count, what is told of them, and with how many threads machines then work."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ruvcompile.measure.given import read_given
from ruvcompile.measure.threads import as_measured
from ruvcompile.program import Program
from ruvrun.costs import Point, dump_costs, merge
from tests.compiler.whole_tables import away, keys_of, member, rows_of, table_of
from tests.decoders import tiny_program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("model"), layers=2)


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
