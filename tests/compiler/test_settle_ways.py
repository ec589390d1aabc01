"""What a run that was seen says of costs, ways and waits, and what is told of that: no more than it can say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from ruvcompile.measure.staged import Reality
from ruvcompile.partition import Hop, Value
from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.program import Program
from ruvcompile.progress import Silent
from ruvcompile.settle import promised, promised_alone, settle
from ruvcompile.settle.correct import corrected, with_waits, with_ways
from ruvcompile.settle.held import by_own_time
from ruvcompile.settle.seen import blank, counts, look_up, with_reality
from ruvrun.costs import CostTable, merge
from tests.compiler.planned import facts_of, fleet, node, table
from tests.decoders import tiny_program
from tests.plan_cases import Case, Machine
from tests.plan_inputs import costs_of, fleet_of, program_of


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("ways"), layers=3)


def planned(program: Program, **asked: object) -> tuple[Facts, Plan]:
    """Two processes of this machine, between which nobody says what the way is."""
    machines = replace(fleet(*(node(name, "host", address="local") for name in "ab")), default_link=None)
    facts = facts_of(program, machines, table(program, {"host": 1.0}), **({"stages": 2, "streams": 4} | asked))
    return facts, make_plan(facts)


def test_what_is_left_of_a_single_round_is_the_ways(program) -> None:
    facts, plan = planned(program)
    longer = with_ways(plan, 0.8 * promised_alone(plan), facts)
    assert longer.hop_ms == pytest.approx((1e3 / 0.8 - 1e3) / promised_alone(plan) / 3), "to, between and back"
    assert promised_alone(make_plan(longer, plan.cuts)) == pytest.approx(0.8 * promised_alone(plan), rel=1e-6)


def test_a_way_that_the_fleet_tells_is_believed(program) -> None:
    machines = fleet(*(node(name, "host", address="local") for name in "ab"))
    facts = facts_of(program, machines, table(program, {"host": 1.0}), stages=2, streams=4)
    plan = make_plan(facts)
    assert with_ways(plan, 0.8 * promised_alone(plan), facts) == facts


def test_what_is_left_of_the_round_of_all_is_waiting(program) -> None:
    facts, plan = planned(program)
    longer = with_waits(plan, {plan.streams: 0.8 * promised(plan)}, facts)
    again = make_plan(longer, plan.cuts)
    assert promised(again) == pytest.approx(0.8 * promised(plan), rel=1e-3)
    assert promised_alone(again) == promised_alone(plan), "who is alone waits for nobody"
    assert again.cuts == make_plan(longer).cuts == plan.cuts, "all cuts alike"


def test_that_a_round_was_shorter_than_its_parts_nothing_explains(program) -> None:
    facts, plan = planned(program)
    longer = with_waits(plan, {plan.streams: 1.25 * promised(plan)}, facts)
    assert make_plan(longer, plan.cuts).rates == plan.rates


def test_a_few_wait_for_each_other_as_much_as_was_seen_of_a_few(program) -> None:
    """Steps of one row suffer more from company than those of many: what all get says nothing of that."""
    facts, plan = planned(program, streams=8)
    longer = with_waits(plan, {2: promised(plan, 2) / 1.5, 8: promised(plan) / 1.2}, facts)
    again = make_plan(longer, plan.cuts)
    told = {streams: promised(plan, streams) / promised(again, streams) for streams in (1, 2, 4, 8)}
    assert told == pytest.approx({1: 1.0, 2: 1.5, 4: 1.4, 8: 1.2}, rel=1e-3), "between them, in proportion"


def seen(facts: Facts, plan: Plan, company: float, lone: float, others: float = 1.0, few: float = 1.0) -> Facts:
    """Stages took so many times what was expected of them, with all sequences and with one; one for each stage got
    ``few`` times less than promised.

    Strangers made all steps ``others`` times as long, and the rounds with them; not the ways.
    """
    many = reality([company * ms for ms in plan.inner_ms], promised(plan) / company / others, plan.streams, others)
    stages = [lone * ms for ms in plan.alone_ms]
    round_ms = 1e3 / promised_alone(plan) + others * sum(stages) - sum(plan.alone_ms)
    one = reality(stages, 1e3 / round_ms, 1, others)
    some = reality(plan.alone_ms, promised(plan, 2) / company / few / others, 2, others)
    return with_reality(plan, facts, (one, some, many))


def reality(ms: Sequence[float], per_s: float, streams: int, others: float = 1.0) -> Reality:
    """Stages whose threads work so long, and by the clock ``others`` times that."""
    return Reality(tuple(others * each for each in ms), (1,) * len(ms), per_s, streams, tuple(ms))


def test_who_works_alone_is_corrected_by_what_was_seen_alone(program) -> None:
    """Two busy cores cost each other some per cent, which a single user's steps do not pay."""
    facts, plan = planned(program)
    facts = seen(facts, plan, 1.1, 0.9)
    held = look_up(plan, facts)
    assert held is not None
    again = make_plan(corrected(held, facts), plan.cuts)
    assert promised(again) == pytest.approx(promised(plan) / 1.1, rel=0.01)
    assert promised_alone(again) == pytest.approx(promised_alone(plan) / 0.9, rel=0.01)
    ways = [made.forecast.pipelines[0].hops[1].latency_ms for made in (again, plan)]
    assert ways[0] == pytest.approx(ways[1], abs=1e-3), "the stages explain it"
    after = look_up(again, facts)
    assert after is not None
    assert after.agrees


