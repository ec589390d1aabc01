"""``ruvcompile build`` and ``plan``: a model for a fleet, written or only thought through."""

from __future__ import annotations

from typing import Any

import click

from ruvcompile.cli import results
from ruvcompile.cli.accelerated import unless_parts
from ruvcompile.cli.flags import build_options, common, plan_options
from ruvcompile.cli.plans import plan_text
from ruvcompile.cli.voice import finish, start


@click.command()
@build_options
@common
def build(**flags: Any) -> None:
    """Build MODEL into one bundle per node.

    MODEL is a .gguf file, a Hugging Face directory, a decoder's ONNX directory, or any .onnx file.

    \b
    Example:
        ruvcompile build SmolLM2-135M-Instruct.Q4_1.gguf --target host --nodes 2
    """
    options, progress = start(flags)
    from ruvcompile import compile as steps

    local = all(node.local for node in options.fleet.nodes)
    finish(flags, steps.build(options, progress), unless_parts(lambda result: results.build_text(result, local=local)))


@click.command()
@plan_options
@click.option("--simulate", is_flag=True, help="Run requests through the planned fleet, in simulation.")
@click.option("--users", type=int, help="How many people use it, for --simulate. [default: 30]")
@click.option("--max-tokens", type=int, help="Tokens of an answer in the mean, for --simulate. [default: 128]")
@common
def plan(**flags: Any) -> None:
    """Measure MODEL and show what build would make of it; write nothing.

    MODEL is a .gguf file, a Hugging Face directory, a decoder's ONNX directory, or any .onnx file.

    \b
    Example:
        ruvcompile plan model.gguf --target pi5 --nodes 4 --json
    """
    options, progress = start(flags, unsaid=("output",))
    from ruvcompile import compile as steps

    finish(flags, steps.plan(options, progress), unless_parts(plan_text))
