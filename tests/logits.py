"""Decoder stages of any back end asked for the logits of a text that is given; a device's stages run on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.program import Program
from ruvrun.executors import DecoderExecutor, Span, load_decoder
from ruvrun.executors.openvino.forms import on_cpu
from tests.decoders import Stage

CONTEXT, SLOTS = 80, 4
IDS = np.random.default_rng(7).integers(3, 300, (SLOTS, CONTEXT))


def written(
    program: Program,
    cuts: Sequence[int],
    folder: Path,
    store: WeightStore,
    backend: str = "openvino",
    kv: str = "f32",
) -> list[Stage]:
    """The stages between ``cuts``, with keys and values of type ``kv``."""
    made = []
    for number, piece in enumerate(pieces(program, program_units(program), cuts)):
        path = folder / f"{backend}-{kv}-{'-'.join(map(str, cuts))}-{number}"
        made.append((path, write_stage(program, piece, path, store, backend=backend, target="host", kv_type=kv)))
    return made


def opened(stages: Sequence[Stage], *, context: int = CONTEXT, slots: int = SLOTS) -> list[DecoderExecutor]:
    """The executor of each stage, one thread."""
    return [load_decoder(path, on_cpu(spec), context=context, slots=slots, threads=1) for path, spec in stages]


def step(executors: Sequence[DecoderExecutor], *spans: Span, ids: np.ndarray = IDS) -> np.ndarray:
    """One step; sequence n has the tokens ``ids[n]`` and slot n."""
    tensors = {
        "input_ids": np.concatenate([ids[span.slot, span.position : span.position + span.count] for span in spans])
    }
    for executor in executors:
        tensors = executor.step(spans, tensors)
    return tensors["logits"].copy()


def answer(
    executors: Sequence[DecoderExecutor], sizes: Sequence[int], slot: int = 1, ids: np.ndarray = IDS
) -> np.ndarray:
    """Logits of all positions, in chunks of these sizes; ``ids`` as for ``step``."""
    found, at = [], 0
    for size in sizes:
        found.append(step(executors, Span(slot, at, size, size), ids=ids))
        at += size
    return np.concatenate(found)
