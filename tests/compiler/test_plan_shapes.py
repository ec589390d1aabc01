"""Which shape a plan takes of a fleet. Costs are made up, nothing is measured."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ruvcompile.errors import FitError, UsageError
from ruvcompile.fleet import Link, Place, Wanted
from ruvcompile.program import Program
from ruvrun.costs import LinkCost
from ruvrun.manifest import PACKED, RUNTIME_BYTES, SERVING_BYTES
from tests.compiler.planned import LAYERS, facts_of, fleet, names, node, plan_of, shape_of, small, table
from tests.decoders import tiny_program


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("shapes"), layers=LAYERS)


def rate(plan) -> float:
    return plan.figures["predicted_tokens_per_s"]


def used(plan) -> list[str]:
    return [name for pipeline in names(plan) for name in pipeline]


def four() -> list:
    return [node(f"n{number}") for number in range(4)]


def test_nodes_that_hold_the_model_are_copies_for_many(program) -> None:
    plan = plan_of(program, fleet(*four()), table(program, {"pi5": 1.0}), streams=8)
    assert shape_of(plan) == (4, 1)
    assert names(plan) == [["n0"], ["n1"], ["n2"], ["n3"]]
    assert plan.space is not None
    assert plan.space.streams == 2, "of each pipeline"
    others = {(e["shape"]["replicas"], e["shape"]["stages"]): e["tokens_per_s"] for e in plan.figures["alternatives"]}
    assert set(others) == {(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3), (1, 4)}
    assert max(others.values()) < rate(plan)


def test_for_one_user_one_node_is_enough(program) -> None:
    plan = plan_of(program, fleet(*four()), table(program, {"pi5": 1.0}), streams=1)
    assert shape_of(plan) == (1, 1)
    assert names(plan) == [["n0"]], "the head's own: nothing travels"
    assert plan.figures["verdict"].startswith("one node is faster")


def test_a_model_that_two_nodes_hold_is_two_pipelines_of_two(program) -> None:
    costs = table(program, {"pi5": 1.0}, resident=3000)
    weights = 3000 * sum(facts_of(program, fleet(node("a")), costs).weight_bytes.values())
    nodes = [
        node(f"n{number}", memory=RUNTIME_BYTES + SERVING_BYTES + (8 << 20) + int(0.7 * weights)) for number in range(4)
    ]
    plan = plan_of(program, fleet(*nodes), costs, streams=8)
    assert shape_of(plan) == (2, 2)
    assert "does not fit on one node" in plan.figures["verdict"]
    assert sorted(used(plan)) == ["n0", "n1", "n2", "n3"]
    assert len(plan.pieces) == 2
    fits = {(e["shape"]["replicas"], e["shape"]["stages"]): e["fits"] for e in plan.figures["alternatives"]}
    assert (fits[1, 1], fits[4, 1], fits[1, 2]) == (False, False, True)


def test_stages_alone_leave_the_copies_to_the_fleet(program) -> None:
    costs = table(program, {"pi5": 1.0})
    assert shape_of(plan_of(program, fleet(*four()), costs, stages=2)) == (2, 2)
    assert shape_of(plan_of(program, fleet(*four()), costs, stages=2, streams=1)) == (2, 2), "two are no faster for one"
    assert shape_of(plan_of(program, fleet(*four()), costs, stages=2, replicas=1)) == (1, 2)
    assert shape_of(plan_of(program, fleet(*four()), costs, replicas=2, streams=8)) == (2, 2)


def test_what_forcing_costs_is_shown(program) -> None:
    plan = plan_of(program, fleet(*four()), table(program, {"pi5": 1.0}), stages=4, replicas=1, streams=8)
    (own,) = [e for e in plan.figures["alternatives"] if e["why"].startswith("the plan's own choice")]
    assert own["shape"] == {"replicas": 4, "stages": 1}
    assert own["tokens_per_s"] > rate(plan)


def test_the_faster_of_unlike_nodes_gets_more(program) -> None:
    machines = fleet(node("slow"), node("fast", "host"))
    plan = plan_of(program, machines, table(program, {"pi5": 3.0, "host": 1.0}), stages=2, streams=4)
    share = {stage["node"]: stage["graph_nodes"] for stage in plan.figures["stages"]}
    assert share["fast"] > 2 * share["slow"]
    assert plan.figures["gap"] <= 0.01


def test_a_node_that_only_slows_the_others_is_left_out(program) -> None:
    machines = fleet(node("a", "host"), node("b", "host"), node("snail"))
    plan = plan_of(program, machines, table(program, {"pi5": 1000.0, "host": 1.0}), streams=4)
    assert sorted(used(plan)) == ["a", "b"]


def test_the_heads_work_is_paid_on_its_node(program) -> None:
    machines, free = fleet(node("head"), node("other")), table(program, {"pi5": 1.0})
    busy = table(program, {"pi5": 1.0}, overhead={"head_ms": 4.0})
    for costs, most in ((free, {"head": 4, "other": 4}), (busy, {"head": 3, "other": 5})):
        plan = plan_of(program, machines, costs, stages=2, streams=4)
        ms = {stage["node"]: stage["predicted_ms_one"] for stage in plan.figures["stages"]}
        assert {name: round(value) for name, value in ms.items()} == most
    assert plan.figures["bottleneck_ms"] == 10.0, "3 units of 2 rows and the head, or 5 units"


def test_a_head_feeds_no_more_than_it_can(program) -> None:
    costs = table(program, {"pi5": 1.0}, overhead={"head_ms": 10.0})
    plan = plan_of(program, fleet(*four()), costs, replicas=4, streams=8)
    assert rate(plan) <= 1e3 * 8 / (4 * 10), "of each round of two rows on four pipelines"


def test_measured_links_count_where_the_fleet_says_nothing(program) -> None:
    costs = table(program, {"pi5": 1.0})
    slow = LinkCost(sender="a", receiver="b", latency_ms=50.0, bytes_per_s=1e6, source=0)
    machines = replace(fleet(node("a"), node("b")), default_link=None)
    near = plan_of(program, machines, costs, stages=2, streams=1)
    far = plan_of(program, machines, replace_links(costs, [slow]), stages=2, streams=1)
    told = plan_of(program, replace(machines, default_link=Link(1e9, 0.0)), replace_links(costs, [slow]), stages=2)
    assert near.figures["predicted_tokens_per_s_one"] > 5 * far.figures["predicted_tokens_per_s_one"] / 3
    assert told.figures["predicted_tokens_per_s_one"] > near.figures["predicted_tokens_per_s_one"]


def test_what_the_links_are_known_from_is_told(program) -> None:
    costs = table(program, {"pi5": 1.0})
    known = LinkCost(sender="a", receiver="b", latency_ms=0.01, bytes_per_s=1e9, source=0)
    machines = replace(fleet(node("a"), node("b"), node("c")), default_link=None)
    told = replace(machines, default_link=Link(1e9, 0.0))
    for links, where, sources in (([], machines, "assumed"), ([known], machines, "measured"), ([known], told, "fleet")):
        figures = plan_of(program, where, replace_links(costs, links), stages=2, replicas=1, streams=2).figures
        assert {link["source"] for link in figures["links"]} == {sources}
        assert [(link["from"], link["to"]) for link in figures["links"]] == [("a", "b"), ("b", "a")]
        assert figures["link_source"] == sources
    mixed = plan_of(program, machines, replace_links(costs, [known]), stages=3, streams=3).figures
    assert {link["source"] for link in mixed["links"]} == {"assumed", "measured"}
    assert mixed["link_source"] == "assumed", "the least that is known"
    alone = plan_of(program, fleet(node("a")), costs, streams=1).figures
    assert (alone["links"], "link_source" in alone) == ([], False)


def replace_links(costs, links):
    return msgspec.structs.replace(costs, link=links)


def test_processes_that_share_cores_share_their_speed(program) -> None:
    nodes = [node(name, "host", address="local", cpus=cpus) for name, cpus in (("a", (0,)), ("b", (1,)), ("c", (1,)))]
    plan = plan_of(program, fleet(*nodes), table(program, {"host": 1.0}), stages=3, streams=3)
    many, one = (
        {stage["node"]: round(stage[key]) for stage in plan.figures["stages"]}
        for key in ("predicted_ms", "predicted_ms_one")
    )
    assert many == {"a": 4, "b": 4, "c": 4}, "four units, two, and two"
    assert one == {"a": 4, "b": 2, "c": 2}, "who shares a core with one that waits has it alone"
    rates = dict(plan.rates)
    assert rates[1] == pytest.approx(1e3 / 8.3, rel=0.01), "one step passes all eight units and three ways, alone"
    assert rates[3] == pytest.approx(3e3 / (3 * 4), rel=0.01), "each core has four units to do for each of three steps"


def test_processes_without_a_core_each_are_dealt_one_and_no_core_has_more_to_do_than_another(program) -> None:
    nodes = [node(name, "host", address="local", threads=1) for name in "abc"]
    plan = plan_of(program, fleet(*nodes), table(program, {"host": 1.0}), stages=3, streams=2)
    assert {member.name: member.cpus for member in plan.members} == {"a": (0,), "b": (1,), "c": (0,)}
    many = {stage["node"]: round(stage["predicted_ms_one"]) for stage in plan.figures["stages"]}
    assert many == {"a": 2, "b": 4, "c": 2}, "two stages take turns on one core, the third has one for itself"
    assert dict(plan.rates)[2] == pytest.approx(2e3 / 8.3, rel=0.01), "two steps keep two cores busy"


def test_two_processes_on_two_cores_are_left_where_they_like_to_run(program) -> None:
    nodes = [node(name, "host", address="local", threads=1) for name in "ab"]
    plan = plan_of(program, fleet(*nodes), table(program, {"host": 1.0}), stages=2, streams=2)
    assert {member.cpus for member in plan.members} == {()}


def test_who_shares_cores_with_the_head_waits_for_it_once(program) -> None:
    nodes = [node(name, "host", address="local", cpus=(0,)) for name in "ab"]
    costs = table(program, {"host": 1.0}, overhead={"stage_ms": 0.0, "head_ms": 1.0})
    plan = plan_of(program, fleet(*nodes), costs, stages=2, streams=2)
    assert plan.figures["bottleneck_ms"] == pytest.approx(8 + 1), "eight units and the head's step on one core"
    assert dict(plan.rates)[1] == pytest.approx(1e3 / (8 + 1 + 0.2), rel=0.01)


def test_a_company_is_planned_with_what_was_measured_in_it(program) -> None:
    nodes = [node(name, "host", address="local") for name in "ab"]
    costs = table(program, {"host": 1.0}, beside=(1, 2))
    plan = plan_of(program, fleet(*nodes), costs, streams=4)
    alone = next(e for e in plan.figures["alternatives"] if e["shape"] == {"replicas": 1, "stages": 1})
    assert plan.figures["stages"][0]["predicted_ms"] == pytest.approx(2 * 8 * 1.1), "two rows, and the other at work"
    assert plan.figures["stages"][0]["predicted_ms_one"] == pytest.approx(8), "of a single user the other waits"
    assert alone["tokens_per_s_one"] == pytest.approx(1000 / 8, abs=0.01)


def test_the_bound_is_of_what_was_made_small(program) -> None:
    """With two rows a step the slowest stage takes longer than one pass of one row: neither bounds the other."""
    costs = table(program, {"pi5": 1.0})
    plan = plan_of(program, fleet(node("a"), node("b")), costs, stages=2, streams=4, objective="latency")
    one_pass = plan.figures["bound_of"]["latency_ms"]
    assert plan.figures["lower_bound_ms"] == pytest.approx(one_pass) == pytest.approx(8.2, rel=1e-3)
    assert plan.figures["bottleneck_ms"] > one_pass
    assert "bound_of" not in plan_of(program, fleet(node("a"), node("b")), costs, stages=2, streams=4).figures


def test_both_bounds_are_told_where_the_search_was_not_whole(program, monkeypatch) -> None:
    costs = table(program, {"pi5": 1.0})
    whole = plan_of(program, fleet(node("a"), node("b")), costs, stages=2, streams=4).figures
    assert "bounds" not in whole
    assert whole["bound_by"] == "search", "which is as large as the value; the other need not be"
    monkeypatch.setattr("ruvcompile.partition.solve._MOST", 4)
    monkeypatch.setattr("ruvcompile.partition.solve._FEWEST", 4)
    monkeypatch.setattr("ruvcompile.partition.table._MOST_DOWNSETS", 4)
    figures = plan_of(program, fleet(node("a"), node("b")), costs, stages=2, streams=4).figures
    assert not figures["exact"]
    assert figures["bound_by"] == "relaxation"
    assert 0 < figures["lower_bound_ms"] == figures["bounds"]["relaxation"] <= figures["bounds"]["search"]
    assert figures["bounds"]["search"] <= figures["bottleneck_ms"]
    assert figures["gap"] == pytest.approx(1 - figures["lower_bound_ms"] / figures["bottleneck_ms"], abs=1e-4)


def test_a_round_that_is_shorter_than_with_the_least_bottleneck_is_what_is_bounded(program) -> None:
    """Over a slow link the way there and back is the limit, and less work on the slow node makes it shorter."""
    costs, slow = table(program, {"pi5": 2.0, "host": 1.0}), Link(1e9, 3e-3)
    plan = plan_of(program, fleet(node("a", "host"), node("b"), link=slow), costs, stages=2, streams=2)
    one_round = plan.figures["bound_of"]["round_ms"]
    assert plan.figures["lower_bound_ms"] == pytest.approx(one_round)
    assert rate(plan) == pytest.approx(2e3 / one_round, abs=0.01)
    assert (plan.figures["gap"], plan.figures["exact"]) == (0.0, True)
    assert sorted(stage["predicted_ms"] for stage in plan.figures["stages"]) == [2, 7], "4 and 6 is more even"


def test_what_must_stay_stays(program) -> None:
    """The prompt never leaves the head's node: what reads and what makes tokens is there."""
    place = Place("input_ids", ("n1",), Wanted())
    machines = replace(fleet(*four(), head="n1"), places=(place,))
    plan = plan_of(program, machines, table(program, {"pi5": 1.0}), stages=1, streams=8)
    assert names(plan) == [["n1"]]
    with pytest.raises(FitError) as error:
        plan_of(program, machines, table(program, {"pi5": 1.0}), stages=2, streams=8)
    assert error.value.ref == "fleet-rejected"


