"""What a plan chose for want of an answer, as the flags that would say the same."""

from __future__ import annotations

from ruvcompile.options import OF_DECODERS, Options
from ruvcompile.plan import Plan
from ruvcompile.plan.facts import longest_prompt


def chosen_defaults(plan: Plan, options: Options) -> list[str]:
    """Flags with the values that were taken where none was given."""
    shape = plan.figures["shape"]
    found = [f"--{key} {shape[key]}" for key in ("stages", "replicas") if not getattr(options, key) and not options.cut]
    if not options.backend and any("backends_ms" in stage for stage in plan.figures["stages"]):
        found.append("--backend auto")
    if plan.space is not None:
        context, streams = plan.space.context, plan.space.streams * shape["replicas"]
        found += [f"--context {context}"] if not options.context else []
        found += [f"--streams {streams}"] if not options.streams else []
        taken = dict(options.defaults)
        if "prompt-tokens" in taken:
            taken["prompt-tokens"] = str(min(options.prompt_tokens, longest_prompt(context)))
        found += [f"--{key} {taken[key]}" for key in taken if key in OF_DECODERS]
    return found
