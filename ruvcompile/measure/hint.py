"""What to do where a plan stands on scaled costs: the commands after which it stands on measured ones."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ruvcompile.fleet import FleetNode
from ruvcompile.options import DEFAULTS, Options
from ruvcompile.plan import Member
from ruvrun.costs import CostTable


def cost_hint(options: Options, members: Sequence[Member], costs: CostTable) -> list[str]:
    """Three commands for every kind of machine whose costs are scaled, and each of its back ends, of which the last one
    is the same for all: make a probe, measure it there, and plan with what was measured. Empty where nothing is scaled.
    """
    holders = {member.target.name: member for member in reversed(members)}
    working = {(member.target.name, member.threads) for member in members}
    kinds = sorted(
        {(row.target, row.backend) for row in costs.unit if (row.target, row.threads) in working and costs.scaled(row)}
    )
    several = {name for name, _ in kinds if sum(each == name for each, _ in kinds) > 1}
    names = {kind: "-".join(kind) if kind[0] in several else kind[0] for kind in kinds}
    found = []
    for (name, backend), called in names.items():
        member, probe, table = holders[name], f"probe-{called}", f"costs-{called}.toml"
        chosen = ["--backend", backend] if name in several else []
        found.append(
            _line(
                ["ruvcompile", "probe", str(options.model), "--target", name, *chosen, *_of_model(options), "-o", probe]
            )
        )
        there = _there(member.node)
        threads = [] if member.threads == member.target.cores else ["--threads", str(member.threads)]
        profile = _line(["ruvrun", "profile", probe, *threads, "-o", table])
        found.append(f"scp -r {probe} {there}: && ssh {there} {profile} && scp {there}:{table} .")
    if found:
        given = [str(path) for path in options.costs] + [f"costs-{called}.toml" for called in names.values()]
        tables = [word for path in given for word in ("--costs", path)]
        found.append(
            _line(
                [
                    "ruvcompile",
                    "build",
                    str(options.model),
                    *_fleet(options),
                    *_of_model(options),
                    *_shape(options),
                    *tables,
                ]
            )
        )
    return found


def _of_model(options: Options) -> list[str]:
    """What decides on what is measured: a probe must be made with the same."""
    words = []
    for key in ("quant", "activations"):
        if (value := getattr(options, key)) != DEFAULTS[key]:
            words += [f"--{key}", value]
    words += ["--inputs", str(options.inputs)] if options.inputs else []
    for name, sizes in options.shapes.items():
        words += ["--shape", f"{name}={'x'.join(map(str, sizes)) or 'scalar'}"]
    return words + (["--targets-dir", str(options.targets_dir)] if options.targets_dir else [])


def _fleet(options: Options) -> list[str]:
    fleet = options.fleet
    if fleet.path is not None:
        return ["--fleet", str(fleet.path)]
    target = fleet.nodes[0].target
    counted = [node.name for node in fleet.nodes] == [f"{target}-{number}" for number in range(len(fleet.nodes))]
    nodes = str(len(fleet.nodes)) if counted else ",".join(node.address for node in fleet.nodes)
    return ["--target", target, "--nodes", nodes]


def _shape(options: Options) -> list[str]:
    words = []
    for key in ("stages", "replicas", "backend", "context", "streams", "name"):
        if (value := getattr(options, key)) is not None:
            words += [f"--{key}", str(value)]
    return words


def _there(node: FleetNode) -> str:
    return shlex.quote(node.ssh or node.address)


def _line(words: Sequence[str]) -> str:
    return shlex.join(words)
