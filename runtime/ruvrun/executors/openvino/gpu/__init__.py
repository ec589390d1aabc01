"""The executor for GPUs: a decoder has a lane for each sequence (``lanes``), and a graph is compiled as it is."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from ruvrun.bundle import StageSpec
from ruvrun.executors.openvino.devices import compile_stage, require, settings
from ruvrun.executors.openvino.gpu.lanes import LaneDecoder
from ruvrun.executors.openvino.graph import OpenVinoGraph
from ruvrun.executors.openvino.intermediate import loading, map_stage


def load_decoder(directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int) -> LaneDecoder:
    """Load a decoder stage, and run it once: kernels are made in the first call."""
    decoder = open_decoder(directory, spec, context=context, slots=slots, threads=threads)
    decoder.settle()
    return decoder


def open_decoder(
    directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int, profile: bool = False
) -> LaneDecoder:
    """Load a decoder stage, cold; with ``profile`` it keeps the time of every kernel (``LaneDecoder.kernels``)."""
    core = ov.Core()
    device = require(core, spec)
    with loading(spec):
        model, constants = map_stage(core, directory, spec)
    compiled = compile_stage(core, model, device, spec, settings(device, spec, threads, profile=profile))
    return LaneDecoder(compiled, spec, context=context, slots=slots, constants=constants)


def load_graph(directory: Path, spec: StageSpec, *, threads: int, profile: bool = False) -> OpenVinoGraph:
    """Load a stage of a graph; ``profile`` as in ``open_decoder``."""
    core = ov.Core()
    device = require(core, spec)
    with loading(spec):
        model = core.read_model(directory / spec.model)
    told = settings(device, spec, threads, profile=profile)
    return OpenVinoGraph(compile_stage(core, model, device, spec, told))


__all__ = ["load_decoder", "load_graph", "open_decoder"]
