"""Hold a plan against what its stages take when they run together, and plan again until the two agree.

The plan adds up units that were measured one by one. A lowered stage may take longer, since the others work beside it,
or less, since units that meet in one stage share something. So once there are stages they are run in their pipeline
(``measure.staged``), with a single sequence, with a few and with all that are planned for; each becomes a row of the
cost table (``StageCost``), and where stages or rounds took longer or less than they should have, the costs are
corrected (``correct``). Where the next plan moves the cut, and promises more than the one that was seen (``WORTH``),
it is lowered and held against the truth again, until no stage and not the whole differs by more than ``AGREED``, or
``ROUNDS`` times. Where it stays, another look says whether the corrected plan holds; if it does not, the machine is
not as fast as it was a moment ago, and the plan promises what both looks saw together. Either way it tells by how much
it is off.

A build whose table holds those rows goes the same way without running anything, so it ends at the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ruvcompile.measure.staged import SECONDS, TOKENS, NotMeasuredError, measure_staged, prompt_tokens, turns
from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.progress import Progress
from ruvcompile.settle.correct import corrected, tells_apart, with_memory
from ruvcompile.settle.held import AGREED, Held, promised, promised_alone, units_of
from ruvcompile.settle.seen import AGAIN, FIRST, counts, look_up, mean_of, with_reality
from ruvcompile.stages import Lowered
from ruvcompile.targets import NATIVE
from ruvrun.costs import CostTable
from ruvrun.executors import Array

ROUNDS = 3
WORTH = 1.01
"""Other cuts must promise so much more, or the ones that were seen are kept: what a run takes varies as much."""

LONGEST_S = 30.0
"""Whoever builds a model that takes longer to try than this is not made to wait."""


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


def settle(
    facts: Facts,
    samples: Mapping[str, Array],
    make: Callable[[Plan], tuple[Lowered, Path]] | None,
    progress: Progress,
) -> Settled:
    """Plan, and plan again until prediction and measurement agree.

    Args:
        facts: with the cost table as far as it is known.
        samples: inputs of a graph; of a decoder none.
        make: lowers the stages of a plan and writes a build of them, whose manifest it names; None where nothing is to
            be run.
        progress: told how far apart they are.

    Raises:
        FitError, UsageError: as ``make_plan``.
    """
    plan, lowered, held, manifest = make_plan(facts), None, None, Path()
    first: float | None = None
    for turn in range(ROUNDS):
        held = look_up(plan, facts)
        if held is None:
            if make is None or not can_run_here(plan):
                break
            if (long := seconds(plan, facts)) > LONGEST_S:
                progress.note(f"the stages are not measured together, which would take about {long:.0f} s")
                break
            lowered, manifest = make(plan)
            seen = _look(plan, facts, samples, manifest, FIRST, progress)
            if seen is None:
                break
            facts, held = seen, look_up(plan, seen)
            assert held is not None, "every stage has a row now"
        progress.note(str(held))
        first = held.difference if first is None else first
        if held.agrees or not tells_apart(plan, facts) or turn + 1 == ROUNDS:
            break
        facts = corrected(held, facts)
        again, kept = make_plan(facts), make_plan(facts, plan.cuts)
        if same_stages(plan, again) or promised(again) < WORTH * promised(kept):
            if make is not None and same_stages(plan, kept) and look_up(kept, facts, AGAIN) is None:
                facts = _look(kept, facts, samples, manifest, AGAIN, progress) or facts
            facts, held = _again(kept, facts, progress)
            lowered = lowered if held is not None and same_stages(plan, held.plan) else None
            plan = kept if held is None else held.plan
            break
        plan, lowered = again, None
    if held is not None and not facts.decoder:
        facts = with_memory(replace(held, plan=plan), facts)
        plan = make_plan(facts, plan.cuts)
    if held is not None:
        plan = replace(
            plan, figures={**plan.figures, "measured": {**held.figures, "uncorrected": round(first or 0.0, 4)}}
        )
    return Settled(plan, facts.costs, lowered)


def _again(kept: Plan, facts: Facts, progress: Progress) -> tuple[Facts, Held | None]:
    """A plan that was corrected by a first look beside another one, if there was one.

    What a plan was corrected by it agrees with. Where a later look differs, neither of the two is more right.
    """
    first, second = look_up(kept, facts), look_up(kept, facts, AGAIN)
    held = second or first
    if held is not None:
        progress.note(str(held))
    if first is None or second is None or second.agrees:
        return facts, held
    facts = corrected(mean_of(first, second), facts)
    return facts, replace(second, plan=make_plan(facts, kept.cuts))


def _look(
    plan: Plan, facts: Facts, samples: Mapping[str, Array], manifest: Path, look: int, progress: Progress
) -> Facts | None:
    """The facts with what the stages take together; None, and a word, where they cannot be run."""
    try:
        with progress.step("run together"):
            realities = measure_staged(manifest, counts(plan), depth=facts.depth, samples=samples)
    except NotMeasuredError as error:
        progress.note(f"the stages could not be measured together here: {error.message}")
        return None
    return with_reality(plan, facts, realities, look)


def same_stages(one: Plan, two: Plan) -> bool:
    """Whether two plans have the same stages on the same nodes, whatever they expect of them."""
    return one.pipelines == two.pipelines and one.pieces == two.pieces


def can_run_here(plan: Plan) -> bool:
    """Whether every stage would be a process of this machine, and of its own kind."""
    return all(member.node.local and member.target.arch == NATIVE for member in plan.members)


def seconds(plan: Plan, facts: Facts) -> float:
    """How long one look at the stages together takes, about: all prompts, and the tokens after them."""
    looks = turns(counts(plan), graph=not facts.decoder)
    if not facts.decoder:
        return sum(SECONDS + 2 * streams / max(promised(plan, streams), 1e-9) for streams in looks)
    pipeline, chunk = plan.forecast.pipelines[0], plan.forecast.chunk
    per_token = max(stage.chunk_ms(chunk) for stage in pipeline.stages) / chunk / 1e3
    found = 0.0
    for streams in looks:
        prompts = -(-streams // len(plan.forecast.pipelines)) * prompt_tokens(facts.depth) * per_token
        found += prompts + TOKENS * streams / max(promised(plan, streams), 1e-9)
    return found


__all__ = [
    "AGREED",
    "ROUNDS",
    "Held",
    "Settled",
    "can_run_here",
    "promised",
    "promised_alone",
    "settle",
    "units_of",
]
