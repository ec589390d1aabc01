"""Back ends: of those that a machine has, a plan takes the faster one for each stage, from what the tables say."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from ruvcompile import compile as steps
from ruvcompile.cli.plans import plan_text
from ruvcompile.errors import InputError, UsageError
from ruvcompile.front import read_model
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure import decoder as measuring
from ruvcompile.measure.choice import each_measured, installed
from ruvcompile.measure.nodes import measure_nodes
from ruvcompile.measure.terms import Terms
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.plan import Plan
from ruvcompile.program import Program
from ruvcompile.progress import Silent
from ruvcompile.targets import load_target
from ruvrun.backends import BACK_ENDS
from ruvrun.costs import COSTS, CostTable, Point, dump_costs, load_costs, merge
from ruvrun.manifest import RUNTIME_BYTES, SCALE_BYTES, SERVING_BYTES
from ruvrun.manifest.blocks import BLOCK
from tests.compiler.builds import Noting, build, check_whole, options, plan, snapshot
from tests.compiler.planned import fleet, node, plan_of, table
from tests.decoders import tiny_program
from tests.graphs import make_model, tensor, weight
from tests.models import write_tiny_gguf

TARGET = "x86-64"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("model"), layers=4)


def on(table_: CostTable, backend: str) -> CostTable:
    """The same rows, of another back end."""
    return msgspec.structs.replace(
        table_,
        unit=[msgspec.structs.replace(row, backend=backend) for row in table_.unit],
        overhead=[msgspec.structs.replace(row, backend=backend) for row in table_.overhead],
    )


def both(program: Program, **openvino: Any) -> CostTable:
    """1 ms for every unit on ONNX Runtime, and what ``openvino`` says on OpenVINO."""
    here = table(program, {TARGET: 1.0}, overhead={"stage_ms": 0.0})
    there = table(program, {TARGET: openvino.pop("ms", 1.0)}, overhead={"stage_ms": 0.0}, **openvino)
    return merge([here, on(there, "openvino")])


def two(program: Program, costs: CostTable, **asked: Any) -> Plan:
    """Two stages on two such machines."""
    return plan_of(program, fleet(node("a", TARGET), node("b", TARGET)), costs, stages=2, **asked)


def picked(made: Plan) -> list[str]:
    return [stage["backend"] for stage in made.figures["stages"]]


@pytest.mark.parametrize(("ms", "backend"), [(0.5, "openvino"), (2.0, "onnxruntime")])
def test_the_faster_one_is_taken_and_told_by_how_much(program, ms, backend) -> None:
    made = two(program, both(program, ms=ms))
    assert picked(made) == [backend, backend]
    assert [member.target.backend for member in made.members] == [backend, backend]
    for stage, expected in zip(made.figures["stages"], made.expected, strict=True):
        found = stage["backends_ms"]
        assert found[backend] == stage["predicted_ms"]
        assert found["openvino"] / found["onnxruntime"] == pytest.approx(ms, rel=1e-3)
        assert expected.backends_ms == found
    other = {"openvino": "ONNX Runtime", "onnxruntime": "OpenVINO"}[backend]
    assert f"2.00 times as fast as {other} at 2 rows" in plan_text(made.figures)
    assert "both with int8 activations, f32 keys and values" in plan_text(made.figures)


def test_each_stage_has_its_own(program) -> None:
    """OpenVINO is fast at what only the end has: the plan mixes, and no node is used twice."""
    costs = both(program, ms=1.5, labels={"head": 0.1})
    heavy = [msgspec.structs.replace(row, ms=row.ms * 8) if row.label == "head" else row for row in costs.unit]
    made = two(program, msgspec.structs.replace(costs, unit=heavy))
    assert picked(made) == ["onnxruntime", "openvino"]
    assert len({member.name for member in made.members}) == 2
    one = plan_of(program, fleet(node("a", TARGET)), msgspec.structs.replace(costs, unit=heavy))
    assert len(picked(one)) == 1, "of one node in two guises no pipeline of two stages is made"
    assert [entry["shape"] for entry in one.figures["alternatives"]] == []


def test_how_many_sequences_decides(program) -> None:
    """OpenVINO loses with one row and wins with many."""
    costs = both(program, ms=2.0, per_row=0.1)
    curve = [Point(ms=float(rows), rows=rows) for rows in (1, 2, 4, 8)]
    rows = [row if row.backend == "openvino" else msgspec.structs.replace(row, curve=curve) for row in costs.unit]
    costs = msgspec.structs.replace(costs, unit=rows)
    assert picked(two(program, costs, streams=1)) == ["onnxruntime", "onnxruntime"]
    assert picked(two(program, costs, streams=16)) == ["openvino", "openvino"]


def test_one_may_be_forced(program) -> None:
    costs = both(program, ms=2.0)
    made = two(program, costs, backend="openvino")
    assert picked(made) == ["openvino", "openvino"]
    assert "backends_ms" not in made.figures["stages"][0], "there was no choice"
    assert picked(two(program, costs, backend="auto")) == ["onnxruntime", "onnxruntime"]
    with pytest.raises(UsageError, match="target pi5 has no --backend openvino") as error:
        plan_of(program, fleet(node("a")), costs, backend="openvino")
    assert error.value.hint == "it has: onnxruntime"


def test_a_type_of_keys_and_values_decides_where_one_alone_has_it(program) -> None:
    costs = both(program, ms=2.0)
    made = two(program, costs, kv_type="u8")
    assert picked(made) == ["openvino", "openvino"]
    with pytest.raises(UsageError, match="onnxruntime has no --kv-type u8"):
        two(program, costs, kv_type="u8", backend="onnxruntime")


def test_a_unit_that_a_back_end_has_no_row_of_is_kept_off_it(program) -> None:
    """As of an operator that it does not have."""
    costs = both(program, ms=0.1)
    left = [row for row in costs.unit if (row.backend, row.label) != ("openvino", "head")]
    made = two(program, msgspec.structs.replace(costs, unit=left))
    assert picked(made) == ["openvino", "onnxruntime"]
    assert list(made.figures["stages"][1]["backends_ms"]) == ["onnxruntime"]
    assert "stage 1: ONNX Runtime, which alone can run it" in plan_text(made.figures)


def test_copies_are_of_the_same_stages_and_no_node_is_in_two(program) -> None:
    machines = fleet(*(node(name, TARGET) for name in "abcd"))
    made = plan_of(program, machines, both(program, ms=0.5), stages=2, replicas=2, streams=8)
    assert picked(made) == ["openvino"] * 4
    assert sorted(member.name for member in made.members) == list("abcd")


def test_the_order_in_which_rows_stand_does_not_matter(program) -> None:
    costs = both(program, ms=1.0, labels={"head": 0.5})
    turned = msgspec.structs.replace(costs, unit=costs.unit[::-1], overhead=costs.overhead[::-1])
    one, other = (two(program, each) for each in (costs, turned))
    assert one.figures == other.figures


def test_memory_is_told_by_back_end(program) -> None:
    """Weights as each packs them, keys and values in their type and in blocks, and each one's own process."""
    costs = both(program, ms=0.5, resident=2)
    bare = [
        msgspec.structs.replace(row, runtime_bytes=(100 << 20) * (row.backend == "openvino")) for row in costs.overhead
    ]
    costs = msgspec.structs.replace(costs, overhead=bare)
    decoder = program.decoder
    assert decoder is not None
    width = 2 * decoder.layers * decoder.kv_heads
    sizes = {}
    for backend, kind in (("onnxruntime", "f32"), ("openvino", "f32"), ("openvino", "f16"), ("openvino", "u8")):
        (stage,) = plan_of(
            program,
            fleet(node("a", TARGET)),
            costs,
            backend=backend,
            kv_type=kind,
            context=33,
            streams=2,
        ).figures["stages"]
        sizes[backend, kind] = stage["kv_bytes"], stage["predicted_rss_bytes"] - stage["kv_bytes"]
    in_blocks = BLOCK * (2 * 2 + 1)
    assert sizes["onnxruntime", "f32"][0] == width * decoder.head_size * 4 * 33 * 2
    assert sizes["openvino", "f32"][0] == width * decoder.head_size * 4 * in_blocks
    assert sizes["openvino", "f16"][0] == width * decoder.head_size * 2 * in_blocks
    assert sizes["openvino", "u8"][0] == width * (decoder.head_size + SCALE_BYTES) * in_blocks
    more = sizes["openvino", "f32"][1] - sizes["onnxruntime", "f32"][1]
    serving = BACK_ENDS["openvino"].serving_bytes - SERVING_BYTES
    assert more == pytest.approx((100 << 20) - RUNTIME_BYTES + serving + (2 - 1.4) * _weights(program), rel=0.01)


