"""The front of the compiler: a model as it will run, and all that is known of it before anything is measured.

Steps 1 to 3 of ``compile``: loaded, in canonical form, quantised, with inputs where shapes are open; and the units that
it may be cut between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ruvcompile.errors import UsageError
from ruvcompile.load import load
from ruvcompile.options import Options
from ruvcompile.passes import run as run_passes
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.passes.quantise import ACCURACY, quantise
from ruvcompile.passes.units import Unit
from ruvcompile.plan import context_for
from ruvcompile.plan.facts import longest_prompt
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.samples import sample
from ruvcompile.whole import observe
from ruvrun.executors import Array


@dataclass(frozen=True)
class Front:
    """A model, ready to be measured.

    ``source`` is it as the file has it, ``program`` quantised; ``units`` are the program's, with their ``keys``; types,
    samples and the choices made for them are a graph's.
    """

    source: Program
    program: Program
    units: tuple[Unit, ...]
    keys: tuple[str, ...]
    types: Mapping[str, Type]
    samples: Mapping[str, Array]
    choices: tuple[str, ...]


def read_model(options: Options, progress: Progress) -> Front:
    """Load the model that the options name.

    Raises:
        RuvError: it cannot be read, or not be run; or something was asked for that such a model does not have.
    """
    with progress.step("load"):
        source = run_passes(load(str(options.model)))
        _check_meant(source, options)
        if options.name:
            if "/" in options.name and source.decoder is None:
                what = f"--name {options.name!r} has a slash, and a graph's name is a part of its address"
                raise UsageError("name-invalid", what, hint="as in --name detector")
            source = replace(source, name=options.name)
        program = quantise(source, options.quant, accuracy=ACCURACY[options.activations])
        program = replace(program, precision=options.precision or program.precision, kv_type=options.kv_type or "")
    for text in source.notes:
        progress.note(text)
    if program.decoder is not None:
        units = program_units(program)
        return Front(source, program, units, unit_keys(program, units), {}, {}, ())
    with progress.step("samples"):
        made = sample(program.model, inputs=options.inputs, shapes=options.shapes)
        types = observe(program.model, made.arrays)
    for text in made.choices:
        progress.note(text)
    units = program_units(program, types)
    return Front(source, program, units, unit_keys(program, units, types), types, made.arrays, made.choices)


def _check_meant(program: Program, options: Options) -> None:
    """Refuse what was asked for and would be passed over: a graph has no tokens, a decoder's shapes are not open."""
    defaults = {name for name, _ in options.defaults}
    asked: Mapping[str, object]
    if program.decoder is not None:
        wrong, asked = "a decoder", {"--inputs": options.inputs, "--shape": options.shapes}
        longest = longest_prompt(context_for(program, options))
        if options.prompt_tokens > longest and "prompt-tokens" not in defaults:
            what = f"--prompt-tokens {options.prompt_tokens} leaves no room for an answer in a context of {longest + 1}"
            hint = f"--prompt-tokens {longest}, or a larger --context"
            raise UsageError("prompt-tokens-invalid", what, hint=hint)
        if program.decoder.exported and options.link_type == "f16":
            what = f"{program.source.path} is run as it was exported, whose activations cross links as they are"
            raise UsageError("link-type-unsupported", what, hint="leave --link-type out")
    else:
        wrong = "no decoder"
        asked = {
            "--activations": "activations" not in defaults,
            "--context": options.context,
            "--kv-type": options.kv_type,
            "--link-type": options.link_type != "f32",
            "--max-tokens": options.max_tokens,
            "--prompt-tokens": "prompt-tokens" not in defaults,
            f"--quant {options.quant}": options.quant not in ("auto", "none"),
        }
    if meant := [flag for flag, value in asked.items() if value]:
        what = f"{', '.join(meant)} says nothing about {program.source.path}, which is {wrong}"
        raise UsageError("option-of-other-models", what, hint="leave it out")