@pytest.mark.parametrize(
    ("company", "lone", "few"), [(1.0, 1.2, 1.0), (1.2, 1.0, 1.0), (1.0, 1.0, 1.25), (1.0, 1.0, 1 / 1.2)]
)
def test_a_promise_to_one_some_or_all_that_does_not_hold_is_no_agreement(
    program, company: float, lone: float, few: float
) -> None:
    facts, plan = planned(program)
    held = look_up(plan, seen(facts, plan, company, lone, few=few))
    assert held is not None
    assert not held.agrees
    assert held.difference == pytest.approx(0.2, abs=0.001)


def test_a_promise_to_a_few_is_corrected(program) -> None:
    facts, plan = planned(program)
    facts = seen(facts, plan, 1.0, 1.0, few=1.25)
    held = look_up(plan, facts)
    assert held is not None
    again = make_plan(corrected(held, facts), plan.cuts)
    assert promised(again, 2) == pytest.approx(promised(plan, 2) / 1.25, rel=0.01)
    assert (promised(again), promised_alone(again)) == pytest.approx((promised(plan), promised_alone(plan)), rel=0.01)


def test_between_one_and_one_for_each_stage_waits_are_seen_too(program) -> None:
    """Two in three stages that share two cores may wait longer for each other than three do."""
    machines = replace(fleet(*(node(name, "host", address="local") for name in "abc")), default_link=None)
    facts = facts_of(program, machines, table(program, {"host": 1.0}), stages=3, streams=8)
    plan = make_plan(facts)
    assert counts(plan) == (1, 2, 3, 8)
    company = {1: 1.0, 2: 1.25, 3: 1.0, 8: 1.0}
    ms = {1: plan.alone_ms, 2: plan.alone_ms, 3: plan.alone_ms, 8: plan.inner_ms}
    looks = [reality(ms[many], promised(plan, many) / company[many], many) for many in counts(plan)]
    facts = with_reality(plan, facts, looks)
    held = look_up(plan, facts)
    assert held is not None
    assert held.difference == pytest.approx(0.2, abs=0.001)
    again = make_plan(corrected(held, facts), plan.cuts)
    told = {many: promised(plan, many) / promised(again, many) for many in company}
    assert told == pytest.approx(company, rel=0.01)


@pytest.mark.parametrize(("stages", "looks"), [(1, (1, 8)), (2, (1, 2, 8)), (4, (1, 2, 4, 8))])
def test_looks_are_few_however_many_stages(program, stages: int, looks: tuple[int, ...]) -> None:
    machines = fleet(*(node(name, "host", address="local") for name in "abcd"[:stages]))
    facts = facts_of(program, machines, table(program, {"host": 1.0}), stages=stages, streams=8)
    assert counts(make_plan(facts)) == looks


def test_what_strangers_took_is_no_cost_of_anything(program) -> None:
    """They had a third of every core: the rounds were longer, which is told, and what is promised stays as it was."""
    facts, plan = planned(program)
    facts = seen(facts, plan, 1.0, 1.0, others=1.5)
    held = look_up(plan, facts)
    assert held is not None
    assert held.difference > 0.3
    assert "others had the cores 33 % of the time" in str(held)
    again = make_plan(corrected(held, facts), plan.cuts)
    assert promised(again) == pytest.approx(promised(plan), rel=0.001)
    assert promised_alone(again) == pytest.approx(promised_alone(plan), rel=0.001)
    assert "others" not in str(look_up(plan, seen(*planned(program), 1.0, 1.0, others=1.02)))


def test_where_a_stage_has_several_threads_the_clock_counts(program, monkeypatch) -> None:
    facts, plan = planned(program)
    monkeypatch.setattr("ruvcompile.settle.seen.by_own_time", lambda _plan: False)
    held = look_up(plan, seen(facts, plan, 1.0, 1.0, others=2.0))
    assert held is not None
    assert held.ratios == held.lone_ratios == pytest.approx((2.0, 2.0))
    assert held.others == 1.0


def test_what_a_quota_or_a_device_makes_of_a_step_the_clock_tells(program, monkeypatch) -> None:
    _, plan = planned(program)
    assert by_own_time(plan)
    ((one, other),) = plan.pipelines
    two_threads = replace(plan, pipelines=((replace(one, threads=2), other),))
    on_gpu = replace(plan, pipelines=((one, replace(other, target=replace(other.target, backends=("openvino-gpu",)))),))
    assert not by_own_time(two_threads)
    assert not by_own_time(on_gpu)
    monkeypatch.setattr("ruvcompile.settle.held.has_cpu_quota", lambda: True)
    assert not by_own_time(plan)


