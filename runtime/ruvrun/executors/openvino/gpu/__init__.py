"""The executor for GPUs: a decoder has a lane for each sequence (``lanes``), and a graph is compiled as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino as ov

from ruvrun.bundle import StageSpec
from ruvrun.executors.openvino.compiled import Shelf
from ruvrun.executors.openvino.devices import compile_stage, described, require, settings, start
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
    told = settings(device, spec, threads, profile=profile)
    shelf = Shelf(core, directory, spec, described(core, device), told)

    def compiled() -> Any:
        with loading(spec):
            model = shelf.held(*map_stage(core, directory, spec))
        return compile_stage(core, model, device, spec, told)

    return LaneDecoder(shelf.take(compiled), spec, shelf, context=context, slots=slots)


def load_graph(directory: Path, spec: StageSpec, *, threads: int, profile: bool = False) -> OpenVinoGraph:
    """Load a stage of a graph; ``profile`` as in ``open_decoder``."""
    core = ov.Core()
    device = require(core, spec)
    told = settings(device, spec, threads, profile=profile)
    shelf = Shelf(core, directory, spec, described(core, device), told)

    def compiled() -> Any:
        with loading(spec):
            model = core.read_model(directory / spec.model)
        return compile_stage(core, model, device, spec, told)

    return OpenVinoGraph(shelf.take(compiled), spec, shelf)


__all__ = ["load_decoder", "load_graph", "open_decoder", "start"]
