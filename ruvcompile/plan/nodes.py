"""The nodes that may hold a stage: each with its kind of machine and its threads, and who shares cores with whom.

Every node of the fleet is a candidate; the plan chooses how many it uses, which, and in which order. Processes of this
machine are not independent of each other: those that are kept on the same cores, or are more than there are cores,
share them, and those that name no memory share that. What one of them gets depends on how many of them are used, so a
*scene* says so beforehand: how many of each *crowd*, the processes that share cores. A plan is made for every scene,
and an unused node costs nobody anything.

Where there are more threads than cores, each process is dealt cores of its own choice of ``threads``, the least crowded
ones, and kept there. Left to the kernel, three stages on two cores meet on one of them while the other idles (a fifth
to a quarter of the time was lost so), and no plan can say when. Kept apart, who shares with whom is known: cuts are
made so that every core, not every stage, has as much to do.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ruvcompile.errors import FitError, InputError
from ruvcompile.fleet import FleetNode
from ruvcompile.options import Options
from ruvcompile.passes.cuts import boundaries
from ruvcompile.passes.units import Unit
from ruvcompile.plan.places import check_stages
from ruvcompile.plan.rules import told
from ruvcompile.targets import Target

MOST_SCENES = 200
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Member:
    """A node that may hold a stage, its kind of machine, and the threads its stage runs with.

    ``beside`` is how many such processes work at a time on its machine when all of the fleet's do, each with cores of
    its own: what is measured for it is measured in that company. ``cpus`` are the cores it is kept on; none: all.
    """

    node: FleetNode
    target: Target
    threads: int
    beside: int = 1
    cpus: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The node's."""
        return self.node.name


@dataclass(frozen=True)
class Crowd:
    """Processes of this machine that share ``cores`` cores: indices of members, and the threads of the largest."""

    members: tuple[int, ...]
    cores: int
    threads: int

    def stretch(self, used: int) -> float:
        """How much longer each takes when ``used`` of them work at a time."""
        return max(1.0, used * self.threads / self.cores)


@dataclass(frozen=True)
class Scene:
    """How many of each crowd are used, in the order of ``crowds``; nobody else is in it."""

    used: tuple[int, ...] = ()

    @property
    def local(self) -> int:
        """Processes of this machine that are used."""
        return sum(self.used)