def test_a_look_with_all_of_them_alone_is_half_of_what_is_to_be_known(program) -> None:
    facts, plan = planned(program)
    rows = [msgspec.structs.replace(row, ms=1.0, per_s=1.0) for row in blank(plan, facts, plan.streams)]
    known = merge([facts.costs, CostTable(provenance=facts.costs.provenance, stage=rows)])
    assert look_up(plan, replace(facts, costs=known)) is None


def test_a_plan_for_one_is_looked_at_with_one(program) -> None:
    facts, plan = planned(program, streams=1)
    assert counts(plan) == (1,)
    one = reality([1.2 * ms for ms in plan.inner_ms], promised(plan) / 1.2, 1)
    facts = with_reality(plan, facts, (one,))
    held = look_up(plan, facts)
    assert held is not None
    assert held.seen == held.lone
    assert promised(make_plan(corrected(held, facts), plan.cuts)) == pytest.approx(promised(plan) / 1.2, rel=0.01)


def test_copies_that_one_sequence_does_not_reach_keep_their_costs(program) -> None:
    """It passes the first pipeline; the other's stages had nothing to do, which is not that they took no time."""
    facts, plan = planned(program, stages=1, replicas=2)
    many = reality(plan.inner_ms, promised(plan), plan.streams)
    one = reality([1.5 * plan.alone_ms[0], 0.0], promised_alone(plan) / 1.5, 1)
    few = reality([1.5 * ms for ms in plan.alone_ms], promised(plan, 2), 2)
    facts = with_reality(plan, facts, (one, few, many))
    held = look_up(plan, facts)
    assert held is not None
    again = make_plan(corrected(held, facts), plan.cuts)
    assert promised_alone(again) == pytest.approx(promised_alone(plan) / 1.5, rel=0.01)
    assert promised(again) == pytest.approx(promised(plan), rel=0.01)


def two_parts(first: int, second: int) -> tuple[Facts, Plan, list[int]]:
    """A graph of two stages with so many kB of weights, its plan, and the memory of each process as planned."""
    case = Case(
        values=(Value(-1, (0,), 4), Value(0, (1,), 4), Value(1, (2,), 4)),
        item_bytes=(first, second),
        machines=(Machine((1.0, 1.0)),),
        nodes=((0, 0, frozenset()),) * 2,
        ways={(0, 1): Hop(), (1, 0): Hop()},
        streams=2,
        objective="throughput",
    )
    program, types = program_of(case)
    facts = facts_of(program, fleet_of(case, 0), costs_of(case, program, types), types=types, stages=2, streams=2)
    plan = make_plan(facts)
    told = [stage["predicted_rss_bytes"] for stage in plan.figures["stages"]]
    return facts, plan, told


def test_the_memory_of_a_graphs_processes_is_corrected_by_what_was_seen() -> None:
    """One look suffices, and no more is added to it when it is looked up again; a decoder's table knows it."""
    facts, plan, told = two_parts(1, 1)
    peaks = tuple(size + more for size, more in zip(told, (30 << 20, 10 << 20), strict=True))
    many = Reality(plan.inner_ms, peaks, promised(plan), 2, plan.inner_ms)
    one = Reality(plan.alone_ms, (1, 1), promised_alone(plan), 1, plan.alone_ms)
    facts = with_reality(plan, facts, (one, many))
    found = settle(facts, {}, None, Silent()).plan
    assert [stage["predicted_rss_bytes"] for stage in found.figures["stages"]] == [size + (20 << 20) for size in told]
    assert [each.runtime_bytes for each in found.expected] == [
        each.runtime_bytes + (20 << 20) for each in plan.expected
    ]
    assert found.cuts == plan.cuts


def test_weights_that_lie_in_memory_twice_are_planned_for_where_they_are() -> None:
    """A large part and a small one: what both are off by on average would be wrong for each."""
    facts, plan, told = two_parts(1_000, 100_000)
    peaks = tuple(size + (5 << 20) + each.weight_bytes // 2 for size, each in zip(told, plan.expected, strict=True))
    many = Reality(plan.inner_ms, peaks, promised(plan), 2, plan.inner_ms)
    one = Reality(plan.alone_ms, peaks, promised_alone(plan), 1, plan.alone_ms)
    found = settle(with_reality(plan, facts, (one, many)), {}, None, Silent()).plan
    assert [stage["predicted_rss_bytes"] for stage in found.figures["stages"]] == pytest.approx(peaks, rel=1e-3)


def test_what_a_decoder_takes_with_its_space_empty_is_no_correction(program) -> None:
    facts, plan = planned(program)
    told = settle(seen(facts, plan, 1.0, 1.0), {}, None, Silent()).plan
    assert told.figures["stages"] == plan.figures["stages"]


def test_how_far_off_the_first_plan_was_is_told_whatever_it_was_corrected_to(program) -> None:
    """Stages took twice what their units were said to take; then the plan says so, and agrees with that by itself."""
    facts, plan = planned(program)
    told = settle(seen(facts, plan, 2.0, 2.0), {}, None, Silent()).plan.figures["measured"]
    assert told["uncorrected"] == pytest.approx(1.0, abs=1e-3)
    assert told["difference"] < 0.03
