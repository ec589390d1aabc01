"""A profile as times: runs told apart, the profiler's own time taken off, and what is left adds up."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.errors import MachineError
from ruvrun.profile.trace import net, read_trace


def kernel(name: str, op: str, microseconds: float) -> dict[str, object]:
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": microseconds, "args": {"op_name": op}}


RUN = {"cat": "Session", "name": "model_run", "dur": 1}


def test_runs_are_told_apart(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    other = {"cat": "Node", "name": "a_fence_before", "dur": 9, "args": {"op_name": "Add"}}
    records = [
        kernel("a", "Add", 1),
        other,
        kernel("b", "Mul", 2),
        kernel("a", "Add", 4),
        RUN,
        kernel("a", "Add", 3),
        RUN,
    ]
    trace.write_text(json.dumps(records))
    assert read_trace(trace) == [{("a", "Add"): 5, ("b", "Mul"): 2}, {("a", "Add"): 3}]
    assert not trace.exists()


def test_a_trace_that_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('[{"cat": "Node", "na')
    with pytest.raises(MachineError) as error:
        read_trace(tmp_path / "trace.json")
    assert error.value.ref == "trace-cut-off"


def test_what_the_profiler_adds_to_every_kernel_is_taken_off() -> None:
    """Kernels of 1 ms and 0.1 ms that take 0.05 ms longer under it."""
    runs = [{("large", "MatMul"): 1050.0, ("small", "Add"): 150.0}] * 3
    found = net(runs, 1.1)
    assert found["large", "MatMul"] == pytest.approx(1.0)
    assert found["small", "Add"] == pytest.approx(0.1)


def test_one_interruption_moves_no_share() -> None:
    plain = {("a", "Add"): 100.0, ("b", "Add"): 100.0}
    found = net([plain, {**plain, ("a", "Add"): 9000.0}, plain], 0.2)
    assert found == pytest.approx({("a", "Add"): 0.1, ("b", "Add"): 0.1})


KERNELS = st.dictionaries(
    st.tuples(st.text("abc", min_size=1), st.just("Op")), st.floats(0, 1e6), min_size=1, max_size=5
)


@given(KERNELS, st.floats(1e-3, 1e5))
def test_shares_add_up_to_the_size(run: dict[tuple[str, str], float], size: float) -> None:
    found = net([run], size)
    assert sum(found.values()) == pytest.approx(size)
    assert all(value > 0 for value in found.values())
    ordered = sorted(run, key=lambda name: run[name])
    assert all(found[a] <= found[b] * (1 + 1e-9) for a, b in pairwise(ordered)), "in their order"


def test_kernels_that_are_long_because_the_machine_is_busy_are_long_each_by_its_own_length() -> None:
    """Twice as long by the clock, and a profiler that takes 0.01 ms in all: no small kernel vanishes."""
    found = net([{("large", "MatMul"): 2005.0, ("small", "Add"): 205.0}] * 3, 1.1, 1.11)
    assert found["small", "Add"] == pytest.approx(0.1)
    assert found["large", "MatMul"] == pytest.approx(1.0)
