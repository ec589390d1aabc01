"""The type that activations have on links: asked for, or chosen where it is worth what it costs.

Float16 halves what a link carries, and the answers are no longer the uncut model's token for token. So float32 is the
default. With ``auto`` the plan is made with either, and float16 is taken only where what the build is planned for gets
better by ``WORTH_IT``: where a link is the bottleneck, and not where stages are.

Either way the build then looks at what float16 does to this model: the stages, with what crosses rounded, are put
beside float64 on a real text as ``verify`` does it, and the same bounds hold. Where they do not, or a value is beyond
what float16 can hold, a build that was asked for float16 is refused; one that could choose uses float32 and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ruvcompile.errors import IntegrityError
from ruvcompile.plan import Facts, Plan, make_plan
from ruvcompile.progress import Progress
from ruvcompile.settle import Settled
from ruvcompile.settle.held import promised, promised_alone
from ruvcompile.stages import Lowered
from ruvcompile.verify import FEWER_TOKENS, Comparison, is_rounded, measure
from ruvrun.machine import cores
from ruvrun.pipeline.halves import OVERFLOW

WORTH_IT = 1.05
"""Float16 must make the plan so much better to be chosen."""

TOO_FAR = "link-too-far"


def with_link_type(facts: Facts, progress: Progress) -> Facts:
    """The facts with the type that was asked for, or that is worth it.

    Raises:
        FitError, UsageError: as ``make_plan``.
    """
    asked, decoder = facts.options.link_type, facts.program.decoder
    if asked != "auto":
        return replace(facts, link_type=asked)
    if decoder is None or decoder.exported:
        return facts
    narrow = replace(facts, link_type="f16")
    gain = _worth(make_plan(narrow), facts) / max(_worth(make_plan(facts), facts), 1e-9)
    if gain < WORTH_IT:
        return facts
    progress.note(f"links carry float16, by which the plan gains {100 * (gain - 1):.0f} % (--link-type auto)")
    return narrow


def build_with_links(
    facts: Facts, build: Callable[[Facts], tuple[Settled, Lowered]], scratch: Path, progress: Progress
) -> tuple[Settled, Lowered, list[Comparison]]:
    """Plan and lower with the type of ``with_link_type``, and measure what it does to the answers.

    Args:
        facts: with ``auto``, or what was asked for, in its options.
        build: plans and lowers; called again where float16 does not hold.
        scratch: where uncut models may be written.

    Returns:
        What ``build`` gave, and what was found of each different pipeline; nothing where links do not round.

    Raises:
        IntegrityError: ``link-overflow`` or ``link-too-far``: float16 was asked for, and does not hold.
    """
    chosen = with_link_type(facts, progress)
    try:
        settled, lowered = build(chosen)
        return settled, lowered, _checked(chosen, lowered, scratch, progress)
    except IntegrityError as error:
        if facts.options.link_type != "auto" or error.ref not in (OVERFLOW, TOO_FAR):
            raise
        progress.note(f"links carry float32 after all: {'; '.join([error.message, *error.context])}")
    return *build(replace(facts, link_type="f32")), []


def _checked(facts: Facts, lowered: Lowered, scratch: Path, progress: Progress) -> list[Comparison]:
    """Every different pipeline beside float64; refused where one is beyond its bounds."""
    order = [tuple(stage for stage, _ in pipeline) for pipeline in lowered.division.pipelines]
    chains = {
        order.index(numbers): [*parts.stages]
        for numbers, parts in zip(lowered.division.chains, lowered.chains, strict=True)
    }
    if not any(map(is_rounded, chains.values())):
        return []
    found = measure(facts.program, chains, FEWER_TOKENS, scratch, cores(), progress)
    if beyond := [text for each in found for text in each.beyond]:
        what = "with float16 on the links the answers are further from what the weights mean than they may be"
        raise IntegrityError(TOO_FAR, what, context=beyond, hint="build with --link-type f32")
    worst = max(found, key=lambda each: each.found.kl).found
    progress.note(
        f"float16 on the links: KL {worst.kl:.3g} against float64, same first choice {100 * worst.top1:.1f} % "
        f"of {worst.tokens} tokens"
    )
    return found


def _worth(plan: Plan, facts: Facts) -> float:
    """What a plan is chosen by."""
    return promised_alone(plan) if facts.options.objective == "latency" else promised(plan)


__all__ = ["TOO_FAR", "WORTH_IT", "build_with_links", "with_link_type"]
