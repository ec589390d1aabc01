"""What a plan expects of each part, for simulations and reports. Costs are made up, nothing is measured."""

from __future__ import annotations

import pytest

from ruvcompile.plan import Plan
from ruvcompile.program import Program
from ruvrun.backends import at_work
from ruvrun.manifest.blocks import pool_of
from ruvrun.pipeline.chunks import chunks_beside
from tests.compiler.planned import LAYERS, fleet, node, plan_of, table
from tests.decoders import tiny_program


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("forecast"), layers=LAYERS)


def test_what_the_head_sends_and_receives_is_its_work(program) -> None:
    """A graph's inputs come from the head and its results go there: both ends of the way take time for every byte."""
    costs = table(program, {"pi5": 1.0}, overhead={"byte_ms": 0.001})
    plan = plan_of(program, fleet(node("a"), node("b")), costs, stages=1, streams=1)
    stage, head = plan.forecast.pipelines[0].stages[0].step_ms(1), plan.forecast.head_ms(1)
    moved = plan.forecast.pipelines[0].hops
    assert head == pytest.approx(0.001 * sum(hop.bytes_per_row for hop in moved))
    assert head > 0
    assert stage == pytest.approx(8 + head), "the stage has the same bytes to take and to give"


_WITH_BLOCKS_AND_SLOTS = (("intel-cpu", "openvino"), ("pi5", "onnxruntime"))


def _two_stages(program: Program, target: str, backend: str) -> Plan:
    costs = table(program, {target: 1.0}, backend=backend)
    asked = {"stages": 2, "replicas": 1, "streams": 4, "context": 128}
    return plan_of(program, fleet(node("a", target), node("b", target)), costs, **asked)


def test_where_all_stages_have_blocks_more_are_expected_at_work_than_are_planned_for(program) -> None:
    shared, slots = (_two_stages(program, *each).forecast for each in _WITH_BLOCKS_AND_SLOTS)
    assert (shared.streams, slots.streams) == (4, 4)
    assert [each.pool for each in (*shared.pipelines, *slots.pipelines)] == [pool_of(128, 4), None]
    most = [max(rows for rows, _ in each.pipelines[0].stages[0].step_ms.points) for each in (shared, slots)]
    assert most == [at_work({"openvino"}, 4), 4] == [16, 4]


@pytest.mark.parametrize("ragged", [True, False])
def test_prompts_are_expected_to_go_beside_those_who_decode_as_the_head_will_have_them(program, ragged: bool) -> None:
    plan = _two_stages(program, *_WITH_BLOCKS_AND_SLOTS[not ragged])
    (pipeline,) = plan.forecast.pipelines
    assert pipeline.ragged is ragged
    assert pipeline.beside == chunks_beside(plan.expected, ragged=ragged) != ()
