"""Laws of shapes on fleets that are drawn: more is never worse, an order of nodes means nothing, the best is picked."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ruvcompile.errors import FitError
from ruvcompile.fleet import Link
from ruvcompile.plan import make_plan
from ruvcompile.plan.pick import pick
from ruvcompile.program import Program
from tests.compiler.planned import LAYERS, facts_of, fleet, node, plan_of, small, table
from tests.decoders import tiny_program

QUICK = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("shapes"), layers=LAYERS)


def machine(number: int) -> st.SearchStrategy:
    return st.builds(
        lambda target, layers: small(f"m{number}", layers, 4, target=target),
        st.sampled_from(["pi5", "host"]),
        st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    )


fleets = st.integers(2, 4).flatmap(lambda count: st.tuples(*(machine(number) for number in range(count))))
speeds = st.fixed_dictionaries({"pi5": st.sampled_from([1.0, 2.5]), "host": st.sampled_from([0.7, 1.0])})
links = st.builds(Link, st.sampled_from([1e5, 1e8]), st.sampled_from([0.0, 1e-3]))
asked = st.fixed_dictionaries(
    {"streams": st.sampled_from([1, 4]), "objective": st.sampled_from(["throughput", "latency"])}
)


def value(program: Program, nodes, link: Link, costs, options) -> float:
    """What the plan is chosen by; 0 where nothing fits."""
    try:
        plan = plan_of(program, fleet(*nodes, link=link), costs, **options)
    except FitError:
        return 0.0
    return plan.figures["predicted_tokens_per_s_one" if options["objective"] == "latency" else "predicted_tokens_per_s"]


@QUICK
@given(nodes=fleets, ms=speeds, link=links, options=asked)
def test_more_is_never_worse(program, nodes, ms, link, options) -> None:
    """Neither another node nor more memory of one."""
    costs = table(program, ms, per_row=0.3)
    fewer = value(program, nodes[:-1], link, costs, options)
    all_ = value(program, nodes, link, costs, options)
    assert all_ >= fewer - 0.011, "figures have two digits"
    more = (*nodes[:-1], replace(nodes[-1], memory=4 << 30))
    assert value(program, more, link, costs, options) >= all_ - 0.011


@QUICK
@given(nodes=fleets, ms=speeds, link=links, options=asked, data=st.data())
def test_the_order_of_the_fleet_does_not_matter(program, nodes, ms, link, options, data) -> None:
    costs = table(program, ms, per_row=0.3)
    turned = data.draw(st.sampled_from(list(permutations(nodes))))
    plans = []
    for some in (nodes, turned):
        try:
            plan = plan_of(program, fleet(*some, head=nodes[0].name, link=link), costs, **options)
        except FitError as error:
            plans.append(error.message)
        else:
            plans.append(plan.figures)
    assert plans[0] == plans[1]


@QUICK
@given(
    cpus=st.lists(st.sampled_from([(), (0,), (1,), (0, 1)]), min_size=2, max_size=5),
    cores=st.sampled_from([2, 3]),
    options=asked,
    data=st.data(),
)
def test_the_order_of_processes_here_does_not_matter(program, cpus, cores, options, data) -> None:
    """Who shares cores with whom is dealt and told apart by names."""
    nodes = [node(f"m{number}", "host", address="local", cpus=own) for number, own in enumerate(cpus)]
    costs, link = table(program, {"host": 1.0}, per_row=0.3, beside=(1, 2)), Link(1e9, 1e-4)
    turned = data.draw(st.permutations(nodes))
    one, two = (
        facts_of(program, fleet(*some, head="m0", link=link), costs, cores=cores, **options) for some in (nodes, turned)
    )
    assert {each.name: each.cpus for each in one.members} == {each.name: each.cpus for each in two.members}
    assert make_plan(one).figures == make_plan(two).figures


@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    wanted=st.integers(1, 3),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_the_most_valuable_pipelines_are_picked(counts, wanted, data) -> None:
    sorts = data.draw(
        st.lists(st.tuples(*(st.integers(0, 2) for _ in counts)).filter(any), min_size=1, max_size=4, unique=True)
    )
    worth = data.draw(st.lists(st.sampled_from([1.0, 1.5, 4.0]), min_size=len(sorts), max_size=len(sorts)))
    best = None

    def every(at: int, left: tuple[int, ...], missing: int, total: float) -> None:
        nonlocal best
        if missing == 0:
            best = total if best is None else max(best, total)
        elif at < len(sorts):
            for count in range(missing + 1):
                rest = tuple(have - count * one for have, one in zip(left, sorts[at], strict=True))
                if min(rest) >= 0:
                    every(at + 1, rest, missing - count, total + count * worth[at])

    every(0, tuple(counts), wanted, 0.0)
    found = pick(sorts, worth, counts, wanted)
    assert (found is None) == (best is None)
    if found is not None:
        assert sum(found) == wanted
        assert sum(count * one for count, one in zip(found, worth, strict=True)) == best
