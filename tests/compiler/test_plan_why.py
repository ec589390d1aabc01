"""What a plan says of itself: why other shapes lost, what was turned down, and what its costs are known from."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ruvcompile.errors import FitError
from ruvcompile.fleet import Link, Place, Wanted
from ruvcompile.plan import Plan
from ruvcompile.program import Program
from ruvcompile.targets import load_target
from ruvrun.costs import CostTable, Overhead, Point, Provenance, merge
from tests.compiler.planned import LAYERS, facts_of, fleet, node, plan_of, shape_of, small, table
from tests.decoders import tiny_program


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("why"), layers=LAYERS, context=1024)


def others(plan: Plan) -> dict[tuple[int, int], dict]:
    """The alternatives by copies and stages."""
    return {(e["shape"]["replicas"], e["shape"]["stages"]): e for e in plan.figures["alternatives"]}


def four() -> list:
    return [node(f"n{number}") for number in range(4)]


# Why


def test_every_shape_is_compared_for_many_and_for_one_with_the_first_token(program) -> None:
    plan = plan_of(program, fleet(*four()), table(program, {"pi5": 1.0}), streams=8)
    found = others(plan)
    assert found.keys() == {(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3), (1, 4)}
    one, four_stages = found[1, 1], found[1, 4]
    assert one["tokens_per_s"] == one["tokens_per_s_one"] == 125.0, "so many rows cost as many times as much"
    assert four_stages["tokens_per_s"] > 2 * four_stages["tokens_per_s_one"]
    assert one["ttft_ms"] == pytest.approx(512 * 0.8)
    assert four_stages["ttft_ms"] < one["ttft_ms"], "chunks of the prompt follow one another through the stages"
    many = plan.figures["predicted_tokens_per_s"]
    for entry in found.values():
        fewer = 100 * (1 - entry["tokens_per_s"] / many)
        assert entry["why"].startswith(f"{fewer:.1f} % fewer tokens/s; the limit is ")


def test_for_a_single_user_they_are_compared_by_what_one_gets(program) -> None:
    plan = plan_of(program, fleet(*four()), table(program, {"pi5": 1.0}), streams=8, objective="latency")
    why = others(plan)[1, 2]["why"]
    fewer = 100 * (1 - others(plan)[1, 2]["tokens_per_s_one"] / plan.figures["predicted_tokens_per_s_one"])
    way = "the limit is the way of a step, 8.20 ms, 0.20 of them outside of stages"
    assert why == f"{fewer:.1f} % fewer tokens/s for a single user; {way}"


def test_more_nodes_that_give_no_more_are_called_that(program) -> None:
    costs = table(program, {"pi5": 1.0}, labels={"head": 1000.0, "embed": 0.0, "layers.*.attn": 0.0, "layers.*.mlp": 0})
    plan = plan_of(program, fleet(node("a"), node("b"), link=Link(1e15, 0.0)), costs, replicas=1, streams=4)
    assert shape_of(plan) == (1, 1)
    assert others(plan)[1, 2]["why"].startswith("as many tokens/s with 2 nodes; the limit is stage ")


@pytest.mark.parametrize(
    ("link", "says"),
    [
        (Link(1e9, 1e-4), "the limit is stage 1 on b"),
        (Link(5e3, 1e-4), "the limit is the link from a to b"),
        (Link(1e9, 0.1), "the limit is the way of a step, 216.00 ms, 200.00 of them outside of stages"),
    ],
)
def test_what_keeps_a_shape_from_more_is_named(program, link, says) -> None:
    """Two stages of which the second has most to do; or a slow link; or a long way."""
    costs = table(program, {"pi5": 1.0}, labels={"head": 20.0 if says.endswith("on b") else 1.0})
    plan = plan_of(program, fleet(node("a"), node("b"), link=link), costs, streams=4, replicas=1, stages=1)
    assert others(plan)[1, 2]["why"].endswith(says)


def test_a_head_that_feeds_too_many_is_their_limit(program) -> None:
    """The head's node holds no stage: too little of its memory is left for one."""
    machines = fleet(node("head", memory=1 << 20), *four())
    costs = table(program, {"pi5": 1.0}, overhead={"head_ms": 50.0})
    plan = plan_of(program, machines, costs, replicas=1, stages=1, streams=8)
    assert others(plan)[4, 1]["why"].endswith("the limit is the head on head")


