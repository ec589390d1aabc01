"""Small graphs that mislead those who measure, or lose speed where they are cut: what keeps them from it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
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
