"""A decoder's units as curves: of a real stage, whose parts add up to what the whole took."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from ruvcompile.load import load
from ruvcompile.passes import run as run_passes
from ruvcompile.program import Program
from ruvrun.bundle import StageSpec
from ruvrun.costs import UnitCost
from ruvrun.errors import InputError
from ruvrun.manifest import KeyValue
from ruvrun.profile import decoder
from ruvrun.profile.conditions import Conditions, clock_of, silent
from ruvrun.profile.places import STATE_BYTES, Ground, Place, ground
from ruvrun.profile.sheet import UNITS, load_sheet
from tests.decoders import tiny_program
from tests.runtime.profiles import write_sheeted

QUICK = Conditions(seconds=0.1)
EXPORTED = Path(__file__).parents[1] / "data" / "onnx_decoders" / "optimum-gpt_neox"


def spec_of(layers: int, heads: int, head_size: int, *, exported: bool = False) -> StageSpec:
    return StageSpec(
        kind="decoder", backend="onnxruntime", target="host", model="m", first=True, last=True, inputs=[], outputs=[],
        forward=[], files=[], kv=KeyValue(layers=layers, heads=heads, head_size=head_size, dtype="float32"),
        exported=exported,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "threads", "quota", "own"),
    [
        ("onnxruntime", 1, False, True),
        ("openvino", 1, False, True),
        ("onnxruntime", 2, False, False),
        ("onnxruntime", 1, True, False),
        ("openvino-gpu", 1, False, False),
        ("openvino-npu", 1, False, False),
    ],
)
def test_a_threads_own_time_counts_where_it_is_all_that_works(
    backend: str, threads: int, quota: bool, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where it waits for other threads or a device, and not where it is stopped part of the time."""
    monkeypatch.delenv("RUVRUN_DEVICE", raising=False)
    monkeypatch.setattr("ruvrun.profile.conditions.has_cpu_quota", lambda: quota)
    spec = msgspec.structs.replace(spec_of(1, 1, 16), backend=backend)
    assert clock_of(spec, Conditions(threads=threads)) is (time.thread_time if own else time.perf_counter)


@pytest.mark.parametrize("context", [2, 3, 8, 17, 40, 200, 256, 4096])
def test_every_place_is_within_the_context(context: int) -> None:
    where = ground(spec_of(2, 2, 16), context)
    assert all(place.depth >= 0 and place.depth + place.tokens <= context for place in where.places)
    assert where.context <= context
    assert len(set(where.places)) == len(where.places)
    assert where.usual in where.places
    assert where.usual.depth == min(256, context // 2)
    assert where.chunk in where.places
    assert where.chunk.tokens > 1
    assert {place.rows for place in where.places} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("asked", "measured"), [(0, [1, 2, 4, 8]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 16]), (40, [1, 2, 4, 8, 16, 32])]
)
def test_steps_are_measured_with_as_many_rows_as_there_will_be(asked: int, measured: list[int]) -> None:
    where = ground(spec_of(2, 2, 16), 4096, asked)
    for depth in {place.depth for place in where.places if place.tokens == 1}:
        assert [place.rows for place in where.places if (place.tokens, place.depth) == (1, depth)] == measured
    assert where.slots == measured[-1]
    assert {place.rows for place in where.places if place.tokens > 1} == {1}


def test_a_large_state_is_measured_with_less_of_it() -> None:
    """Eight sequences of 1,024 tokens of a model without grouped heads would be gigabytes."""
    spec = spec_of(16, 64, 128)
    assert spec.kv is not None
    where = ground(spec, 8192)
    assert where.slots * where.filled * spec.kv.bytes_per_token <= STATE_BYTES
    assert {place.tokens for place in where.places} >= {1, 32, 128}


def test_an_exported_decoder_has_rows_one_after_the_other() -> None:
    where = ground(spec_of(2, 2, 16, exported=True), 512)
    assert {place.rows for place in where.places} == {1, 2}


def measure(program: Program, folder: Path) -> tuple[list[UnitCost], Ground, dict[str, int]]:
    ((directory, spec),) = write_sheeted(program, folder)
    sheet = load_sheet(directory, spec)
    where = ground(spec, sheet.context)
    held = [decoder.load(directory, spec, where, 1)]
    rows = decoder.measure_decoder(directory, spec, sheet, held, where, QUICK)
    assert not held, "the stage was let go of before it was loaded once more"
    count = {key: [unit.key for unit in sheet.unit].count(key) for key in {unit.key for unit in sheet.unit}}
    return rows, where, count


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[UnitCost], Ground, dict[str, int]]:
    folder = tmp_path_factory.mktemp("measured")
    return measure(tiny_program(folder, layers=3), folder)


