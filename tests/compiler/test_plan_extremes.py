"""Costs and links at the ends of what their files may say: there is a plan of plain numbers, or a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ruvcompile.errors import FitError
from ruvcompile.fleet import Link
from ruvcompile.program import Program
from ruvrun.costs import CostTable, LinkCost, Overhead, Point
from tests.compiler.planned import fleet, node, plan_of, table
from tests.decoders import tiny_program

MS = st.sampled_from([0.0, 5e-324, 1e-12, 1.0, 1e9, 1e18])
BYTES = st.sampled_from([0, 1, 10**9, 10**18])
WEIGHTS = st.sampled_from([(0, 0), (1, 0), (1, 100), (10**16, 10**18), (10**18, 1), (0, 10**18)])
WAYS = st.builds(Link, st.sampled_from([1.0, 1e9, 1e300]), st.sampled_from([0.0, 1e-300, 3600.0]))


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("extremes"), layers=1)


@st.composite
def tables(draw: st.DrawFn, costs: CostTable) -> CostTable:
    """Any of a table's numbers at any of its ends."""
    weights, resident = draw(WEIGHTS)
    unit = [
        msgspec.structs.replace(
            row,
            ms=draw(MS),
            ms_per_token=draw(MS),
            resident_bytes=resident,
            weight_bytes=weights,
            curve=[Point(ms=draw(MS), rows=rows, tokens=tokens) for rows, tokens in draw(PLACES)],
        )
        for row in costs.unit
    ]
    own: dict[str, Any] = {name: draw(MS) for name in ("stage_ms", "head_ms", "head_row_ms", "byte_ms", "hop_ms")}
    size = draw(BYTES)
    overhead = [
        Overhead(kind="decoder", target=target, backend="onnxruntime", threads=1, source=0, runtime_bytes=size, **own)
        for target in ("pi5", "host")
    ]
    speed = draw(st.sampled_from([1e-15, 1.0, 1e18]))
    link = LinkCost(sender="a", receiver="b", latency_ms=draw(MS), bytes_per_s=speed, source=0)
    return msgspec.structs.replace(costs, unit=unit, overhead=overhead, link=[link])


PLACES = st.sampled_from([[], [(1, 1)], [(1, 1), (2, 1)], [(1, 1), (10**18, 1)], [(1, 1), (1, 256)]])
ASKED = st.fixed_dictionaries(
    {
        "streams": st.sampled_from([None, 1, 5, 100_000]),
        "objective": st.sampled_from(["throughput", "latency"]),
        "prompt_tokens": st.sampled_from([1, 2**31 - 1]),
        "stages": st.sampled_from([None, 2]),
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(way=st.none() | WAYS, asked=ASKED, memory=st.sampled_from([None, 2**20, 2**60]), data=st.data())
def test_a_plan_is_made_of_numbers_or_is_refused(program, way, asked, memory, data) -> None:
    costs = data.draw(tables(table(program, {"pi5": 1.0, "host": 1.0})))
    nodes = [node("a", memory=memory), node("b", "host"), node("c", "host")]
    try:
        plan = plan_of(program, replace(fleet(*nodes), default_link=way), costs, **asked)
    except FitError:
        return
    told = json.loads(json.dumps(plan.figures, allow_nan=False))
    assert told["predicted_tokens_per_s"] >= 0
    assert 0 <= told["gap"] <= 1
    assert told["lower_bound_ms"] >= 0