def _weights(program: Program) -> int:
    values = program.model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


def test_little_memory_takes_the_back_end_that_fits(program) -> None:
    """OpenVINO is faster, and its process alone is more than the node has."""
    costs = both(program, ms=0.5)
    bare = [
        msgspec.structs.replace(row, runtime_bytes=(1 << 30) if row.backend == "openvino" else 1)
        for row in costs.overhead
    ]
    small = fleet(node("a", TARGET, memory=512 << 20))
    (stage,) = plan_of(program, small, msgspec.structs.replace(costs, overhead=bare)).figures["stages"]
    assert stage["backend"] == "onnxruntime"
    assert stage["backends_ms"]["openvino"] < stage["predicted_ms"]


def test_costs_with_other_keys_and_values_are_other_costs(program) -> None:
    """What attention takes depends on them; what has none of them is measured once for all types."""
    units = program_units(program)
    plain, bytes_ = (unit_keys(replace(program, kv_type=kind), units) for kind in ("f32", "u8"))
    assert plain == unit_keys(program, units), "tables of before say what was the only type"
    state = [any(name.startswith("past_") for name in unit.inputs) for unit in units]
    assert [one != two for one, two in zip(plain, bytes_, strict=True)] == state
    assert any(state)
    assert not all(state)


def test_what_is_not_installed_is_no_choice(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else object())
    target, told = load_target("host"), Noting()
    assert installed(target, told) == ("onnxruntime",)
    assert told.notes == ["OpenVINO is not installed here, so it is no choice (pip install 'ruvcompile[openvino]')"]
    assert installed(target.on("openvino"), Noting()) == ("openvino",), "who forces it hears it from the lowering"