def test_a_part_that_is_bound_is_where_it_must_be(program) -> None:
    machines = replace(fleet(*four()), places=(Place("/layers.1/*", ("n3",), Wanted()),))
    plan = plan_of(program, machines, table(program, {"pi5": 1.0}), stages=2, replicas=1, streams=4)
    (place,) = [number for number, piece in enumerate(plan.pieces) if "/layers.1/attn/q_proj" in piece.nodes]
    assert names(plan)[0][place] == "n3"
    assert any(entry["node"] == "n0" for entry in plan.figures["rejected"])


def test_a_node_too_small_for_anything_is_told(program) -> None:
    plan = plan_of(program, fleet(node("a"), node("tiny", memory=1 << 20)), table(program, {"pi5": 1.0}), streams=4)
    (entry,) = plan.figures["rejected"]
    assert (entry["node"], entry["rule"]) == ("tiny", "memory")
    assert names(plan) == [["a"]]


def test_measured_weights_are_what_is_planned_with(program) -> None:
    sizes = {}
    for resident in (0, 10):
        plan = plan_of(program, fleet(node("a")), table(program, {"pi5": 1.0}, resident=resident), streams=4)
        sizes[resident] = plan.figures["stages"][0]["predicted_rss_bytes"]
        weights = plan.figures["stages"][0]["weight_bytes"]
    assert sizes[10] - sizes[0] == pytest.approx((10 - PACKED) * weights, rel=1e-3)


