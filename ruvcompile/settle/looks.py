"""Looks at the stages of plans: what a cost table does not know of them is seen, where all nodes are this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ruvcompile.measure.staged import SECONDS, TOKENS, NotMeasuredError, measure_staged, prompt_tokens, turns
from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.progress import Progress
from ruvcompile.settle.correct import corrected
from ruvcompile.settle.held import Held, promised
from ruvcompile.settle.seen import AGAIN, FIRST, counts, look_up, mean_of, with_reality
from ruvcompile.stages import Lowered
from ruvcompile.targets import NATIVE
from ruvrun.executors import Array

Make = Callable[[Plan], tuple[Lowered, Path]]
"""Lowers the stages of a plan and writes a build of them, whose manifest it names."""

LONGEST_S = 30.0
"""Whoever builds a model that takes longer to try than this is not made to wait."""


class Looks:
    """Holds plans beside what their stages take, as the cost table of the facts knows it or as it is seen now.

    Args:
        samples: inputs of a graph; of a decoder none.
        make: None where nothing is to be run.
        progress: told what was seen, or why it could not be.
    """

    def __init__(self, samples: Mapping[str, Array], make: Make | None, progress: Progress) -> None:
        self._samples, self._make, self._progress = samples, make, progress
        self._made: tuple[Plan, Lowered, Path] | None = None

    def lowered(self, plan: Plan) -> Lowered | None:
        """The stages of a plan, where they are the ones that were made last."""
        return self._made[1] if self._made and same_stages(self._made[0], plan) else None

    def first(self, plan: Plan, facts: Facts) -> tuple[Facts, Held | None]:
        """A plan beside what its stages take, and the facts with that; None where nobody knows it, and nobody can."""
        held = look_up(plan, facts)
        if held is None and self._make is not None and can_run_here(plan):
            if (long := seconds(plan, facts)) > LONGEST_S:
                self._progress.note(f"the stages are not measured together, which would take about {long:.0f} s")
                return facts, None
            self._made = plan, *self._make(plan)
            seen = self._seen(plan, facts, FIRST)
            if seen is None:
                return facts, None
            facts, held = seen, look_up(plan, seen)
            assert held is not None, "every stage has a row now"
        if held is not None:
            self._progress.note(str(held))
        return facts, held

    def again(self, plan: Plan, facts: Facts) -> tuple[Facts, Held | None]:
        """A plan that was corrected by a first look beside another one, if there is one.

        What a plan was corrected by it agrees with. Where a later look differs, neither of the two is more right, and
        the plan is made to promise what both saw together.
        """
        if self.lowered(plan) is not None and look_up(plan, facts, AGAIN) is None:
            facts = self._seen(plan, facts, AGAIN) or facts
        first, second = look_up(plan, facts), look_up(plan, facts, AGAIN)
        held = second or first
        if held is not None:
            self._progress.note(str(held))
        if first is None or second is None or second.agrees:
            return facts, held
        facts = corrected(mean_of(first, second), facts)
        return facts, replace(second, plan=make_plan(facts, plan.cuts))

    def _seen(self, plan: Plan, facts: Facts, look: int) -> Facts | None:
        """The facts with what the stages take together; None, and a word, where they cannot be run."""
        assert self._made is not None
        try:
            with self._progress.step("run together"):
                realities = measure_staged(self._made[2], counts(plan), depth=facts.depth, samples=self._samples)
        except NotMeasuredError as error:
            self._progress.note(f"the stages could not be measured together here: {error.message}")
            return None
        return with_reality(plan, facts, realities, look)


def same_stages(one: Plan, two: Plan) -> bool:
    """Whether two plans have the same stages on the same nodes, whatever they expect of them."""
    return one.pipelines == two.pipelines and one.pieces == two.pieces


def can_run_here(plan: Plan) -> bool:
    """Whether every stage would be a process of this machine, and of its own kind."""
    return all(member.node.local and member.target.arch == NATIVE for member in plan.members)


def seconds(plan: Plan, facts: Facts) -> float:
    """How long one look at the stages together takes, about: each prompt once, and the tokens after them."""
    looks = turns(counts(plan), graph=not facts.decoder)
    if not facts.decoder:
        return sum(SECONDS + 2 * streams / max(promised(plan, streams), 1e-9) for streams in looks)
    pipeline, chunk = plan.forecast.pipelines[0], plan.forecast.chunk
    per_token = max(stage.chunk_ms(chunk) for stage in pipeline.stages) / chunk / 1e3
    prompts = -(-plan.streams // len(plan.forecast.pipelines)) * prompt_tokens(facts.depth) * per_token
    return prompts + sum(TOKENS * streams / max(promised(plan, streams), 1e-9) for streams in looks)
