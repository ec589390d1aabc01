"""From measured costs and a fleet to a plan: which nodes hold stages, where the cuts are, and what to expect.

The nodes are used in the order in which the fleet names them, one stage each, unless ``--stages`` says fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ruvcompile.passes.pieces import pieces
from ruvcompile.passes.units import Unit
from ruvcompile.plan.figures import figures_of
from ruvcompile.plan.problem import Facts, problem_of, solve_or_tell
from ruvcompile.plan.shape import Member, members, space_for
from ruvcompile.program import Piece
from ruvrun.manifest import Space


@dataclass(frozen=True)
class Plan:
    """Stages on nodes, and what they promise; ``figures`` is the JSON of ``plan`` without what a build adds.

    Attributes:
        pipelines: of each pipeline, which node holds which stage; all have the same stages, in the same order.
        pieces: what each stage is of the program.
        units: of the program, stage by stage.
        space: key/value space of one pipeline.
    """

    pipelines: tuple[tuple[Member, ...], ...]
    pieces: tuple[Piece, ...]
    units: tuple[Unit, ...]
    space: Space | None
    figures: Mapping[str, Any]

    @property
    def members(self) -> tuple[Member, ...]:
        """Every node that holds a stage, pipeline by pipeline."""
        return tuple(member for pipeline in self.pipelines for member in pipeline)


def make_plan(facts: Facts) -> Plan:
    """Choose the cuts.

    Raises:
        FitError: no cut fits the nodes' memory.
        UsageError: a cut was forced that is none.
    """
    problem = problem_of(facts)
    partition = solve_or_tell(facts, problem)
    made = pieces(facts.program, facts.units, partition.cuts)
    return Plan((facts.members,), made, facts.units, facts.space, figures_of(facts, problem, partition))


__all__ = ["Facts", "Member", "Plan", "make_plan", "members", "space_for"]
