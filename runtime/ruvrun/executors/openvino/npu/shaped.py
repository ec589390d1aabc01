"""Stages of graphs for a device whose compiler wants to know every shape: a graph for each that inputs come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from ruvrun.bundle import StageSpec
from ruvrun.elements import Value
from ruvrun.executors.openvino.compiled import Shelf
from ruvrun.executors.openvino.devices import compile_stage, described, require, settings
from ruvrun.executors.openvino.graph import OpenVinoGraph, refused
from ruvrun.executors.openvino.intermediate import loading
from ruvrun.executors.openvino.kernels import Ran

SHAPES = 8
"""Shapes of inputs for which a graph is kept."""

Shapes = Mapping[str, Sequence[int]]


class ShapedGraph:
    """A stage of a graph whose shapes are open; a ``GraphExecutor``.

    Args:
        compiled: makes the graph of some shapes, by the names of inputs.
    """

    def __init__(self, compiled: Callable[[Shapes], OpenVinoGraph]) -> None:
        self._compiled = compiled
        self._graphs: dict[tuple[tuple[str, tuple[int, ...]], ...], OpenVinoGraph] = {}
        self._ran: OpenVinoGraph | None = None

    def run(self, tensors: Mapping[str, Value]) -> dict[str, Value]:
        """Run the stage once; the first run with other shapes takes as long as loading."""
        shapes = {name: value.shape for name, value in tensors.items() if isinstance(value, np.ndarray)}
        key = tuple(sorted(shapes.items()))
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._compiled(shapes)
            if len(self._graphs) >= SHAPES:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = graph
        self._ran = graph
        return graph.run(tensors)

    def kernels(self) -> list[Ran]:
        """As ``OpenVinoGraph.kernels``."""
        return self._ran.kernels() if self._ran is not None else []


def load_graph(directory: Path, spec: StageSpec, *, threads: int, profile: bool = False) -> OpenVinoGraph | ShapedGraph:
    """Load a stage of a graph; with ``profile`` it keeps the time of every kernel."""
    core = ov.Core()
    device = require(core, spec)
    with loading(spec):
        model = core.read_model(directory / spec.model)
    told = settings(device, spec, threads, profile=profile)
    shelf = Shelf(core, directory, spec, described(core, device), told)

    def compiled(shapes: Shapes) -> Any:
        static = model.clone()
        try:
            if shapes:
                static.reshape({name: ov.PartialShape(list(shape)) for name, shape in shapes.items()})
        except RuntimeError as error:
            raise refused(str(error)) from None
        return compile_stage(core, static, device, spec, told)

    if model.is_dynamic():
        return ShapedGraph(lambda shapes: OpenVinoGraph(compiled(shapes), spec, shelf))
    return OpenVinoGraph(shelf.take(lambda: compiled({})), spec, shelf)
