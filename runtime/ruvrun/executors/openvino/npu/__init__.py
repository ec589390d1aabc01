"""The executor for NPUs, whose compiler wants to know every size.

A decoder is two static graphs (``packed``, ``static``). Any other graph is made static, too, where its shapes are open:
one for every shape of its inputs (``shaped``).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from ruvrun.bundle import StageSpec
from ruvrun.executors.openvino.devices import compile_stage, require, settings
from ruvrun.executors.openvino.intermediate import loading, map_stage
from ruvrun.executors.openvino.npu.packed import PackedDecoder
from ruvrun.executors.openvino.npu.shaped import load_graph
from ruvrun.executors.openvino.npu.static import PAST, Sizes, make_static
from ruvrun.executors.pages import zeroed


def load_decoder(directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int) -> PackedDecoder:
    """Load a decoder stage, and run both of its graphs once."""
    decoder = open_decoder(directory, spec, context=context, slots=slots, threads=threads)
    decoder.settle()
    return decoder


def open_decoder(
    directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int, profile: bool = False
) -> PackedDecoder:
    """Load a decoder stage, cold; with ``profile`` it keeps the time of every kernel (``PackedDecoder.kernels``)."""
    core = ov.Core()
    device = require(core, spec)
    with loading(spec):
        model, constants = map_stage(core, directory, spec)
    told = settings(device, spec, threads, profile=profile)

    def compiled(sizes: Sizes) -> Any:
        return compile_stage(core, make_static(model, sizes), device, spec, told)

    kept = {}
    for port in model.inputs:
        if (name := port.get_any_name()).startswith(PAST):
            shape = Sizes(tokens=1, positions=slots * context, rows=1).of(name, port.get_partial_shape())
            dtype = np.dtype(port.get_element_type().to_dtype())
            kept[name] = zeroed(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
    return PackedDecoder(compiled, spec, kept, context=context, slots=slots, constants=constants)


__all__ = ["load_decoder", "load_graph", "open_decoder"]
