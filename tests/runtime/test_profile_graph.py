"""What nodes of a graph cost: kernels find the node they were made of, and all nodes together cost what a run costs."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from ruvcompile.lower.sheet import sheet_node
from ruvrun.errors import InputError, MachineError
from ruvrun.profile import graph, table
from ruvrun.profile.attribution import Attribution, Event
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.graph import by_key, measure_graph, shared
from ruvrun.profile.sheet import Sheet, SheetUnit, load_sheet
from tests.graphs import make_model, program_of, tensor, weight
from tests.stages import write_graph

QUICK = Conditions(seconds=0.2)


def branching():
    """An If between two plain nodes; the body has names of its own."""
    then = helper.make_graph(
        [helper.make_node("MatMul", ["a", "w"], ["t"], name="big")], "then", [], [tensor("t", [3, 3])]
    )
    other = helper.make_graph(
        [helper.make_node("MatMul", ["w", "a"], ["e"], name="other")], "else", [], [tensor("e", [3, 3])]
    )
    return program_of(
        make_model(
            [
                helper.make_node("Relu", ["x"], ["a"], name="first"),
                helper.make_node("If", ["flag"], ["b"], name="choice", then_branch=then, else_branch=other),
                helper.make_node("Conv2", ["b"], ["c"], name="conv_1", domain="test"),
                helper.make_node("Relu", ["c"], ["y"], name="conv_12"),
            ],
            [tensor("x", [3, 3]), tensor("flag", [], TensorProto.BOOL)],
            [tensor("y", [3, 3])],
            [weight("w", np.ones((3, 3)))],
        )
    ).model.graph


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([("first", "Relu", 1), ("choice", "If", 9), ("big", "MatMul", 8)], {"first": 1, "choice": 9}),
        ([("big", "MatMul", 8), ("choice", "If", 9)], {"choice": 9}),
        ([("big", "MatMul", 8), ("big", "MatMul", 8)], {"choice": 16}),
        ([("t", "MatMul", 8)], {"choice": 8}),
        ([("conv_12/fused", "Relu", 3), ("x_conv_1_y", "Conv2", 4)], {"conv_12": 3, "conv_1": 4}),
        ([("conv_12", "Conv2", 7)], {"conv_1": 7}),
        ([("y_nchwc", "Conv2", 5)], {"conv_1": 5}),
        ([("ReorderInput", "ReorderInput", 2), ("conv_1", "Conv2", 3)], {"conv_1": 5}),
        ([("conv_1", "Conv2", 3), ("ReorderOutput_token_5", "ReorderOutput", 2)], {"conv_1": 5}),
        ([("nobody's", "Relu", 2)], {"first": 2}),
    ],
    ids=[
        "parent once", "child first", "only children", "value in a body", "words", "fused", "outputs", "before",
        "after", "unknown",
    ],
)  # fmt: skip
def test_every_event_is_counted_once_and_for_the_right_node(events, wanted) -> None:
    nodes = Attribution([sheet_node(node) for node in branching()])
    for _ in range(2):  # names that were found once are found again
        found = nodes.divide([Event(*event) for event in events])
        assert {name: cost for name, cost in found.items() if cost} == wanted


def test_one_interruption_does_not_make_a_node_dear() -> None:
    """In one of five runs a small node takes as long as a thousand of its kind."""
    usual = {"first": 2.0, "choice": 90.0, "conv_1": 4.0, "conv_12": 0.0}
    runs = [usual, usual, usual | {"first": 5000.0}, usual, usual]
    assert shared(96.0, runs) == usual


def test_nothing_left_to_run_costs_all_alike() -> None:
    assert shared(3.0, [{"a": 0.0, "b": 0.0}]) == {"a": 1.5, "b": 1.5}


def test_units_of_one_key_share_their_mean() -> None:
    units = [SheetUnit(key=key, label=key, nodes=nodes) for key, nodes in (("k", ["a", "b"]), ("k", ["c"]), ("m", []))]
    assert by_key(Sheet(unit=units), {"a": 1.0, "b": 2.0, "c": 5.0}) == {"k": 4.0, "m": 0.0}


def test_four_hundred_small_adds_cost_what_a_run_costs(tmp_path, monkeypatch) -> None:
    """The profile of so many small nodes adds up to many times the truth; only the shares may come from it."""
    monkeypatch.setattr(graph, "time_whole", lambda *_: (10.0, 0.25))
    program = program_of(
        make_model(
            [helper.make_node("Add", [f"v{i}", f"c{i % 7}"], [f"v{i + 1}"]) for i in range(400)],
            [tensor("v0", [1, 8])],
            [tensor("v400", [1, 8])],
            [weight(f"c{i}", np.full(8, i + 1)) for i in range(7)],
        )
    )
    directory, spec, sheet = write_graph(program, {"v0": np.zeros((1, 8), np.float32)}, tmp_path)
    sheet = msgspec.structs.replace(
        sheet, unit=[msgspec.structs.replace(unit, key=str(number)) for number, unit in enumerate(sheet.unit)]
    )
    rows = measure_graph(directory, spec, sheet, QUICK)
    assert len(rows) == 400
    assert all(row.ms > 0 for row in rows)
    assert sum(row.ms for row in rows) == pytest.approx(10.0, rel=1e-3)  # each is rounded to a nanosecond
    assert {row.spread for row in rows} == {0.25}


def test_the_large_node_is_the_dear_one(tmp_path) -> None:
    program = program_of(
        make_model(
            [
                helper.make_node("MatMul", ["x", "w"], ["a"], name="large"),
                helper.make_node("MatMul", ["a", "v"], ["b"], name="small"),
            ],
            [tensor("x", [64, 512])],
            [tensor("b", [64, 2])],
            [weight("w", np.ones((512, 512))), weight("v", np.ones((512, 2)))],
        )
    )
    directory, spec, sheet = write_graph(program, {"x": np.ones((64, 512), np.float32)}, tmp_path)
    told: list[tuple[str, int, int]] = []
    conditions = Conditions(threads=1, beside=3, seconds=0.2)
    large, small = measure_graph(directory, spec, sheet, conditions, lambda *what: told.append(what))
    assert (large.label, small.label) == ("large", "small")
    assert large.ms > small.ms > 0
    assert large.spread >= 0
    assert (large.target, large.backend, large.threads, large.beside) == ("host", "onnxruntime", 1, 3)
    assert (large.weight_bytes, small.weight_bytes) == (512 * 512 * 4, 512 * 2 * 4)
    assert [row.key for row in (large, small)] == [unit.key for unit in sheet.unit]
    assert told[-1] == ("run", 2, 2)


@pytest.mark.parametrize(
    ("took", "seconds", "runs"),
    [([1.0], 100.0, graph.LEAST_RUNS), ([1.0, 3.0], 20.0, 10), ([1.0, 3.0], 1e9, graph.MOST_RUNS)],
    ids=["as soon as it is known", "until time is over", "never for ever"],
)
def test_a_graph_is_run_until_its_time_is_known(monkeypatch, took, seconds, runs) -> None:
    now, times, ran = [0.0], itertools.cycle(took), []

    class Executor:
        def run(self, _inputs: object) -> None:
            now[0] += next(times)
            ran.append(1)

    monkeypatch.setattr(graph.time, "perf_counter", lambda: now[0])
    ms, spread = graph.time_whole(Executor(), {}, Conditions(seconds=seconds), lambda: now[0])
    assert len(ran) - 2 == runs, "without the two that warm up"
    assert ms == 1e3 * sum(took) / len(took)
    assert spread == (0.0 if len(took) == 1 else 1.0)


def test_a_stage_without_inputs_is_refused(tmp_path) -> None:
    program = program_of(make_model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", [2])]))
    directory, spec, sheet = write_graph(program, {"x": np.ones(2, np.float32)}, tmp_path)
    with pytest.raises(InputError) as caught:
        measure_graph(directory, msgspec.structs.replace(spec, golden=None), sheet, QUICK)
    assert caught.value.ref == "samples-missing"
    assert spec.golden is not None
    (directory / spec.golden.file).write_bytes(b"PK")
    with pytest.raises(InputError) as caught:
        measure_graph(directory, spec, sheet, QUICK)
    assert caught.value.ref == "samples-wrong"


def test_a_profile_that_was_cut_off_is_told(tmp_path) -> None:
    (tmp_path / "trace.json").write_text('[{"cat": "Node", "na')
    with pytest.raises(MachineError) as caught:
        graph._events(tmp_path / "trace.json")
    assert caught.value.ref == "trace-cut-off"


def test_a_graph_of_very_many_nodes_is_not_loaded_again_for_its_overhead(tmp_path, monkeypatch) -> None:
    program = program_of(make_model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", [2])]))
    directory, _, _ = write_graph(program, {"x": np.ones(2, np.float32)}, tmp_path)
    monkeypatch.setattr(table, "MOST_NODES", 0)
    monkeypatch.setattr(table, "measure_overhead", None)
    with table.segments(directory) as (_, stages):
        found = table.profile(stages, Conditions(seconds=0.2), model="net")
    assert [row.label for row in found.table.unit] == [
        unit.label for unit in load_sheet(directory, stages[0].spec).unit
    ]
    assert found.table.overhead == []
    assert not any("use a probe" in note for note in found.notes)
