"""What to do about scaled costs: commands that can be copied, and that belong together."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ruvcompile.fleet import Fleet, FleetNode, make_fleet
from ruvcompile.measure.hint import cost_hint
from ruvcompile.options import Options
from ruvcompile.plan import Member
from ruvcompile.targets import load_target
from ruvrun.costs import CostTable, Provenance, UnitCost

SOURCES = [
    Provenance(machine="m", cpu="c", software="ruvrun 1", date="d"),
    Provenance(machine="m", cpu="c", software="scaled memory_bandwidth ...; ruvrun 1", date="d"),
]


def row(target: str, *, scaled: bool) -> UnitCost:
    return UnitCost(key="k", label="l", target=target, backend="onnxruntime", threads=4, ms=1.0, source=int(scaled))


def table(**targets: bool) -> CostTable:
    rows = [row(name.replace("_", "-"), scaled=scaled) for name, scaled in targets.items()]
    return CostTable(provenance=SOURCES, unit=rows)


def member(node: FleetNode, threads: int = 4) -> Member:
    return Member(node, load_target(node.target), threads)


def options(fleet: Fleet, **changed: object) -> Options:
    return replace(Options(model=Path("my model.gguf"), fleet=fleet), **changed)  # type: ignore[arg-type] # as named


def test_three_commands_that_hang_together() -> None:
    fleet = make_fleet("pi5", "4")
    found = cost_hint(options(fleet), [member(node) for node in fleet.nodes], table(pi5=True))
    assert found == [
        "ruvcompile probe 'my model.gguf' --target pi5 -o probe-pi5",
        "scp -r probe-pi5 pi5-0.local: && ssh pi5-0.local ruvrun profile probe-pi5 -o costs-pi5.toml"
        " && scp pi5-0.local:costs-pi5.toml .",
        "ruvcompile build 'my model.gguf' --target pi5 --nodes 4 --costs costs-pi5.toml",
    ]


def test_a_machine_with_two_back_ends_is_probed_with_each() -> None:
    fleet = make_fleet("x86-64", "2")
    costs = table(x86_64=True)
    both = replace_rows(costs, "openvino")
    found = cost_hint(options(fleet, backend="auto"), [member(node) for node in fleet.nodes], both)
    probes = [line for line in found if line.startswith("ruvcompile probe")]
    assert [line.rpartition(" -o ")[2] for line in probes] == ["probe-x86-64-onnxruntime", "probe-x86-64-openvino"]
    assert "--target x86-64 --backend openvino" in probes[1]
    assert found[-1].endswith("--backend auto --costs costs-x86-64-onnxruntime.toml --costs costs-x86-64-openvino.toml")


def replace_rows(costs: CostTable, backend: str) -> CostTable:
    """The rows, and the same again of another back end."""
    more = [msgspec.structs.replace(row, backend=backend) for row in costs.unit]
    return msgspec.structs.replace(costs, unit=[*costs.unit, *more])


def test_nothing_is_said_of_what_was_measured() -> None:
    fleet = make_fleet("pi5", "2")
    assert cost_hint(options(fleet), [member(node) for node in fleet.nodes], table(pi5=False)) == []


def test_what_nobody_works_with_may_be_scaled() -> None:
    """Rows of more threads, from an earlier build, beside measured ones of as many as there are."""
    fleet = make_fleet("pi5", "1")
    mixed = [row("pi5", scaled=False), msgspec.structs.replace(row("pi5", scaled=True), threads=2)]
    costs = CostTable(provenance=SOURCES, unit=mixed)
    assert cost_hint(options(fleet), [member(fleet.nodes[0])], costs) == []
    assert len(cost_hint(options(fleet), [member(fleet.nodes[0], 2)], costs)) == 3


def test_every_kind_has_its_own_probe_and_the_build_takes_all_tables() -> None:
    nodes = (
        FleetNode("here", "host"), FleetNode("a", "pi5", "a.local", ssh="pi@a", threads=2),
        FleetNode("b", "pi5", "b.local"), FleetNode("c", "x86-64", "c.local"),
    )  # fmt: skip
    fleet = Fleet(nodes, "here", path=Path("fleet.toml"))
    asked = options(
        fleet, quant="int8", activations="float", shapes={"x": (1, 3), "s": ()}, inputs=Path("in.npz"),
        costs=(Path("old.toml"),), stages=2,
        context=512,
    )  # fmt: skip
    members = [member(nodes[0]), member(nodes[1], 2), member(nodes[2]), member(nodes[3], 8)]
    costs = table(host=False, pi5=True, x86_64=True)
    eight = [msgspec.structs.replace(each, threads=8) for each in costs.unit if each.target == "x86-64"]
    found = cost_hint(asked, members, msgspec.structs.replace(costs, unit=[*costs.unit, *eight]))
    same = "--quant int8 --activations float --inputs in.npz --shape x=1x3 --shape s=scalar"
    assert found == [
        f"ruvcompile probe 'my model.gguf' --target pi5 {same} -o probe-pi5",
        "scp -r probe-pi5 pi@a: && ssh pi@a ruvrun profile probe-pi5 --threads 2 -o costs-pi5.toml"
        " && scp pi@a:costs-pi5.toml .",
        f"ruvcompile probe 'my model.gguf' --target x86-64 {same} -o probe-x86-64",
        "scp -r probe-x86-64 c.local: && ssh c.local ruvrun profile probe-x86-64 --threads 8 -o costs-x86-64.toml"
        " && scp c.local:costs-x86-64.toml .",
        f"ruvcompile build 'my model.gguf' --fleet fleet.toml {same} --stages 2 --context 512"
        " --costs old.toml --costs costs-pi5.toml --costs costs-x86-64.toml",
    ]


@pytest.mark.parametrize("nodes", ["2", "pi-0.local,pi-1.local"])
def test_the_last_command_names_the_same_nodes(nodes) -> None:
    fleet = make_fleet("pi5", nodes)
    last = cost_hint(options(fleet), [member(node) for node in fleet.nodes], table(pi5=True))[-1]
    words = shlex.split(last)
    assert make_fleet("pi5", words[words.index("--nodes") + 1]) == fleet
