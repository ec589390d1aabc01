"""Costs of a machine that was not measured: every point is scaled by what bounds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from ruvcompile.measure.scale import FLOATS, LIKE, MEMORY, OVERHEAD, Figures, figures, scale, seconds
from ruvcompile.measure.work import Work, works
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.targets import Figure, Target, load_target
from ruvcompile.whole import observe
from ruvrun.costs import CostTable, NodeCost, Overhead, Point, Provenance, Rate, StageCost, UnitCost
from ruvrun.profile import rates
from tests.graphs import make_model, program_of, tensor, weight

HERE = {
    MEMORY: 20e9, "int4_matvec": 16e9, "int8_matvec": 18e9, "int4_matmat": 120e9, "int8_matmat": 150e9, FLOATS: 90e9,
    OVERHEAD: 3e-7,
}  # fmt: skip
SLOW_MEMORY = {**HERE, MEMORY: 5e9, "int4_matvec": 4e9, "int8_matvec": 4.5e9}
SLOW_PRODUCTS = {**HERE, "int4_matmat": 60e9, "int8_matmat": 75e9, FLOATS: 45e9}
MLP = Work(nodes=8, operations=20e6, weight_bytes=6_250_000, row_bytes=4096, bits=4)


def target(*figures: tuple[str, float], cores: int = 4) -> Target:
    made = tuple(Figure(name, value, "B/s", "published", "a test", "2026-01-01") for name, value in figures)
    return replace(load_target("pi5"), figures=made, cores=cores)


def by(there: dict[str, float]) -> Figures:
    return Figures(HERE, there, "scaled")


def test_the_figures_are_those_that_a_machine_measures() -> None:
    assert {rate.name for rate in rates.measure_rates("host", "onnxruntime", 1, size=TINY)} == LIKE.keys()


TINY = rates.Size(weights=1 << 16, width=32, rows=2, nodes=2, seconds=0.0, runs=1)


def test_one_row_waits_for_weights_and_many_for_products() -> None:
    assert by(SLOW_MEMORY).factor(MLP) == pytest.approx(4.0, rel=0.05)
    assert by(SLOW_MEMORY).factor(MLP, rows=128) == pytest.approx(1.0, rel=0.05)
    assert by(SLOW_PRODUCTS).factor(MLP) == pytest.approx(1.0)
    assert by(SLOW_PRODUCTS).factor(MLP, tokens=128) == pytest.approx(2.0, rel=0.05)


def test_small_units_follow_the_overhead_of_a_node() -> None:
    small = Work(nodes=3, row_bytes=64)
    assert by({**HERE, OVERHEAD: 9e-7}).factor(small) == pytest.approx(3.0, rel=0.05)
    assert by(SLOW_PRODUCTS).factor(small) == pytest.approx(1.0)


def test_a_long_context_waits_for_memory() -> None:
    attention = Work(nodes=9, operations=2e5, weight_bytes=60_000, row_bytes=4096, depth_bytes=1536, bits=4)
    quick_weights = {**SLOW_MEMORY, "int4_matvec": HERE["int4_matvec"]}
    factors = [by(quick_weights).factor(attention, depth=depth) for depth in (0, 256, 4096, 65536)]
    assert factors == sorted(factors)
    assert factors[0] < 2 < 3.9 < factors[-1] <= 4.0


def test_equal_machines_are_equal() -> None:
    assert by(HERE).factor(MLP, 3, 5, 7) == 1.0


@pytest.mark.parametrize("rows", [1, 4, 64, 1024])
def test_a_machine_that_is_slower_in_everything_is_between_its_slowest_and_fastest(rows) -> None:
    there = {name: value * 3 if name == OVERHEAD else value / 2 for name, value in HERE.items()}
    assert 2 <= by(there).factor(MLP, rows) <= 3


def test_what_a_target_lacks_is_like_what_is_most_like_it() -> None:
    found = figures(HERE, target((MEMORY, 5e9), ("int4_matmat", 60e9)), 4)
    assert found.there[MEMORY] == 5e9
    assert found.there["int4_matvec"] == HERE["int4_matvec"] / 4  # a quarter of the memory's rate
    assert found.there["int8_matmat"] == HERE["int8_matmat"] / 2
    assert found.there[FLOATS] == HERE[FLOATS] / 2
    assert found.there[OVERHEAD] == 2 * HERE[OVERHEAD]
    assert found.how.startswith("scaled memory_bandwidth 2e+10 to 5e+09 B/s (published); int4_matmat ")
    assert "node_overhead unknown, taken as int4_matmat" in found.how


def test_fewer_threads_are_slower_at_products_and_not_at_memory() -> None:
    half = figures(HERE, target((MEMORY, 8e9), ("int4_matmat", 100e9), ("int4_matvec", 8e9)), 2).there
    assert (half[MEMORY], half["int4_matmat"], half["int4_matvec"]) == (8e9, 50e9, 4e9)
    more = figures(HERE, target(("int4_matmat", 100e9)), 8).there
    assert more["int4_matmat"] == 100e9, "it has no more cores than that"


def test_a_target_without_figures_is_as_fast_as_this_machine_and_says_so() -> None:
    found = figures(HERE, target(), 4)
    assert found.there == HERE
    assert found.how == "scaled by 1: the target has no figures, so it is taken to be as fast as this machine"


def test_every_point_has_its_own_factor() -> None:
    curve = [Point(ms=1.0), Point(ms=3.0, rows=128), Point(ms=4.0, tokens=128), Point(ms=1.1, depth=2048)]
    row = UnitCost(
        key="k", label="mlp", target="host", backend="onnxruntime", threads=1, ms=1.0, ms_per_token=0.03, source=0,
        chunk=128, beside=2, weight_bytes=5, resident_bytes=7, curve=curve, node=[NodeCost(name="n", op="o", ms=0.5)],
    )  # fmt: skip
    stage = StageCost(key="s", target="host", backend="onnxruntime", threads=1, ms=1.0, source=0)
    over = Overhead(
        kind="decoder", target="host", backend="onnxruntime", threads=1, source=0, stage_ms=0.1, head_row_ms=0.2,
        byte_ms=1e-6, runtime_bytes=99,
    )  # fmt: skip
    here = Provenance(machine="m", cpu="c", software="s", date="d")
    there = by({**SLOW_MEMORY, OVERHEAD: 6e-7})
    table = CostTable(provenance=[here], unit=[row], stage=[stage], overhead=[over])
    found = scale(table, load_target("pi5"), 3, there, {"k": MLP})
    (unit,), (other,) = found.unit, found.overhead
    assert (unit.target, unit.threads, unit.beside, unit.weight_bytes, unit.resident_bytes) == ("pi5", 3, 2, 5, 7)
    assert unit.ms == pytest.approx(there.factor(MLP), abs=1e-6)
    assert unit.node[0].ms == pytest.approx(unit.ms / 2, abs=1e-6)
    assert unit.ms_per_token == pytest.approx(0.03 * there.factor(MLP, tokens=128), abs=1e-6)
    assert [point.ms for point in unit.curve] == [
        pytest.approx(point.ms * there.factor(MLP, point.rows, point.tokens, point.depth), abs=1e-6) for point in curve
    ]
    assert unit.curve[0].ms > 3.5
    assert unit.curve[1].ms < 3.5
    assert (other.target, other.threads, other.stage_ms, other.head_row_ms) == ("pi5", 3, 0.2, 0.4)
    assert other.byte_ms == pytest.approx(4e-6)
    assert other.runtime_bytes == 99
    assert found.stage == [], "it was measured on this machine and says nothing of another"
    assert found.provenance[0].software.startswith("scaled; ")


def test_the_work_of_a_decoder(tmp_path: Path) -> None:
    from ruvcompile.load import load
    from ruvcompile.passes import run
    from ruvcompile.passes.quantise import quantise
    from tests.models import write_tiny_gguf

    program = quantise(run(load(str(write_tiny_gguf(tmp_path / "tiny.gguf")))), "int4")
    units = program_units(program)
    keys = unit_keys(program, units)
    found = works(program, units, keys)
    assert found.keys() == set(keys)
    decoder = program.decoder
    assert decoder is not None
    by_unit = dict(zip([unit.nodes[0].strip("/") for unit in units], (found[key] for key in keys), strict=True))
    embed, attn, head = by_unit["embed"], by_unit["layers.0.attn_norm".replace(".attn", "/attn")], found[keys[-1]]
    assert (embed.operations, embed.weight_bytes) == (0, 0), "a row of it is read, not all of it"
    assert embed.row_bytes == 8 + 4 * decoder.hidden
    assert attn.bits == 4
    width = decoder.head_size * (2 * decoder.heads + 2 * decoder.kv_heads)
    assert attn.operations == 2 * decoder.hidden * width
    assert attn.depth_bytes == 2 * 4 * decoder.kv_heads * decoder.head_size
    assert head.operations == 2 * decoder.hidden * decoder.vocab
    assert head.weight_bytes > decoder.hidden * decoder.vocab / 2


def test_the_work_of_a_graph() -> None:
    model = make_model(
        [
            helper.make_node("Conv", ["x", "k"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("Reshape", ["r", "flat"], ["f"], name="flat_"),
            helper.make_node("Gemm", ["f", "w"], ["y"], name="gemm", transB=1),
            helper.make_node("LSTM", ["s", "lw", "lr"], ["", "h"], name="lstm", hidden_size=4),
        ],
        [tensor("x", [1, 3, "h", 8]), tensor("s", [5, 1, 2])],
        [tensor("y", [1, 10]), tensor("h", [1, 1, 4])],
        [
            weight("k", np.ones((6, 3, 3, 3))), weight("w", np.ones((10, 384))),
            helper.make_tensor("flat", TensorProto.INT64, [2], [1, -1]),
            weight("lw", np.ones((1, 16, 2))), weight("lr", np.ones((1, 16, 4))),
        ],
    )  # fmt: skip
    program = program_of(model)
    types = observe(program.model, {"x": np.ones((1, 3, 8, 8), np.float32), "s": np.ones((5, 1, 2), np.float32)})
    units = program_units(program, types)
    found = works(program, units, [unit.nodes[0] for unit in units], types)
    assert found["conv"].operations == 2 * 6 * 8 * 8 * 27
    assert found["conv"].weight_bytes == 4 * 6 * 27
    assert found["conv"].row_bytes == 4 * 64 * (3 + 6)
    assert (found["relu"].operations, found["relu"].row_bytes) == (0, 4 * 64 * 12)
    assert found["gemm"].operations == 2 * 10 * 384
    assert found["lstm"].operations == 2 * 5 * (16 * 2 + 16 * 4)
    assert {work.bits for work in found.values()} == {0}
    # A convolution is bounded by products of floats, what comes behind it by memory.
    big = replace(found["conv"], operations=1e9)
    assert seconds(big, SLOW_PRODUCTS) == pytest.approx(2 * seconds(big, HERE), rel=0.01)
    assert seconds(replace(found["relu"], row_bytes=10**9), SLOW_MEMORY) == pytest.approx(0.2, rel=0.01)


def test_what_was_measured_on_such_a_machine_is_better_than_what_is_said_of_it() -> None:
    measured = {
        "int4_matvec": Rate(
            name="int4_matvec", value=6e9, unit="B/s", target="pi5", backend="onnxruntime", threads=4, source=0
        )
    }
    found = figures(HERE, target((MEMORY, 8e9), ("int4_matvec", 9e9)), 4, measured)
    assert (found.there["int4_matvec"], found.there[MEMORY]) == (6e9, 8e9)
    assert "int4_matvec 1.6e+10 to 6e+09 B/s (measured)" in found.how
