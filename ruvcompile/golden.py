"""The golden check of a stage: inputs, and the outputs the build machine got for them.

A node repeats it before it joins: a kernel that computes something else, a damaged packing, a wrong version are
noticed before the first request. Kernels of different CPUs differ in the last digits, so the outputs must agree
within a bound, a share of the largest value that the target's data names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from ruvcompile.lower.stage import hashed
from ruvcompile.program import Decoder, Program
from ruvrun.bundle import BUNDLE, Golden, StageSpec
from ruvrun.executors import Array, Span, load_decoder, load_graph
from ruvrun.manifest import dump_toml

FILE = "golden.npz"
TOKENS = 16


def golden_prompt(decoder: Decoder) -> Array:
    """Token ids ``[16]``, fewer where the context is shorter: spread over the vocabulary, the same in every build."""
    return (np.arange(1, min(TOKENS, decoder.context) + 1, dtype=np.int64) * 7919) % decoder.vocab


def add_golden(
    program: Program,
    stages: Sequence[tuple[Path, StageSpec]],
    samples: Mapping[str, Array],
    shares: Sequence[float],
) -> list[StageSpec]:
    """Run the stages one after the other, each alone in memory, and write each one's golden check.

    Args:
        program: what the stages are made of.
        stages: directory and spec of each stage, in order.
        samples: inputs of a graph; not used for decoders.
        shares: the bound of each stage as a share of its largest absolute output.

    Returns:
        The specs with their golden check, as they now stand in ``bundle.toml``.
    """
    carried: dict[str, Array] = dict(samples)
    if program.decoder is not None:
        carried = {"input_ids": golden_prompt(program.decoder)}
    done = []
    for (directory, spec), share in zip(stages, shares, strict=True):
        inputs = {tensor.name: carried[tensor.name] for tensor in spec.inputs}
        outputs = _run(directory, spec, inputs)
        arrays = {f"in.{name}": array for name, array in inputs.items()}
        arrays |= {f"out.{name}": np.asarray(array) for name, array in outputs.items()}
        np.savez(directory / FILE, allow_pickle=False, **arrays)
        largest = max((float(np.abs(array).max()) for array in outputs.values() if array.size), default=0.0)
        golden = Golden(file=FILE, bound=float(f"{share * max(largest, 1e-6):.3g}"))
        spec = msgspec.structs.replace(spec, golden=golden, files=[*spec.files, hashed(directory, FILE)])
        (directory / BUNDLE).write_bytes(dump_toml(spec))
        done.append(spec)
        carried |= outputs
    return done


def _run(directory: Path, spec: StageSpec, inputs: Mapping[str, Array]) -> dict[str, Array]:
    if spec.kind == "graph":
        return load_graph(directory, spec, threads=1).run(inputs)
    tokens = min(len(array) for array in inputs.values())
    executor = load_decoder(directory, spec, context=tokens, slots=1, threads=1)
    outputs = executor.step([Span(0, 0, tokens, 1)], inputs)
    return {name: array.copy() for name, array in outputs.items()}
