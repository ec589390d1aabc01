"""Governed placement: who may hold what, for a model and a fleet; and what holds of any of them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ruvcompile.errors import FitError, InputError
from ruvcompile.fleet import Fleet, FleetNode, Place, Wanted
from ruvcompile.passes.copies import copies
from ruvcompile.passes.pieces import program_units
from ruvcompile.passes.scope import all_nodes
from ruvcompile.plan.rules import Rules, rules_of
from ruvcompile.program import Program
from tests.decoders import tiny_program
from tests.graphs import make_model, program_of, tensor, weight
from tests.strategies import small_graphs

A = FleetNode("a", "host", zone="lab", trust="ours", provides=("camera",))
B = FleetNode("b", "host", zone="lab")
C = FleetNode("c", "host", zone="street", trust="theirs", provides=("camera", "disk"))


def camera(*, body: bool = False, passed_on: bool = False) -> onnx.ModelProto:
    """An image is turned, scaled and cropped, then seen by a convolution; a number beside it goes its own way."""
    nodes = [
        helper.make_node("Transpose", ["image"], ["turned"], name="/pre/turn", perm=[0, 3, 1, 2]),
        helper.make_node("Sub", ["turned", "mean"], ["scaled"], name="/pre/scale"),
        helper.make_node("Slice", ["scaled", "from", "to"], ["crop"], name="/pre/crop"),
        helper.make_node("Concat", ["crop", "crop"], ["wide"], name="/pre/join", axis=1),
        helper.make_node("Shape", ["image"], ["size"], name="/size"),
        helper.make_node("Conv", ["wide", "kernel"], ["seen"], name="/backbone/conv"),
        helper.make_node("Relu", ["seen"], ["felt"], name="/backbone/act[0]"),
        helper.make_node("Mul", ["felt", "gain"], ["strong"], name="/head/gain"),
        helper.make_node("ReduceMean", ["strong"], ["y"], name="/head/mean", keepdims=1),
    ]
    outputs = [tensor("y", [1, 1, 1, 1]), tensor("size", [4], TensorProto.INT64)]
    if body:
        then = helper.make_graph(
            [helper.make_node("Neg", ["scaled"], ["inner"], name="/pre/inside")],
            "then",
            [],
            [tensor("inner", [1, 3, 8, 8])],
        )
        other = helper.make_graph(
            [helper.make_node("Abs", ["scaled"], ["same"], name="/pre/inside too")],
            "else",
            [],
            [tensor("same", [1, 3, 8, 8])],
        )
        made = helper.make_node("If", ["flag"], ["chosen"], name="/pre/if", then_branch=then, else_branch=other)
        nodes.append(made)
        outputs.append(tensor("chosen", [1, 3, 8, 8]))
    if passed_on:
        outputs.append(tensor("image", [1, 8, 8, 3]))
    weights = [
        weight("mean", np.full([1, 3, 1, 1], 0.5)),
        weight("from", [2], np.int64),
        weight("to", [6], np.int64),
        weight("kernel", np.ones([4, 6, 1, 1])),
        weight("flag", True, np.bool_),
    ]
    return make_model(nodes, [tensor("image", [1, 8, 8, 3]), tensor("gain", [1])], outputs, weights)


def rules(
    *places: Place, require: Wanted | None = None, head: str = "a", model: onnx.ModelProto | None = None
) -> Rules:
    program = program_of(model or camera())
    return rules_of(Fleet((A, B, C), head, require=require or Wanted(), places=places), program, program_units(program))


def barred_nodes(found: Rules, node: str, program: Program | None = None) -> set[str]:
    units = program_units(program or program_of(camera()))
    return {name for number in found.barred[node] for name in units[number].nodes}


# [require]


def test_no_rules_bar_nobody() -> None:
    found = rules()
    assert [node.name for node in found.nodes] == ["a", "b", "c"]
    assert not any(found.barred.values())
    assert not found.held
    assert not found.rejected


def test_what_is_required_is_asked_of_every_node_and_every_refusal_is_listed() -> None:
    found = rules(require=Wanted(zone=("lab",), provides=("camera",)))
    assert [node.name for node in found.nodes] == ["a"]
    assert set(found.barred) == {"a"}
    assert found.rejected == (
        {"node": "b", "rule": "require.provides", "wanted": "camera", "has": "nothing"},
        {"node": "c", "rule": "require.zone", "wanted": "lab", "has": "street"},
    )


def test_nothing_left_lists_why() -> None:
    with pytest.raises(FitError) as caught:
        rules(require=Wanted(trust=("nobody",)))
    assert (caught.value.ref, caught.value.exit_code) == ("fleet-rejected", 4)
    assert caught.value.context == (
        "a: require.trust, wanted nobody, has ours",
        "b: require.trust, wanted nobody, has nothing",
        "c: require.trust, wanted nobody, has theirs",
    )


def test_a_head_without_what_is_required_is_told() -> None:
    with pytest.raises(FitError, match="the head is on b") as caught:
        rules(require=Wanted(provides=("camera",)), head="b")
    assert (caught.value.ref, caught.value.hint) == ("head-rejected", 'head = "a" in the fleet file')


# [[place]] of graph nodes


def test_nodes_of_the_graph_are_bound_by_name_and_by_facts() -> None:
    found = rules(Place("/backbone/*", on=("a", "b")), Place("/head/*", wanted=Wanted(zone=("lab",))))
    assert not found.barred["a"]
    assert not found.barred["b"]
    assert barred_nodes(found, "c") == {"/backbone/conv", "/backbone/act[0]", "/head/gain", "/head/mean"}
    assert not found.held
    assert found.rejected == (
        {"node": "c", "rule": "place /backbone/*", "wanted": "a or b", "has": "c"},
        {"node": "c", "rule": "place /head/* zone", "wanted": "lab", "has": "street"},
    )


def test_a_name_with_brackets_is_a_pattern_for_itself() -> None:
    assert barred_nodes(rules(Place("/backbone/act[0]", on=("a",))), "b") == {"/backbone/act[0]"}


def test_a_node_inside_a_body_binds_the_node_with_the_body() -> None:
    model = camera(body=True)
    found = rules(Place("/pre/inside", on=("a",)), model=model)
    assert barred_nodes(found, "b", program_of(model)) == {"/pre/if"}


def test_places_that_leave_a_node_of_the_graph_nowhere_are_told_together() -> None:
    with pytest.raises(FitError, match="no node may hold /backbone/conv") as caught:
        rules(Place("/backbone/*", on=("a", "b")), Place("*conv", wanted=Wanted(zone=("street",))))
    assert caught.value.ref == "fleet-rejected"
    assert "bound by place /backbone/*, place *conv" in caught.value.context
    assert "c: place /backbone/*, wanted a or b, has c" in caught.value.context


def test_patterns_that_match_nothing_are_told_at_once_with_what_is_near() -> None:
    with pytest.raises(InputError) as caught:
        rules(Place("/bakcbone/*", on=("a",)), Place("imgae", on=("a",)), Place("/head/*", on=("a",)))
    told = "\n".join(caught.value.context)
    assert "'/bakcbone/*' matches no node and no input" in told
    assert "did you mean '/backbone/*'?" in told
    assert "did you mean 'image'?" in told
    assert "'/head/*'" not in told.replace("'/head/*'?", "")
    with pytest.raises(InputError) as alone:
        rules(Place("something else entirely", on=("a",)))
    assert (alone.value.ref, alone.value.exit_code) == ("place-unmatched", 3)
    assert "inputs: image, gain; nodes: " in str(alone.value.hint)


# [[place]] of inputs


def test_an_input_that_nothing_reads_cannot_be_held() -> None:
    """The head hands all inputs to the first stage, so an image that is not read would go wherever that is."""
    model = camera()
    model.graph.input.append(tensor("note", [1]))
    with pytest.raises(InputError) as caught:
        rules(Place("note", on=("a",)), model=model)
    assert (caught.value.ref, caught.value.exit_code) == ("place-unread", 3)
    assert not any(rules(Place("*", on=("a", "b", "c")), model=model).barred.values())


def test_an_input_is_held_with_all_that_is_the_same_again() -> None:
    found = rules(Place("image", on=("a",)))
    assert found.held == dict.fromkeys(("image", "turned", "scaled", "crop", "wide"), frozenset("a"))
    reading = {"/pre/turn", "/pre/scale", "/pre/crop", "/pre/join", "/size", "/backbone/conv"}
    assert barred_nodes(found, "b") == barred_nodes(found, "c") == reading
    assert not found.barred["a"]


def test_what_a_body_makes_of_an_input_is_held() -> None:
    assert rules(Place("image", on=("a",)), model=camera(body=True)).held["chosen"] == {"a"}


def test_an_input_that_is_handed_through_binds_the_end_of_the_pipeline() -> None:
    model = camera(passed_on=True)
    program = program_of(model)
    (relaying,) = [unit for unit in program_units(program) if "image" in unit.relays]
    assert set(relaying.nodes) <= barred_nodes(rules(Place("image", on=("a",)), model=model), "b", program)


def test_what_is_made_of_two_inputs_is_held_by_who_may_hold_both() -> None:
    found = rules(Place("image", on=("a", "b")), Place("gain", on=("a", "c")))
    assert (found.held["image"], found.held["gain"], found.held["strong"]) == (set("ab"), set("ac"), set("ac"))


def test_the_head_is_given_every_input() -> None:
    with pytest.raises(FitError, match="the head is on b, which is given image") as caught:
        rules(Place("image", on=("a",)), head="b")
    assert (caught.value.ref, caught.value.exit_code) == ("head-rejected", 4)
    assert caught.value.hint == 'head = "a" in the fleet file'
    assert caught.value.context == ("b: place image, wanted a, has b",)


def test_no_head_is_possible_where_two_inputs_have_no_node_in_common() -> None:
    with pytest.raises(FitError) as caught:
        rules(Place("image", on=("a",)), Place("gain", on=("b",)))
    assert "no node may be the head" in str(caught.value.hint)


# Decoders


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("tiny"), layers=3)


def decoder_rules(decoder: Program, *places: Place) -> tuple[Rules, set[str]]:
    """The rules, and the labels of the units from which ``b`` is barred."""
    units = program_units(decoder)
    found = rules_of(Fleet((A, B), "a", places=places), decoder, units)
    return found, {units[number].nodes[0].strip("/").split("/")[0] for number in found.barred["b"]}


def test_a_layer_is_bound_by_its_canonical_name(decoder: Program) -> None:
    found, barred = decoder_rules(decoder, Place("/layers.1/*", on=("a",)))
    assert barred == {"layers.1"}
    assert len(found.barred["b"]) == 2  # attention and MLP


def test_the_tokens_bind_who_reads_and_who_chooses_them(decoder: Program) -> None:
    found, barred = decoder_rules(decoder, Place("input_ids", on=("a",)))
    units = program_units(decoder)
    assert found.held == {"input_ids": {"a"}, "logits": {"a"}}
    assert found.barred["b"] == {0, len(units) - 1}
    assert not any(name.startswith("layers") for name in barred)


def test_state_binds_its_layer_and_not_the_head(decoder: Program) -> None:
    units = program_units(decoder)
    found = rules_of(Fleet((B, A), "b", places=(Place("past_key.1", on=("a",)),)), decoder, units)
    assert not found.held
    (number,) = found.barred["b"]
    assert "past_key.1" in units[number].inputs


# What holds of any


PLACES = st.builds(
    Place,
    st.sampled_from(["*", "n1", "n*", "same*", "x0", "x1", "x*", "flag", "*2*"]),
    st.sets(st.sampled_from("abc"), min_size=1).map(lambda names: tuple(sorted(names))),
    st.builds(
        Wanted, zone=st.sampled_from([(), ("lab",), ("lab", "street")]), provides=st.sampled_from([(), ("disk",)])
    ),
)


@given(small_graphs(), st.lists(PLACES, max_size=3), st.sampled_from([(), ("lab",)]))
def test_a_unit_is_barred_exactly_where_a_rule_bars_it(
    model: onnx.ModelProto, places: list[Place], zone: tuple[str, ...]
) -> None:
    program = program_of(model)
    graph, units = program.model.graph, program_units(program)
    fleet = Fleet((A, B, C), "a", require=Wanted(zone=zone), places=tuple(places))
    try:
        found = rules_of(fleet, program, units)
    except (FitError, InputError):
        return
    assert {node.name for node in found.nodes} == {node.name for node in fleet.nodes if not zone or node.zone in zone}
    turned_down = {(entry["node"], entry["rule"].split(" ")[1]) for entry in found.rejected if " " in entry["rule"]}
    for node in found.nodes:
        closed = {name for name, holders in found.held.items() if node.name not in holders}
        for number, unit in enumerate(units):
            by_value = not closed.isdisjoint({*unit.inputs, *unit.outputs, *unit.relays})
            names = [str(each.name) for name in unit.nodes for each in all_nodes([graph.node(name)])]
            by_name = any(fnmatchcase(name, place.match) for place in places if place.unmet(node) for name in names)
            assert (number in found.barred[node.name]) == (by_value or by_name)
        assert {place.match for place in places if place.unmet(node)} == {
            match for name, match in turned_down if name == node.name
        }
    # Of any unit at least one node is left, and the head may hold every input that is bound.
    assert not frozenset.intersection(*found.barred.values())
    assert all(fleet.head in holders for name, holders in found.held.items() if name.startswith(("x", "flag")))


@given(small_graphs())
def test_copies_of_more_inputs_are_more_copies(model: onnx.ModelProto) -> None:
    graph = program_of(model).model.graph
    one, both = (copies(graph, dict.fromkeys(names, frozenset("a"))) for names in (("x0",), ("x0", "x1")))
    assert one.keys() <= both.keys()


def test_a_rule_sees_only_what_it_names() -> None:
    graph = program_of(camera()).model.graph
    assert set(copies(graph, {"gain": frozenset("a")})) == {"gain", "strong"}
