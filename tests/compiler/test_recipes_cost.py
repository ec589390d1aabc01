"""Small graphs that mislead those who measure, or lose speed where they are cut.

Times are compared with times taken in the same breath, by medians, and a test that a noisy moment spoilt is tried
again: what is looked for here are factors of four and fifty.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ruvrun.executors.sessions import open_session
from ruvrun.pipeline import open_local
from ruvrun.profile.attribution import Attribution, Event
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.graph import PROFILED_RUNS, measure_graph
from tests.compiler.builds import build
from tests.graphs import make_model, program_of, tensor, weight
from tests.stages import write_graph

TRIES = 5


def some_try(check: Callable[[], bool]) -> bool:
    """Whether ``check`` holds at one of a few attempts."""
    return any(check() for _ in range(TRIES))


def median_ms(run: Callable[[], object], times: int = 30) -> float:
    """The median of ``times`` runs, after two that warm up."""
    found = []
    for number in range(times + 2):
        start = time.perf_counter()
        run()
        if number >= 2:
            found.append(time.perf_counter() - start)
    return 1e3 * statistics.median(found)


def test_four_hundred_small_adds_cost_twice_their_time_at_most(tmp_path) -> None:
    """Under a profiler they take fifty times as long."""
    nodes = [helper.make_node("Add", [f"v{i}", f"c{i % 7}"], [f"v{i + 1}"]) for i in range(400)]
    weights = [weight(f"c{i}", np.full(8, i + 1)) for i in range(7)]
    model = make_model(nodes, [tensor("v0", [1, 8])], [tensor("v400", [1, 8])], weights)
    program, arrays = program_of(model), {"v0": np.zeros((1, 8), np.float32)}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    stage = write_graph(program, arrays, tmp_path)

    def close() -> bool:
        (row,) = measure_graph(*stage, Conditions(seconds=0.5))  # one key: their mean
        assert row.ms > 0
        return 0.5 < 400 * row.ms / median_ms(lambda: session.run(None, arrays), 200) < 2

    assert some_try(close)


def test_the_work_of_a_branch_is_counted_once(tmp_path, monkeypatch) -> None:
    """A profile has it twice: as the If, and as the MatMul inside."""
    side = [64, 64]
    then, other = (
        helper.make_graph([helper.make_node("MatMul", ["a", w], [w + "y"], name=w)], w, [], [tensor(w + "y", side)])
        for w in ("u", "v")
    )
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="plain"),
            helper.make_node("If", ["flag"], ["y"], name="choice", then_branch=then, else_branch=other),
        ],
        [tensor("x", side), tensor("flag", [], TensorProto.BOOL)],
        [tensor("y", side)],
        [weight(name, np.random.default_rng(0).standard_normal(side)) for name in ("w", "u", "v")],
    )
    runs: list[dict[str, float]] = []
    divide = Attribution.divide

    def look(self: Attribution, events: Sequence[Event]) -> dict[str, float]:
        found = divide(self, events)
        took = {name: sum(event.duration for event in events if event.name == name) for name in ("choice", "u", "v")}
        assert found["choice"] == took["choice"] >= took["u"] > 0, "both are in the profile, one inside the other"
        assert took["v"] == 0, "the other branch did not run"
        runs.append(found)
        return found

    monkeypatch.setattr(Attribution, "divide", look)
    stage = write_graph(program_of(model), {"x": np.ones(side, np.float32), "flag": np.array(True)}, tmp_path)
    costs = {row.label: row.ms for row in measure_graph(*stage, Conditions(seconds=0.5))}
    assert len(runs) == PROFILED_RUNS
    choice, plain = (statistics.median(run[name] for run in runs) for name in ("choice", "plain"))
    assert costs["choice"] / costs["plain"] == pytest.approx(choice / plain, rel=1e-2)  # rounded to a nanosecond


def test_stages_in_series_in_one_process_do_not_slow_each_other(tmp_path) -> None:
    """Threads that go on spinning when their stage is done take the cores from the next one: four times as slow."""
    random, side = np.random.default_rng(0), 256
    names = [f"v{i}" for i in range(17)]
    model = make_model(
        [helper.make_node("MatMul", [a, "w" + b], [b]) for a, b in pairwise(names)],
        [tensor("v0", [64, side])],
        [tensor("v16", [64, side])],
        [weight("w" + name, random.standard_normal((side, side)) / side**0.5) for name in names[1:]],
    )
    onnx.save(model, tmp_path / "net.onnx")
    build(tmp_path / "net.onnx", tmp_path / "four", nodes="4", cut="v4,v8,v12")
    build(tmp_path / "net.onnx", tmp_path / "one", nodes="1")
    staged, whole = (open_local(tmp_path / name / "manifest.toml", threads=2) for name in ("four", "one"))
    arrays = {"v0": random.standard_normal((64, side)).astype(np.float32)}
    assert some_try(lambda: median_ms(lambda: staged.run(arrays)) < 1.7 * median_ms(lambda: whole.run(arrays)))


def test_a_waiting_stage_does_not_spin(tmp_path, monkeypatch) -> None:
    """A decoder's threads stop spinning when a call ends; a graph's, of which there may be several, never begin."""
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [2, 3])], [tensor("y", [2, 3])])
    onnx.save(model, tmp_path / "net.onnx")
    build(tmp_path / "net.onnx", tmp_path / "dist", nodes="1")
    opened = []

    def remember(*args: Any, **options: Any) -> Any:
        opened.append(open_session(*args, **options))
        return opened[-1]

    monkeypatch.setattr("ruvrun.executors.onnxruntime.open_session", remember)
    open_local(tmp_path / "dist" / "manifest.toml", threads=2)
    entry = opened[0].get_session_options().get_session_config_entry
    assert entry("session.intra_op.allow_spinning") == "0"
    entry = open_session(tmp_path / "net.onnx", threads=2).get_session_options().get_session_config_entry
    assert entry("session.force_spinning_stop") == "1"
