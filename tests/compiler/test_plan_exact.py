"""Plans against trying everything: every shape, every choice and order of nodes, all convex cuts, all copies of them.

``tests/plan_cases.py`` prices them by hand. Thousands of cases are tried with ``--system``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ruvcompile.errors import FitError
from ruvcompile.partition import Hop, Value
from ruvcompile.plan import Plan, make_plan
from ruvcompile.plan.memory import activation_bytes
from ruvcompile.program import Program
from tests.compiler.planned import facts_of
from tests.decoders import tiny_program
from tests.plan_cases import Case, Machine
from tests.plan_draws import cases, decoders
from tests.plan_inputs import costs_of, fleet_of, program_of

QUICK = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
LAWS = settings(QUICK, max_examples=30)
LONG = settings(QUICK, max_examples=1000)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return tiny_program(Path(tmp_path_factory.mktemp("exact")), layers=2)


def plan_of(case: Case, program: Program | None = None, order: Sequence[int] | None = None) -> Plan | None:
    """The plan of a case, its nodes listed in an order; None where nothing fits."""
    made, types = (program, {}) if program is not None else program_of(case)
    costs, asked = costs_of(case, made, types), {"streams": case.streams, "objective": case.objective}
    if case.shape is not None:
        asked |= {"replicas": case.shape[0], "stages": case.shape[1]}
    try:
        bare = facts_of(made, fleet_of(replace(case, keeper=frozenset()), 0), costs, types=types, **asked)
        taken = activation_bytes(bare)
        return make_plan(facts_of(made, fleet_of(case, taken, order), costs, types=types, **asked))
    except FitError:
        return None


def value(case: Case, plan: Plan | None) -> float:
    """What it was chosen by; 0 for none."""
    return 0.0 if plan is None else dict(plan.rates)[1 if case.objective == "latency" else case.streams]


def check(case: Case, program: Program | None = None) -> None:
    assert value(case, plan_of(case, program)) == pytest.approx(case.best())


@given(cases())
@QUICK
def test_a_plan_is_the_best_there_is(case: Case) -> None:
    check(case)


@given(decoders())
@QUICK
def test_a_decoders_plan_is_the_best_there_is(decoder: Program, case: Case) -> None:
    check(case, decoder)


@pytest.mark.system
@given(cases())
@LONG
def test_a_plan_is_the_best_there_is_thousands_of_times(case: Case) -> None:
    check(case)


@pytest.mark.system
@given(decoders())
@LONG
def test_a_decoders_plan_is_the_best_there_is_thousands_of_times(decoder: Program, case: Case) -> None:
    check(case, decoder)


@given(cases(shared=True, items=4))
@settings(QUICK, max_examples=40)
def test_a_weight_that_is_held_once_hides_no_plan(case: Case) -> None:
    check(case)


def test_a_pipeline_is_not_made_faster_where_its_larger_share_costs_all_of_them(decoder: Program) -> None:
    """Turned round, the slower of two would serve a single sequence sooner, and get three of five sequences."""
    machines = [
        Machine((7.812, 4.683, 0.416, 4.683, 0.416, 8.212), per_row=1.0, head_ms=1.0),
        Machine((5.678, 2.965, 7.38, 2.965, 7.38, 1.007), per_row=1.0),
        Machine((1.229, 7.088, 5.095, 7.088, 5.095, 7.035), per_row=0.1, head_ms=1.0),
    ]
    ways = {(0, 2): 1, (0, 3): 1, (2, 1): 1} | dict.fromkeys([(1, 0), (1, 3), (2, 0), (2, 3), (3, 0), (3, 1)], 4)
    case = Case(
        tuple(Value(item - 1, (item,), 0) for item in range(7)),
        (0,) * 6,
        tuple(machines),
        tuple((what, 0, frozenset[int]()) for what in (0, 1, 2, 1)),
        {pair: Hop(float(ways.get(pair, 0))) for pair in permutations(range(4), 2)},
        streams=5,
        objective="throughput",
        decoder=True,
        shape=(2, 2),
    )
    check(case, decoder)
    assert case.best() == pytest.approx(124.083339)


def with_another(case: Case, data: st.DataObject) -> Case:
    """The case with one more node, of a kind there is."""
    names, few = range(len(case.nodes)), [Hop(), Hop(1.0, 0.5), *case.ways.values()]
    what = data.draw(st.integers(0, len(case.machines) - 1))
    pairs = [pair for name in names for pair in ((name, len(names)), (len(names), name))]
    ways = {pair: data.draw(st.sampled_from(few)) for pair in pairs}
    keeper = case.keeper | {len(names)} if case.keeper else frozenset()
    return replace(case, nodes=(*case.nodes, (what, 0, frozenset())), ways={**case.ways, **ways}, keeper=keeper)


def check_more(case: Case, more: Case, program: Program | None = None) -> None:
    assert value(more, plan_of(more, program)) >= value(case, plan_of(case, program)) * (1 - 1e-9)


@given(cases(nodes=3) | decoders(nodes=3), st.data())
@LAWS
def test_another_node_never_makes_it_worse(decoder: Program, case: Case, data: st.DataObject) -> None:
    check_more(case, with_another(case, data), decoder if case.decoder else None)


@given(cases(), st.data())
@LAWS
def test_more_memory_never_makes_it_worse(case: Case, data: st.DataObject) -> None:
    number, added = data.draw(st.integers(0, len(case.nodes) - 1)), data.draw(st.sampled_from([1, 5, 1000]))
    what, room, barred = case.nodes[number]
    roomy = (what, room + added if room else 0, barred)
    check_more(case, replace(case, nodes=(*case.nodes[:number], roomy, *case.nodes[number + 1 :])))


@given(cases(shared=True) | decoders(), st.data())
@LAWS
def test_the_order_of_the_nodes_does_not_matter(decoder: Program, case: Case, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(case.nodes))))
    program = decoder if case.decoder else None
    one, two = (plan_of(case, program, nodes) for nodes in (None, order))
    assert told(one) == told(two)


def told(plan: Plan | None) -> Any:
    """What a plan says; what it turned down is listed as the fleet is."""
    return plan and {**plan.figures, "rejected": sorted(map(str, plan.figures["rejected"])), "cuts": plan.cuts}