def test_the_second_one_is_measured_briefly_and_one_that_cannot_is_told() -> None:
    target, told, first = load_target("host"), Noting(), CostTable()
    asked: list[Mapping[str, Any]] = []

    def run(**what: Any) -> CostTable:
        asked.append(what)
        if what["backend"] == "openvino":
            raise InputError("openvino-unsupported", "this model caps attention scores", hint="-")
        return first

    assert each_measured(target, run, told) == {"onnxruntime": first}
    assert asked == [{"backend": "onnxruntime", "beyond": None}, {"backend": "openvino", "beyond": first}]
    assert told.notes == ["OpenVINO is no choice for this model: this model caps attention scores"]
    with pytest.raises(InputError, match="caps attention"):
        each_measured(target.on("openvino"), run, told)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, and beside it ``one.toml``: every unit at 1 ms on this machine's ONNX Runtime with one thread."""
    path: Path = tmp_path_factory.mktemp("file") / "tiny.gguf"
    write_tiny_gguf(path, layers=4)
    build(path, path.with_name("first"), nodes="2")
    known = load_costs(path.with_name("first") / COSTS)
    path.with_name("one.toml").write_bytes(dump_costs(known))
    return path


def test_given_rows_of_one_are_enough(model, tmp_path, monkeypatch) -> None:
    """A build whose table is complete measures nothing, whatever else the machine has."""
    monkeypatch.setattr(measuring, "profile_stage", None)
    made = plan(model, tmp_path, measured=True, costs=(str(model.with_name("one.toml")),), nodes="2")
    assert [stage["backend"] for stage in made["stages"]] == ["onnxruntime", "onnxruntime"]


def test_a_table_of_one_type_is_not_taken_for_another(model, tmp_path, monkeypatch) -> None:
    """Profile and plan agree on what rows are of, so that a plan for bytes finds rows of bytes, and no others."""
    asked = {"backend": "openvino", "kv_type": "u8", "nodes": "2"}
    steps.profile(options(model, tmp_path / "bytes.toml", **asked), Silent())
    floats = on(load_costs(model.with_name("one.toml")), "openvino")
    (tmp_path / "floats.toml").write_bytes(dump_costs(floats))
    monkeypatch.setattr(measuring, "profile_stage", None)
    made = plan(model, tmp_path, measured=True, costs=(str(tmp_path / "bytes.toml"),), **asked)
    assert made["cost_source"] == "measured"
    with pytest.raises(TypeError, match="not callable"):  # something would be measured
        plan(model, tmp_path, measured=True, costs=(str(tmp_path / "floats.toml"),), **asked)


