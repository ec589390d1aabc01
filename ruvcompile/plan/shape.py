"""How many stages, with how many threads, for how many sequences: what is settled before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ruvcompile.errors import FitError, UsageError
from ruvcompile.fleet import FleetNode
from ruvcompile.options import Options
from ruvcompile.passes.cuts import Unit, boundaries
from ruvcompile.plan.places import check_stages
from ruvcompile.program import Program
from ruvcompile.targets import Target
from ruvrun.manifest import Space

LONGEST_DEFAULT = 4096


@dataclass(frozen=True)
class Member:
    """A node that will hold a stage, its kind, and the threads its stage runs with."""

    node: FleetNode
    target: Target
    threads: int


def members(options: Options, targets: dict[str, Target], units: Sequence[Unit], cores: int) -> tuple[Member, ...]:
    """The nodes that will hold stages, in the order of the fleet: as many as asked for, else all.

    Raises:
        FitError: more stages than nodes, or than the model has places to cut.
        UsageError: several pipelines, which this version does not build.
    """
    nodes, replicas = len(options.fleet.nodes), options.replicas or 1
    # A cut may be of several tensors: their names make no more stages than there are nodes.
    stages = options.stages or (min(len(options.cut) + 1, nodes) if options.cut else nodes // replicas)
    if stages * replicas > nodes:
        asked = f"{stages} stages" + (f" x {replicas} replicas" if replicas > 1 else "")
        raise FitError(
            "stages-over-nodes",
            f"{asked} need {stages * replicas} nodes, the fleet has {nodes}",
            hint=f"lower --stages to {nodes}, or add nodes",
        )
    if replicas > 1 or nodes >= 2 * stages:
        raise UsageError(
            "replicas-later",
            "several pipelines under one manifest are not in this version",
            hint="name fewer nodes in the fleet"
            if options.fleet.path
            else f"build one pipeline: --nodes {max(stages, 1)}{' --replicas 1' if replicas > 1 else ''}",
        )
    if stages > 1:
        check_stages(units, boundaries(units), stages)
    used = options.fleet.nodes[:stages]
    return tuple(
        Member(node, targets[node.target], _threads(node, targets[node.target], options, cores)) for node in used
    )


def space_for(program: Program, options: Options, stages: int) -> Space | None:
    """Key/value space of a decoder: as asked, else min(model, 4096) positions for max(4, 2 x stages) sequences."""
    if program.decoder is None:
        return None
    longest = program.decoder.context
    if options.context and options.context > longest:
        raise UsageError(
            "context-too-long",
            f"--context {options.context} is more than this model's {longest}",
            hint=f"--context {longest}",
        )
    return Space(
        context=options.context or min(longest, LONGEST_DEFAULT), streams=options.streams or max(4, 2 * stages)
    )


def _threads(node: FleetNode, target: Target, options: Options, cores: int) -> int:
    """As asked, else one per pinned core, else this machine's cores shared among its nodes, else the target's."""
    if node.threads:
        return node.threads
    if node.cpus:
        return len(node.cpus)
    if node.local:
        return max(1, cores // sum(other.local for other in options.fleet.nodes))
    return target.cores or cores
