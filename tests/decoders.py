"""Decoders for tests from file to running stages: loaded, quantised, cut, written, opened."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.load.checkpoint import build_decoder, decoder_of
from ruvcompile.load.families import family_of
from ruvcompile.load.stored import Checkpoint, Stored
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program, Source
from ruvrun.bundle import StageSpec
from ruvrun.executors.onnxruntime import OnnxDecoder, load_decoder
from ruvrun.pipeline import LocalPipeline, Request, Sampling, Worker
from tests.checkpoints import CONFIGS, random_tensors
from tests.models import write_tiny_gguf

Stage = tuple[Path, StageSpec]
GREEDY = Sampling(temperature=0.0, top_p=1.0, seed=0)


def tiny_program(folder: Path, quant: str = "auto", *, accuracy: int = 4, **form: object) -> Program:
    """A tiny random decoder (``write_tiny_gguf``), canonical and quantised."""
    path = write_tiny_gguf(folder / "tiny.gguf", **form)  # type: ignore[arg-type] # handed on as it came
    return quantise(passes.run(load(str(path))), quant, accuracy=accuracy)


def write_stages(program: Program, cuts: Sequence[int], folder: Path, store: WeightStore) -> list[Stage]:
    """The stages between ``cuts``, each in a folder of its own below ``folder``."""
    made = []
    for number, piece in enumerate(pieces(program, program_units(program), cuts)):
        directory = folder / f"stage-{number}"
        made.append((directory, write_stage(program, piece, directory, store, backend="onnxruntime", target="host")))
    return made


def open_decoders(stages: Sequence[Stage], *, context: int, slots: int) -> list[OnnxDecoder]:
    """The executor of each stage, one thread."""
    return [load_decoder(path, spec, context=context, slots=slots, threads=1) for path, spec in stages]


def open_pipeline(stages: Sequence[Stage], *, context: int, streams: int, chunk: int = 256) -> LocalPipeline:
    """The stages as a pipeline of this process."""
    executors = open_decoders(stages, context=context, slots=streams)
    workers = [Worker(executor, spec) for executor, (_, spec) in zip(executors, stages, strict=True)]
    return LocalPipeline(workers, context, streams, chunk)


def ask(number: int, prompt: Sequence[int], tokens: int, eos: Sequence[int] = ()) -> Request:
    """A greedy request."""
    return Request(number, tuple(int(token) for token in prompt), tokens, GREEDY, frozenset(eos))


def family_program(name: str, quant: str = "none", *, accuracy: int = 4, seed: int = 0, **keys: object) -> Program:
    """A tiny random decoder of the configuration ``name`` (``tests.checkpoints``), without file or tokenizer."""
    checkpoint = family_checkpoint(name, seed=seed, **keys)
    family = family_of(checkpoint)
    form = family.describe(checkpoint)
    model = build_decoder(form, family.weights(checkpoint, form), name)
    decoder = decoder_of(form, checkpoint.model_type, ())
    return quantise(passes.run(Program(name, model, Source(name, ""), decoder)), quant, accuracy=accuracy)


def family_checkpoint(name: str, *, seed: int = 0, **keys: object) -> Checkpoint:
    """The checkpoint of a configuration, with keys changed; its tensors are those that the keys ask for."""
    config = {**CONFIGS[name], **keys}
    tensors = random_tensors(config, seed)
    if config["model_type"].startswith("gemma"):
        # Small beside what the layers add, or a tied head would repeat its input for ever.
        tensors["model.embed_tokens.weight"] *= np.float32(1 / 64)
    stored = {
        name: Stored(name, array.shape, 32, partial(np.copy, array), lambda a, b, array=array: array[a:b])
        for name, array in tensors.items()
    }
    return Checkpoint(name, config["model_type"], config, stored)