def test_a_mixed_build_is_one_manifest(model, tmp_path) -> None:
    """Its stages are of two back ends, and the same bytes from the same tables."""
    one = load_costs(model.with_name("one.toml"))
    heavy = [msgspec.structs.replace(row, ms=8.0) if row.label == "head" else row for row in one.unit]
    here = msgspec.structs.replace(one, unit=heavy)
    fast = [msgspec.structs.replace(row, ms=1.0 if row.label == "head" else 1.5) for row in one.unit]
    both_ = merge([here, on(msgspec.structs.replace(one, unit=fast), "openvino")])
    (tmp_path / "both.toml").write_bytes(dump_costs(both_))
    seen = []
    for _ in range(2):
        told = build(model, tmp_path / "dist", measured=True, costs=(str(tmp_path / "both.toml"),), nodes="2")
        seen.append(snapshot(tmp_path / "dist"))
    assert seen[0] == seen[1], "the keys are kept, and all else follows from the tables"
    manifest, specs = check_whole(tmp_path / "dist")
    assert [spec.backend for spec in specs] == ["onnxruntime", "openvino"]
    assert [stage.backend for stage in manifest.stage] == ["onnxruntime", "openvino"]
    expected = [manifest.plan.of(placed.node) for placed in manifest.pipeline[0].stages]
    assert [each.backends_ms for each in expected if each] == [each["backends_ms"] for each in told["stages"]]


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with an operator in its middle that OpenVINO does not have, ``Det``."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Det", ["r"], ["d"], "det"),
        helper.make_node("MatMul", ["d", "m"], ["p"], "project"),
        helper.make_node("Sigmoid", ["p"], ["y"], "sigmoid"),
    ]
    weights = [weight("w", random.standard_normal((6, 3, 3, 3))), weight("m", random.standard_normal((6, 4)))]
    path: Path = tmp_path_factory.mktemp("graph") / "det.onnx"
    onnx.save(make_model(nodes, [tensor("x", [2, 3, 4, 4])], [tensor("y", [2, 4])], weights), path)
    return path


def test_an_operator_that_one_does_not_have_stays_on_the_other(detector, tmp_path) -> None:
    """What is around it is measured, and runs, on OpenVINO; the answers are those of the uncut graph."""
    front, told = read_model(options(detector, tmp_path / "-", nodes="2"), Silent()), Noting()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    rows = measure_nodes(
        front.program,
        front.units,
        front.keys,
        Terms("host", "openvino", 1, 1, WeightStore(tmp_path / "store"), scratch, told, brief=True),
        front.samples,
        front.types,
    )
    det = next(key for unit, key in zip(front.units, front.keys, strict=True) if unit.nodes == ("det",))
    assert {row.key for row in rows.unit} == {*front.keys} - {det}
    assert "OpenVINO cannot run det, which stay off it" in told.notes
    assert list(scratch.iterdir()) == []
    cheap = msgspec.structs.replace(rows, unit=[msgspec.structs.replace(row, ms=0.01) for row in rows.unit])
    (tmp_path / "openvino.toml").write_bytes(dump_costs(cheap))
    made = build(detector, tmp_path / "dist", nodes="3", costs=(str(tmp_path / "openvino.toml"),))
    manifest, specs = check_whole(tmp_path / "dist")
    held = {name: spec.backend for spec, piece in zip(specs, made["stages"], strict=True) for name in [piece["node"]]}
    assert sorted(held.values()) == ["onnxruntime", "openvino", "openvino"]
    assert [stage.backend for stage in manifest.stage] == ["openvino", "onnxruntime", "openvino"]
    assert steps.verify(tmp_path / "dist" / "manifest.toml", None, Silent())["identical"] is True


def test_who_forces_it_hears_which_operator_it_is(detector, tmp_path) -> None:
    with pytest.raises(InputError, match="operators that OpenVINO does not have: Det") as error:
        plan(detector, tmp_path, measured=True, nodes="1", backend="openvino")
    assert "of one with both, what OpenVINO cannot run stays there" in (error.value.hint or "")