def members(
    options: Options, targets: dict[str, Target], here: Collection[int], nodes: Sequence[FleetNode] | None = None
) -> tuple[Member, ...]:
    """The candidates, in the order of the fleet.

    Args:
        targets: of the fleet, by name.
        here: the cores of this machine, by number.
        nodes: those that pass the fleet's rules; None: all.

    Raises:
        InputError: a process here shall have more threads than there are cores: they would wait for one another.
    """
    chosen = options.fleet.nodes if nodes is None else tuple(nodes)
    local, cores = sum(node.local for node in chosen), len(here)
    found = []
    for node in chosen:
        threads = _threads(node, targets[node.target], local, cores)
        if node.local and threads > cores:
            there = f"{cores} core{'s' * (cores > 1)}"
            told = f"node {node.name} is to work with {threads} threads, and this machine has {there}"
            raise InputError("node-threads-over-cores", told, hint="correct its threads or cpus in the fleet file")
        beside = max(1, min(local, cores // threads)) if node.local else 1
        found.append(Member(node, targets[node.target], threads, beside, node.cpus))
    return _dealt(found, here)


def _dealt(candidates: Sequence[Member], here: Collection[int]) -> tuple[Member, ...]:
    """The same, those that have to share cores kept apart as far as that goes."""
    found, load = list(candidates), dict.fromkeys(here, 0)
    for crowd in crowds(candidates, len(here)):
        if sum(candidates[number].threads for number in crowd.members) <= crowd.cores:
            continue
        for number in sorted(crowd.members, key=lambda each: by_name(candidates[each])):
            member = candidates[number]
            choice = sorted(member.cpus or here, key=lambda core: (load.get(core, 0), core))
            for core in choice[: member.threads]:
                load[core] = load.get(core, 0) + 1
            found[number] = replace(member, cpus=tuple(sorted(choice[: member.threads])))
    return tuple(found)


def check_cores(nodes: Sequence[FleetNode], allowed: Collection[int]) -> None:
    """Refuse processes of this machine on cores that it does not have: they would be refused only when they serve.

    Args:
        allowed: the cores that may be used here, by number.

    Raises:
        InputError: with the node, and the cores there are.
    """
    for node in nodes:
        missing = sorted(set(node.cpus) - set(allowed)) if node.local else []
        if missing:
            cores = f"core{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            raise InputError(
                "cpus-missing",
                f"node {node.name} is a process of this machine on {cores}, which may not be used here",
                context=[f"those that may: {', '.join(map(str, sorted(allowed)))}"],
                hint="correct its cpus in the fleet file, or give its address if it is another machine",
            )


def crowds(candidates: Sequence[Member], cores: int) -> tuple[Crowd, ...]:
    """The processes of this machine, those together that share cores directly or through others; in an order of names,
    so that nothing depends on the order in which a fleet lists its nodes.
    """
    groups: list[tuple[set[int], set[int]]] = []
    for number, member in enumerate(candidates):
        if not member.node.local:
            continue
        own, who = set(member.cpus) or set(range(cores)), {number}
        apart = []
        for theirs, others in groups:
            if theirs & own:
                own, who = own | theirs, who | others
            else:
                apart.append((theirs, others))
        groups = [*apart, (own, who)]
    found = [
        Crowd(tuple(sorted(who)), len(own), max(candidates[number].threads for number in who)) for own, who in groups
    ]
    return tuple(sorted(found, key=lambda crowd: min(by_name(candidates[number]) for number in crowd.members)))


def by_name(member: Member) -> tuple[tuple[int, str], ...]:
    """Names in the order in which people count; no two are equal."""
    parts = ((int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(member.name))
    return *parts, (-2, member.name)


def scenes(known: Sequence[Crowd], nodes: int, others: int) -> Iterator[Scene]:
    """All scenes of ``nodes`` used nodes where there are ``others`` beside the crowds'.

    Where they are very many, only those in which the crowds are used evenly or one after the other.
    """
    ranges = [range(min(len(crowd.members), nodes) + 1) for crowd in known]
    count = 0
    for used in itertools.product(*(reversed(each) for each in ranges)):
        if sum(used) <= nodes <= sum(used) + others:
            yield Scene(used)
            count += 1
            if count >= MOST_SCENES:
                return


def _threads(node: FleetNode, target: Target, local: int, cores: int) -> int:
    """As asked, else one per pinned core, else this machine's cores shared among its nodes, else the target's."""
    if node.threads:
        return node.threads
    if node.cpus:
        return len(node.cpus)
    if node.local:
        return max(1, cores // local)
    return target.cores or cores


def check_shape(
    options: Options,
    units: Sequence[Unit],
    nodes: int,
    cut: int | None = None,
    rejected: Sequence[Mapping[str, str]] = (),
) -> None:
    """Refuse a shape that was asked for and cannot be.

    Args:
        nodes: how many candidates there are.
        cut: stages that ``--cut`` makes, where it is given.
        rejected: what the fleet's rules turned down, as in the JSON of ``plan``.

    Raises:
        FitError: more stages than nodes, or than the model has places to cut.
    """
    stages, replicas = cut or options.stages or 1, options.replicas or 1
    if stages * replicas > nodes:
        out = [entry for entry in rejected if entry["rule"].startswith("require.")]
        asked = f"{stages} stage{'s' if stages > 1 else ''}" + (f" x {replicas} replicas" if replicas > 1 else "")
        lower = f"--stages to {nodes // replicas}" if nodes >= replicas else f"--replicas to {nodes}"
        raise FitError(
            "stages-over-nodes",
            f"{asked} need {stages * replicas} nodes, the fleet has {nodes}{' that may be used' if out else ''}",
            context=told(out),
            hint=f"lower {lower}, or add nodes",
        )
    if stages > 1:
        check_stages(units, boundaries(units), stages)