def test_what_forcing_costs_is_told_in_what_the_plan_is_chosen_by(program) -> None:
    """The even cut has the least bottleneck, and not the shortest round: forcing it is no gain."""
    costs, slow = table(program, {"pi5": 2.0, "host": 1.0}), Link(1e9, 3e-3)
    asked = {"cut": ("layers.2/attn/add",), "streams": 2}
    plan = plan_of(program, fleet(node("a", "host"), node("b"), link=slow), costs, **asked)
    own = plan.figures["alternatives"][-1]
    assert own["tokens_per_s"] > plan.figures["predicted_tokens_per_s"]
    more = 100 * (own["tokens_per_s"] / plan.figures["predicted_tokens_per_s"] - 1)
    assert own["why"].startswith(f"the plan's own cut: {more:.1f} % more tokens/s; ")


def test_what_does_not_fit_and_what_may_not_be_are_told_apart(program) -> None:
    costs, machines = table(program, {"pi5": 1.0}), fleet(node("a"), node("b"))
    ruled = replace(machines, places=(Place("/layers.0/*", ("a",), Wanted()), Place("/layers.2/*", ("b",), Wanted())))
    plan = plan_of(program, ruled, costs, streams=4)
    assert others(plan)[1, 1]["why"] == "no cut has every part where it may be"
    assert plan.figures["verdict"].startswith("2 stages: no node may hold all of it; ")
    tight = fleet(small("a", 1.2, 100), small("b", 2.2, 100))
    plan = plan_of(program, tight, costs, streams=100, context=256, stages=2)
    assert others(plan)[1, 1]["why"] == "does not fit into the memory of the nodes"
    assert plan.figures["verdict"].startswith("2 stages: the model does not fit on one node; ")


def test_a_node_with_room_for_fewer_sequences_holds_the_model_all_the_same(program) -> None:
    machines = fleet(small("a", 1.6, 100), small("b", 1.6, 100))
    plan = plan_of(program, machines, table(program, {"pi5": 1.0}), streams=100, context=256)
    assert shape_of(plan) == (2, 1)
    told = "2 copies on a node each: one node has no room for 100 sequences; "
    assert plan.figures["verdict"].startswith(told)


# What was turned down


def test_a_fleet_that_is_too_small_says_who_was_turned_down(program) -> None:
    """Memory is short because a rule keeps the large node out: without that the sum alone would puzzle."""
    machines = fleet(small("a", 1, 100), node("large", zone="street"), require=Wanted(zone=("lab",)))
    machines = replace(machines, nodes=(replace(machines.nodes[0], zone="lab"), machines.nodes[1]))
    with pytest.raises(FitError) as caught:
        plan_of(program, machines, table(program, {"pi5": 1.0}), streams=100, context=256)
    assert (caught.value.ref, caught.value.exit_code) == ("fleet-memory-short", 4)
    assert "large: require.zone, wanted lab, has street" in caught.value.context


def test_every_node_that_holds_nothing_for_a_reason_is_listed_with_it(program) -> None:
    rules = {"require": Wanted(provides=("disk",)), "places": (Place("/layers.1/*", ("a",), Wanted(trust=("ours",))),)}
    nodes = [
        node("a", trust="ours", provides=("disk",)),
        node("b", trust="theirs", provides=("disk", "camera")),
        node("c", provides=("camera",)),
        node("tiny", trust="ours", provides=("disk",), memory=1 << 20),
    ]
    plan = plan_of(program, fleet(*nodes, **rules), table(program, {"pi5": 1.0}), streams=1)
    found = [tuple(entry.values()) for entry in plan.figures["rejected"]]
    assert found[:4] == [
        ("c", "require.provides", "disk", "camera"),
        ("b", "place /layers.1/*", "a", "b"),
        ("b", "place /layers.1/* trust", "ours", "theirs"),
        ("tiny", "place /layers.1/*", "a", "tiny"),
    ]
    ((node_, rule, wanted, has),) = found[4:]
    assert (node_, rule) == ("tiny", "memory")
    assert "for the smallest part" in wanted
    assert has == "1024.0 KiB usable"


