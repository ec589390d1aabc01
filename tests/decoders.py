"""Decoders for tests from file to running stages: loaded, quantised, cut, written, opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from ruvrun.bundle import StageSpec
from ruvrun.executors.onnxruntime import OnnxDecoder, load_decoder
from ruvrun.pipeline import LocalPipeline, Request, Sampling, Worker
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
