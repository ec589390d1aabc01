"""The golden check of a stage: inputs, and the outputs the build machine got for them.

A node repeats it before it joins: a kernel that computes something else, a damaged packing, a wrong version are
noticed before the first request. Kernels of different CPUs differ in the last digits, so the outputs must agree
within a bound: a share of the largest value that the target's data names, and what it makes of the stage that one CPU
rounds activations to 8 bits and another does not (``rounding``). Stages for this machine itself do without the latter.
Of an output that is left to chance only the type and the rank are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from ruvcompile.lower.stage import hashed
from ruvcompile.parts import Parts, run_stage
from ruvcompile.passes.chance import left_to_chance
from ruvcompile.program import Decoder
from ruvcompile.rounding import rounding_distance
from ruvcompile.targets import NATIVE, Target
from ruvcompile.whole import seed_chance
from ruvrun.bundle import BUNDLE, Golden, StageSpec
from ruvrun.elements import Value
from ruvrun.executors import Array
from ruvrun.manifest import dump_toml
from ruvrun.npz import write_npz
from ruvrun.pipeline.halves import over_link
from ruvrun.pipeline.selfcheck import largest_of

FILE = "golden.npz"
TOKENS = 16


def golden_prompt(decoder: Decoder) -> Array:
    """Token ids ``[16]``, fewer where the context is shorter: spread over the vocabulary, the same in every build."""
    return (np.arange(1, min(TOKENS, decoder.context) + 1, dtype=np.int64) * 7919) % decoder.vocab


def add_golden(parts: Parts, samples: Mapping[str, Value], targets: Sequence[Target]) -> list[StageSpec]:
    """Run the stages one after the other and write each one's golden check; a large one is run part by part.

    Args:
        parts: the stages, and how they are divided.
        samples: inputs of a graph; not used for decoders.
        targets: that of each stage; it says which share of the stage's largest absolute output is allowed.

    Returns:
        The specs with their golden check, as they now stand in ``bundle.toml``.
    """
    program, carried = parts.program, dict(samples)
    if program.decoder is not None:
        carried = {"input_ids": golden_prompt(program.decoder)}
    random = left_to_chance(program.model)
    if random:
        seed_chance()  # what goes from stage to stage is the same in every build
    done = []
    for number, ((directory, spec), target) in enumerate(zip(parts.stages, targets, strict=True)):
        inputs = {tensor.name: over_link(tensor, carried[tensor.name]) for tensor in spec.inputs}
        outputs = run_stage(parts.of(number), spec, inputs)
        if spec.golden is None:  # one that several pipelines share has got its own before
            with (directory / FILE).open("wb") as stream:
                write_npz(stream, _contents(inputs, outputs, random))
            bound = target.golden_bound * largest_of(spec, outputs)
            if target.arch != NATIVE:
                bound += rounding_distance(parts, number, inputs, outputs, random)
            golden = Golden(file=FILE, bound=float(f"{bound:.3g}"))
            spec = msgspec.structs.replace(spec, golden=golden, files=[*spec.files, hashed(directory, FILE)])
            (directory / BUNDLE).write_bytes(dump_toml(spec))
        done.append(spec)
        carried |= outputs
    return done


def _contents(inputs: Mapping[str, Value], outputs: Mapping[str, Value], random: Collection[str]) -> dict[str, Value]:
    """What the file holds: all but the values of outputs that are left to chance, and maps, which no file holds."""
    found: dict[str, Value] = {f"in.{name}": value for name, value in inputs.items()}
    for name, value in outputs.items():
        if name in random:
            if isinstance(value, np.ndarray):
                found[f"like.{name}"] = np.zeros_like(value, shape=(0,) * value.ndim)
        elif not (isinstance(value, list) and any(isinstance(each, dict) for each in value)):
            found[f"out.{name}"] = value
    return found