# What is known, and from where


def threaded(costs: CostTable, threads: int, software: str) -> CostTable:
    """The same rows of so many threads, from another source."""
    unit = [msgspec.structs.replace(row, threads=threads) for row in costs.unit]
    return CostTable(provenance=[Provenance(machine="m", cpu="c", software=software, date="2026-01-01")], unit=unit)


@pytest.mark.parametrize(("own", "told"), [("ruvrun 1", "measured"), ("scaled by 2; ruvrun 1", "scaled")])
def test_costs_are_scaled_where_a_row_is_that_the_plan_is_made_of(program, own, told) -> None:
    """Rows of more threads than the nodes work with were scaled, and nobody asks for them."""
    costs = table(program, {"pi5": 1.0})
    both = merge([threaded(costs, 1, own), threaded(costs, 4, "scaled by 3; ruvrun 1")])
    assert plan_of(program, fleet(node("a")), both, streams=1).figures["cost_source"] == told


@pytest.mark.parametrize("turned", [False, True])
def test_overheads_of_other_threads_are_those_of_the_nearest_number(program, turned) -> None:
    """In whatever order the tables stand."""
    kind = {"kind": "decoder", "target": "pi5", "backend": "onnxruntime", "source": 0}
    own = [Overhead(threads=threads, stage_ms=float(threads), **kind) for threads in (2, 8, 3)]
    costs = msgspec.structs.replace(table(program, {"pi5": 1.0}), overhead=own[::-1] if turned else own)
    plan = plan_of(program, fleet(node("a")), costs, streams=1)
    assert plan.figures["stages"][0]["predicted_ms"] == pytest.approx(8 + 2)


def test_a_late_chunk_of_a_prompt_looks_back_at_all_before_it(program) -> None:
    """Behind 512 others a chunk of 256 tokens takes 10 ms longer; so behind 256 it takes 5."""
    costs = table(program, {"pi5": 1.0})
    curve = [Point(ms=1.0), Point(ms=25.6, tokens=256), Point(ms=35.6, tokens=256, depth=512)]
    costs = msgspec.structs.replace(costs, unit=[msgspec.structs.replace(row, curve=curve) for row in costs.unit])
    for prompt, ms in ((256, 8 * 25.6), (512, 8 * (25.6 + 30.6)), (768, 8 * (25.6 + 30.6 + 35.6))):
        plan = plan_of(program, fleet(node("a")), costs, streams=1, prompt_tokens=prompt)
        assert plan.figures["predicted_ttft_ms"] == pytest.approx(ms, abs=0.01)


def test_the_time_to_the_first_token_is_of_a_prompt_that_there_is_room_for(program) -> None:
    facts = facts_of(program, fleet(node("a")), table(program, {"pi5": 1.0}), context=64)
    assert facts.prompt == 63
    assert replace(facts, options=replace(facts.options, prompt_tokens=5)).prompt == 5


def test_a_chunk_of_a_prompt_is_a_step_of_its_process_too(program) -> None:
    costs = table(program, {"pi5": 1.0}, overhead={"stage_ms": 3.0, "stage_row_ms": 1.0, "head_ms": 0.5})
    for prompt, chunks in ((100, 1), (512, 2)):
        plan = plan_of(program, fleet(node("a")), costs, streams=1, prompt_tokens=prompt)
        least = prompt * 0.8 + chunks * (3 + 1) + 0.5
        assert least <= plan.figures["predicted_ttft_ms"] <= least + 0.5, "the head may work on the next one meanwhile"


@pytest.mark.parametrize(("asked", "sharers"), [({"stages": 2}, 2), ({"stages": 1, "replicas": 1}, 1)])
def test_processes_that_name_no_memory_share_what_there_is_among_those_in_use(program, asked, sharers) -> None:
    nodes = [node(name, "host", address="local", memory=None, reserve=None) for name in "ab"]
    plan = plan_of(program, fleet(*nodes), table(program, {"host": 1.0}), streams=2, **asked)
    whole = nodes[0].usable(load_target("host").installed)
    assert {stage["usable_bytes"] for stage in plan.figures["stages"]} == {whole // sharers}
