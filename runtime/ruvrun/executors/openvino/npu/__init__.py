"""The executor for NPUs, whose compiler wants to know every size.

A decoder is two static graphs (``packed``, ``static``). Any other graph is made static, too, where its shapes are open:
one for every shape of its inputs (``shaped``).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import openvino as ov

from ruvrun.bundle import StageSpec
from ruvrun.executors.openvino.compiled import Shelf
from ruvrun.executors.openvino.devices import compile_stage, described, require, settings, start
from ruvrun.executors.openvino.intermediate import loading, map_stage
from ruvrun.executors.openvino.npu.packed import PackedDecoder
from ruvrun.executors.openvino.npu.shaped import load_graph
from ruvrun.executors.openvino.npu.static import Sizes, make_static


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
    told = settings(device, spec, threads, profile=profile)
    shelf = Shelf(core, directory, spec, described(core, device), told)

    @cache
    def read() -> Any:
        with loading(spec):
            return shelf.held(*map_stage(core, directory, spec))

    def compiled(sizes: Sizes) -> Any:
        def made() -> Any:
            return compile_stage(core, make_static(read(), sizes), device, spec, told)

        return shelf.take(made, f"{sizes.tokens}x{sizes.rows}", str(sizes))

    return PackedDecoder(compiled, spec, shelf, context=context, slots=slots)


__all__ = ["load_decoder", "load_graph", "open_decoder", "start"]
