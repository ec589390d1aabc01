"""Hold a plan against what its stages take when they run together, and plan again until the two agree.

The plan adds up units that were measured one by one. A lowered stage may take longer, since the others work beside it,
or less, since units that meet in one stage share something. So once there are stages they are run in their pipeline
(``measure.staged``), with a single sequence, with a few and with all that are planned for; each becomes a row of the
cost table (``StageCost``), and where stages or rounds took longer or less than they should have, the costs are
corrected (``correct``). Where the next plan moves the cut, and promises more than the one that was seen (``WORTH``),
it is lowered and held against the truth, too, until no stage and not the whole differs by more than ``AGREED``, or
``CUTS`` of them were. Where it stays, another look says whether the corrected plan holds; if it does not, the machine
is not as fast as it was a moment ago, and the plan promises what both looks saw together. Either way it tells by how
much it is off.

A build whose table holds those rows goes the same way without running anything, so it ends at the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.progress import Progress
from ruvcompile.settle.correct import corrected, tells_apart, with_memory
from ruvcompile.settle.held import AGREED, Held, promised, promised_alone, units_of
from ruvcompile.settle.looks import Looks, Make, same_stages
from ruvcompile.stages import Lowered
from ruvrun.costs import CostTable
from ruvrun.executors import Array

CUTS = 2
"""So many are lowered, at most: what a third would be chosen by is mostly how fast the machine was meanwhile."""

WORTH = 1.02
"""Other cuts must promise so much more, or the ones that were seen are kept: what a run takes varies as much."""


@dataclass(frozen=True)
class Settled:
    """A plan that was held against the truth as far as that could be had.

    Attributes:
        plan: its figures say ``measured`` what was seen, where anything was.
        costs: with what was seen.
        lowered: its stages, where they were made.
    """

    plan: Plan
    costs: CostTable
    lowered: Lowered | None


def settle(facts: Facts, samples: Mapping[str, Array], make: Make | None, progress: Progress) -> Settled:
    """Plan, and plan again until prediction and measurement agree.

    Args:
        facts: with the cost table as far as it is known.
        samples: inputs of a graph; of a decoder none.
        make: lowers the stages of a plan and writes a build of them; None where nothing is to be run.
        progress: told how far apart they are.

    Raises:
        FitError, UsageError: as ``make_plan``.
    """
    looks, plan, first = Looks(samples, make, progress), make_plan(facts), 0.0
    for turn in range(1, CUTS + 1):
        facts, held = looks.first(plan, facts)
        if held is None:
            break
        first = held.difference if turn == 1 else first
        if held.agrees or not tells_apart(plan, facts):
            break
        facts = corrected(held, facts)
        again, kept = make_plan(facts), make_plan(facts, plan.cuts)
        if turn == CUTS or same_stages(plan, again) or promised(again) < WORTH * promised(kept):
            facts, held = looks.again(kept, facts)
            plan = kept if held is None else held.plan
            break
        plan = again
    if held is not None and not facts.decoder:
        facts = with_memory(replace(held, plan=plan), facts)
        plan = make_plan(facts, plan.cuts)
    if held is not None:
        measured = {**held.figures, "uncorrected": round(first, 4)}
        plan = replace(plan, figures={**plan.figures, "measured": measured})
    return Settled(plan, facts.costs, looks.lowered(plan))


__all__ = ["AGREED", "CUTS", "Held", "Settled", "promised", "promised_alone", "settle", "units_of"]
