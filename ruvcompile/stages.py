"""The stages of a plan: each lowered once, checked once, and given to every node that holds it.

Pipelines that are replicas of each other consist of the same stages. What a stage is does not depend on who runs it
(see ``ruvrun.bundle``), so nothing is computed twice: the first node's bundle is written, the others get copies, equal
to the byte. Copies share their blocks on disk where the file system can do that; they are not hard links, because
readers of graphs refuse data with several of those. The same piece on another kind of node is a stage
of its own, under the same manifest.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ruvcompile.golden import add_golden
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.parts import Parts, Stage
from ruvcompile.passes.infer import Type
from ruvcompile.plan import Member, Plan
from ruvcompile.program import Piece, Program
from ruvrun.bundle import BUNDLE, BUNDLES
from ruvrun.executors import Array

_FICLONE = 0x40049409  # linux/fs.h: the target shares the source's blocks until one of them is written to


@dataclass(frozen=True)
class Division:
    """The stages of a plan, each once, and the pipelines that are made of them.

    Attributes:
        stages: of each stage the piece of the program that it is, and the first node that holds it.
        pipelines: of each pipeline, in order, a stage and the node that holds it.
    """

    stages: tuple[tuple[Piece, Member], ...]
    pipelines: tuple[tuple[tuple[int, Member], ...], ...]

    @property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """The different sequences of stages: one, where all pipelines are replicas on nodes of the same kinds."""
        return tuple(dict.fromkeys(tuple(stage for stage, _ in pipeline) for pipeline in self.pipelines))

    def holders(self, stage: int) -> tuple[Member, ...]:
        """All nodes that hold ``stage``, the first one first."""
        return tuple(member for pipeline in self.pipelines for number, member in pipeline if number == stage)


@dataclass(frozen=True)
class Lowered:
    """The stages as they lie in the bundles of their first nodes, and every different pipeline, to be run."""

    division: Division
    stages: tuple[Stage, ...]
    chains: tuple[Parts, ...]


def divide(plan: Plan) -> Division:
    """Number the stages of ``plan``: the same piece on nodes of one kind, with one back end, is one stage."""
    known: dict[tuple[int, str, str], int] = {}
    stages: list[tuple[Piece, Member]] = []
    pipelines = []
    for members in plan.pipelines:
        placed = []
        for place, member in enumerate(members):
            kind = (place, member.target.name, member.target.backend)
            if kind not in known:
                known[kind] = len(stages)
                stages.append((plan.pieces[place], member))
            placed.append((known[kind], member))
        pipelines.append(tuple(placed))
    return Division(tuple(stages), tuple(pipelines))


def lower_stages(
    program: Program,
    keyed: Keyed,
    types: Mapping[str, Type],
    plan: Plan,
    work: Path,
    store: WeightStore,
    done: Callable[[], object] = lambda: None,
) -> Lowered:
    """Lower every stage once, into the bundle of its first node.

    Args:
        keyed: the units of ``program``.
        types: of a graph's values, as observed.
        work: where the build is made.
        done: called when a stage is written.
    """
    division = divide(plan)
    stages = []
    for piece, member in division.stages:
        directory, target = work / BUNDLES / member.node.name, member.target
        spec = write_stage(
            program,
            piece,
            directory,
            store,
            backend=target.backend,
            target=target.name,
            types=types,
            keyed=keyed,
            kv_type=target.kv_type,
            link_type=plan.link_type,
        )
        stages.append((directory, spec))
        done()
    chains = []
    for chain in division.chains:
        made, lowered = [division.stages[each][0] for each in chain], [stages[each] for each in chain]
        chains.append(Parts(program, plan.units, made, lowered, store, work))
    return Lowered(division, tuple(stages), tuple(chains))


def check_stages(lowered: Lowered, samples: Mapping[str, Array]) -> Lowered:
    """Give every stage its golden check, by running every different pipeline once."""
    stages = list(lowered.stages)
    chains = []
    for chain, parts in zip(lowered.division.chains, lowered.chains, strict=True):
        current = replace(parts, stages=[stages[each] for each in chain])
        targets = [lowered.division.stages[each][1].target for each in chain]
        for number, spec in zip(chain, add_golden(current, samples, targets), strict=True):
            stages[number] = (stages[number][0], spec)
        chains.append(replace(parts, stages=[stages[each] for each in chain]))
    return Lowered(lowered.division, tuple(stages), tuple(chains))


def copy_stage(stage: Stage, directory: Path) -> None:
    """Write the files of a finished stage into another bundle."""
    source, spec = stage
    for path in (*(file.path for file in spec.files), BUNDLE):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        copy_file(source / path, directory / path)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file; on file systems that can, the copy takes no room until one of the two is changed."""
    with source.open("rb") as reader, target.open("wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            shutil.copyfileobj(reader, writer, 1 << 20)
