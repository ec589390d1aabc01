"""What a run that was seen says of costs and ways, and what is told of that: no more than it can say."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.program import Program
from ruvcompile.progress import Silent
from ruvcompile.settle import promised, settle
from ruvcompile.settle.correct import with_ways
from ruvcompile.settle.held import blank
from ruvrun.costs import CostTable, StageCost, merge
from tests.compiler.planned import facts_of, fleet, node, table
from tests.decoders import tiny_program


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("ways"), layers=3)


def planned(program: Program, **asked: object) -> tuple[Facts, Plan]:
    """Two processes of this machine, between which nobody says what the way is."""
    machines = replace(fleet(*(node(name, "host", address="local") for name in "ab")), default_link=None)
    facts = facts_of(program, machines, table(program, {"host": 1.0}), stages=2, streams=4, **asked)
    return facts, make_plan(facts)


def seen(facts: Facts, plan: Plan, share: float) -> StageCost:
    """A run that reached this share of what was promised."""
    return msgspec.structs.replace(blank(plan, facts)[0], per_s=share * promised(plan))


def test_what_is_left_of_a_round_is_the_ways(program) -> None:
    facts, plan = planned(program)
    longer = with_ways(plan, seen(facts, plan, 0.8), facts)
    assert longer.hop_ms > 0
    assert promised(make_plan(longer)) == pytest.approx(0.8 * promised(plan), rel=1e-3)


def test_a_round_as_long_as_its_slowest_stage_tells_nothing_of_them(program) -> None:
    """The second stage has seven of eight units: with the longest ways that explain it, nothing would be slower."""
    facts, plan = planned(program, cut=("layers.0/attn/add",))
    assert with_ways(plan, seen(facts, plan, 0.95), facts) == facts


def test_how_far_off_the_first_plan_was_is_told_whatever_it_was_corrected_to(program) -> None:
    """Stages took twice what their units were said to take; then the plan says so, and agrees with that by itself."""
    facts, plan = planned(program)
    rows = [
        msgspec.structs.replace(row, ms=2 * ms, per_s=promised(plan) / 2)
        for row, ms in zip(blank(plan, facts), plan.inner_ms, strict=True)
    ]
    table = merge([facts.costs, CostTable(provenance=facts.costs.provenance, stage=rows)])
    told = settle(replace(facts, costs=table), {}, None, Silent()).plan.figures["measured"]
    assert told["uncorrected"] == pytest.approx(1.0, abs=1e-3)
    assert told["difference"] < 0.03
