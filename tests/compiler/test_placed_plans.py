"""Plans under rules, for any small graph: nothing is where it may not be, and nothing passes where it may not pass."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import onnx
import onnx_ir as ir
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ruvcompile.errors import FitError, InputError
from ruvcompile.fleet import Fleet, FleetNode, Link, Place, Wanted
from ruvcompile.options import Options
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.plan import Facts, Plan, make_plan, members
from ruvcompile.plan.rules import Rules, rules_of
from ruvcompile.program import Program
from ruvcompile.targets import load_target
from ruvrun.costs import CostTable, Provenance, UnitCost
from tests.graphs import program_of
from tests.strategies import small_graphs

HERE = Provenance(machine="here", cpu="one", software="none", date="2026-01-01")
NAMES = "abc"


@st.composite
def places(draw: st.DrawFn, head: str) -> Place:
    """A rule about some nodes of the graph, or about an input, which may always be where the head is."""
    match = draw(st.sampled_from(["n?", "n1", "n[2-5]", "*same*", "x0", "x0", "x1", "x?", "flag"]))
    on = draw(st.sets(st.sampled_from(NAMES), min_size=1))
    if match.startswith(("x", "flag")):
        on |= {head}
    wanted = Wanted(zone=draw(st.sampled_from([(), (), (), ("lab", "street")])))
    return Place(match, tuple(sorted(on)), wanted)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Three machines of two kinds, in any order and any zones, with rules; any of them is the head."""
    nodes = tuple(
        FleetNode(
            name,
            draw(st.sampled_from(["host", "pi5"])),
            f"{name}.local",
            threads=1,
            zone=draw(st.sampled_from(["", "lab", "lab", "street"])),
        )
        for name in draw(st.permutations(NAMES))
    )
    head = draw(st.sampled_from(nodes))
    return Fleet(
        nodes,
        head.name,
        Link(1e9, draw(st.sampled_from([0.0, 1e-6, 1e-3]))),
        require=Wanted(zone=(head.zone, "lab") if head.zone and draw(st.booleans()) else ()),
        places=tuple(draw(st.lists(places(head.name), max_size=2))),
    )


def planned(model: onnx.ModelProto, fleet: Fleet, **asked: int | None) -> tuple[Program, Rules, Plan]:
    """The plan of ``model``, whose nodes cost 1 ms on a host and 2 ms on a Pi.

    Raises:
        FitError, InputError: there is none, or a rule says nothing of this model.
    """
    program = program_of(model)
    values = [*program.model.graph.inputs, *(value for node in program.model.graph for value in node.outputs)]
    types = {str(value.name): Type(ir.DataType.FLOAT, (2, 3)) for value in values}
    types["flag"] = Type(ir.DataType.BOOL, ())
    units = program_units(program, types)
    keys = unit_keys(program, units, types)
    rows = [
        UnitCost(key=key, label=key, target=target, backend="onnxruntime", threads=1, ms=ms, source=0)
        for key in dict.fromkeys(keys)
        for target, ms in (("host", 1.0), ("pi5", 2.0))
    ]
    options = Options(Path("m.onnx"), fleet, **asked)
    rules = rules_of(fleet, program, units)
    targets = {name: load_target(name) for name in ("host", "pi5")}
    facts = Facts(
        program,
        units,
        keys,
        types,
        members(options, targets, range(2), rules.nodes),
        CostTable(provenance=[HERE], unit=rows),
        options,
        2,
        barred=rules.barred,
        held=rules.held,
        rejected=rules.rejected,
    )
    return program, rules, make_plan(facts)


@settings(max_examples=150)
@given(small_graphs(), fleets(), st.sampled_from([None, 2, 2, 3]))
def test_no_plan_breaks_a_rule(model: onnx.ModelProto, fleet: Fleet, stages: int | None) -> None:
    try:
        program, rules, plan = planned(model, fleet, stages=stages)
    except (FitError, InputError):
        return
    kind = "held" if rules.held else "barred" if any(rules.barred.values()) else "free"
    event(f"{len(plan.pieces)} stages, {kind}")
    for pipeline in plan.pipelines:
        # What a stage is given: the first one all that comes in, every other what the one before hands on.
        given = {str(value.name) for value in program.model.graph.inputs}
        for member, piece in zip(pipeline, plan.pieces, strict=True):
            for place in fleet.places:
                if place.unmet(member.node):
                    assert not any(fnmatchcase(name, place.match) for name in piece.nodes)
            assert not fleet.require.unmet(member.node)
            seen = {*given, *piece.inputs, *piece.outputs, *piece.forward}
            assert not [name for name in seen & rules.held.keys() if member.name not in rules.held[name]]
            given = set(piece.forward)
    assert all(entry in plan.figures["rejected"] for entry in rules.rejected)


@settings(max_examples=30)
@given(small_graphs(), fleets())
def test_rules_never_make_a_plan_better(model: onnx.ModelProto, fleet: Fleet) -> None:
    try:
        _, _, plan = planned(model, fleet)
    except (FitError, InputError):
        return
    _, _, free = planned(model, Fleet(fleet.nodes, fleet.head, fleet.default_link))
    assert free.figures["predicted_items_per_s"] >= plan.figures["predicted_items_per_s"] * (1 - 1e-6)