def test_what_would_make_it_fit_does(program) -> None:
    costs, nodes = table(program, {"pi5": 1.0}), [small("a", 1, 1000), small("b", 1, 1000)]
    with pytest.raises(FitError) as error:
        plan_of(program, fleet(*nodes), costs, streams=1000)
    assert error.value.ref == "fleet-memory-short"
    ways = (error.value.hint or "").split(" or ")
    assert [way.split()[0] for way in ways] == ["--context", "--streams", "2"], "it is int4 already"
    plan_of(program, fleet(*nodes), costs, streams=1000, context=int(ways[0].split()[1]))
    plan_of(program, fleet(*nodes), costs, streams=int(ways[1].split()[1]))
    plan_of(program, fleet(*nodes, small("c", 1, 1000), small("d", 1, 1000)), costs, streams=1000)
    with pytest.raises(FitError):
        plan_of(program, fleet(*nodes, small("c", 1, 1000)), costs, streams=1000)


def test_cuts_of_a_wrong_number(program) -> None:
    with pytest.raises(UsageError) as error:
        plan_of(program, fleet(*four()), table(program, {"pi5": 1.0}), cut=("layers.0/attn/add",), stages=3)
    assert error.value.ref == "cut-count"


def test_a_forced_cut_of_two_pipelines(program) -> None:
    plan = plan_of(program, fleet(*four()), table(program, {"pi5": 1.0}), cut=("layers.0/attn/add",), streams=8)
    assert shape_of(plan)[1] == 2
    assert plan.pieces[0].outputs == ("layers.0/attn/add",)


def test_a_thousand_nodes_are_planned_like_a_few(program) -> None:
    nodes = [node(f"n{number}") for number in range(1000)]
    plan = plan_of(program, fleet(*nodes), table(program, {"pi5": 1.0}, overhead={"head_ms": 0.5}))
    assert shape_of(plan)[0] > 1
    assert len(plan.figures["alternatives"]) <= 12