def test_every_unit_has_a_row_and_equal_ones_share_it(
    measured: tuple[list[UnitCost], Ground, dict[str, int]],
) -> None:
    rows, where, count = measured
    assert sorted(row.label for row in rows) == ["embed", "head", "layers.*.attn", "layers.*.mlp"]
    assert sorted(count.values()) == [1, 1, 3, 3]
    for row in rows:
        assert [(point.rows, point.tokens, point.depth) for point in row.curve] == list(where.places)
        assert all(point.ms > 0 for point in row.curve)
        assert row.ms == row.step_ms(1, where.usual.depth)
        assert row.ms_per_token == pytest.approx(row.prompt_ms(row.chunk) / row.chunk, abs=1e-6)
        assert sum(node.ms for node in row.node) == pytest.approx(row.ms, abs=1e-6 * len(row.node))
        assert (row.target, row.backend, row.threads, row.beside) == ("host", "onnxruntime", 1, 1)
        assert row.weight_bytes > 0
    nodes = {row.label: {node.name for node in row.node} for row in rows}
    assert "layers.*/attn/attention" in nodes["layers.*.attn"]
    assert "layers.*/mlp/down_proj" in nodes["layers.*.mlp"]


def test_units_add_up_to_the_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At every place: what the stage's units cost together is the median of what was measured of it."""
    sizes: dict[Place, float] = {}
    original = decoder._sizes

    def spy(*args: object) -> tuple[dict[Place, list[float]], float]:
        found, noise = original(*args)  # type: ignore[arg-type]  # handed on as it came
        sizes.update({place: sorted(times)[len(times) // 2] for place, times in found.items() if len(times) % 2})
        return found, noise

    monkeypatch.setattr(decoder, "_sizes", spy)
    rows, _, count = measure(tiny_program(tmp_path, layers=2), tmp_path)
    assert sizes
    for place, size in sizes.items():
        point = (place.rows, place.tokens, place.depth)
        total = sum(
            each.ms * count[row.key]
            for row in rows
            for each in row.curve
            if (each.rows, each.tokens, each.depth) == point
        )
        assert total == pytest.approx(size, abs=1e-5)


def test_every_row_keeps_how_far_the_steps_spread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = decoder._sizes

    def noisy(*args: object) -> tuple[dict[Place, list[float]], float]:
        found, _ = original(*args)  # type: ignore[arg-type]  # handed on as it came
        return found, 0.34

    monkeypatch.setattr(decoder, "_sizes", noisy)
    rows, _, _ = measure(tiny_program(tmp_path, layers=1), tmp_path)
    assert {row.spread for row in rows} == {0.34}


def test_the_spread_is_that_of_the_clock_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's own time hides that others took its core; who reads the table shall know."""
    now, walls = [0.0], iter([1.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    place = Place(1, 1, 0)
    monkeypatch.setattr(decoder.time, "perf_counter", lambda: now[0])

    def run() -> float:
        now[0] += next(walls)
        return 2.0

    monkeypatch.setattr(decoder, "runner", lambda *_: run)
    where = Ground((place,), place, place, 1, 8)
    sizes, spread = decoder._sizes(None, {}, where, QUICK, time.thread_time, silent)  # type: ignore[arg-type] # not run
    assert sizes == {place: [2.0] * decoder.STEPS}
    assert spread > 0.5


def test_a_decoder_that_runs_as_exported(tmp_path: Path) -> None:
    rows, where, count = measure(run_passes(load(str(EXPORTED))), tmp_path)
    assert {row.key for row in rows} == set(count)
    assert {row.label for row in rows} >= {"embed", "head"}
    assert all(point.ms >= 0 for row in rows for point in row.curve)
    assert {point.rows for point in rows[0].curve} == {1, 2}
    assert where.slots == 2


def test_a_stage_in_the_middle_takes_activations(tmp_path: Path) -> None:
    stages = write_sheeted(tiny_program(tmp_path, layers=2), tmp_path, [2, 4])
    directory, spec = stages[1]
    sheet = load_sheet(directory, spec)
    assert [unit.label for unit in sheet.unit] == ["layers.*.mlp", "layers.*.attn"]
    where = ground(spec, sheet.context)
    rows = decoder.measure_decoder(directory, spec, sheet, [decoder.load(directory, spec, where, 1)], where, QUICK)
    assert {row.label for row in rows} == {"layers.*.mlp", "layers.*.attn"}
    assert all(row.ms > 0 for row in rows)


def test_a_bundle_without_a_sheet_is_told(tmp_path: Path) -> None:
    ((directory, spec),) = write_sheeted(tiny_program(tmp_path, layers=1), tmp_path)
    (directory / UNITS).unlink()
    with pytest.raises(InputError) as error:
        load_sheet(directory, spec)
    assert error.value.ref == "units-missing"
    assert error.value.hint
