"""The executor for CPUs: one call for all sequences of a step, whatever they want of it.

**Decoders.** The stage's graph gets its paged attention when it is loaded (``attention.py``): keys and values lie in
blocks of 32 positions, and small arrays say which tokens of the flat axis are whose, how far each sequence is, and
which blocks are its own (``paged.py``). A slot owns as many consecutive blocks as the context needs. So prompts in
chunks, sequences that decode beside them, and a smaller position after a rewind are only a matter of what these arrays
say.

**Graphs** are read as they are, once (``../compiled.py``), and run on named arrays. One in 8 bits is computed with the
floats that its numbers stand for (``LP_TRANSFORMS_MODE``): of the kernels for products of 8 bits those for PCs without
VNNI cut off sums that do not fit into 16 bits, and of two such products in a row OpenVINO 2026.4 makes nonsense on any,
where activations have a zero point.

What decides a result (precision, the type of keys and values, the groups in which activations are quantised) stands in
the stage's ``options``; nothing is left to a machine's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from ruvrun.backends import CPU, KV_TYPES
from ruvrun.bundle import StageSpec
from ruvrun.errors import InputError, did_you_mean
from ruvrun.executors.openvino.compiled import Shelf
from ruvrun.executors.openvino.cpu.attention import put_back
from ruvrun.executors.openvino.cpu.paged import PagedDecoder, is_cache
from ruvrun.executors.openvino.devices import about_kept, described, kept_refused, require, start
from ruvrun.executors.openvino.graph import OpenVinoGraph
from ruvrun.executors.openvino.intermediate import loading, map_stage
from ruvrun.executors.pages import use_huge_pages

OPTIONS = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "KEY_CACHE_QUANT_MODE", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
"""The settings that a bundle may bring; the others are the machine's own matter and here."""


def load_decoder(directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int) -> PagedDecoder:
    """Load a decoder stage, and run it: weights are packed in the first call."""
    decoder = open_decoder(directory, spec, context=context, slots=slots, threads=threads)
    decoder.settle()
    use_huge_pages()
    return decoder


def open_decoder(
    directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int, profile: bool = False
) -> PagedDecoder:
    """Load a decoder stage, cold; with ``profile`` it keeps the time of every kernel (``PagedDecoder.kernels``)."""
    core, settings = ov.Core(), _settings(spec, threads, profile=profile)
    require(core, spec)
    with loading(spec):
        model, constants = map_stage(core, directory, spec)
        if spec.kv is not None and spec.kv.layers:
            put_back(model, spec.kv)
        compiled = _compile(core, model, spec, settings)
    return PagedDecoder(compiled, spec, context=context, slots=slots, constants=constants)


def _compile(core: Any, model: Any, spec: StageSpec, settings: Mapping[str, Any]) -> Any:
    """Compile a decoder; what it keeps must be of the type that the bundle says, whatever this machine would rather.

    Raises:
        MachineError: ``kv-type-refused``.
    """
    told = spec.options.get("KV_CACHE_PRECISION", "")
    try:
        compiled = core.compile_model(model, CPU, settings)
    except RuntimeError as error:
        if about_kept(str(error)):
            raise kept_refused(CPU, spec, str(error)) from None
        raise
    kept = {port.get_element_type().get_type_name() for port in compiled.inputs if is_cache(port.get_any_name())}
    if not kept <= {told} & KV_TYPES.keys():
        raise kept_refused(CPU, spec, f"its pools are of {', '.join(sorted(kept))}")
    return compiled


def load_graph(directory: Path, spec: StageSpec, *, threads: int, profile: bool = False) -> OpenVinoGraph:
    """Load a stage of a graph; with ``profile`` it keeps the time of every kernel (``OpenVinoGraph.kernels``)."""
    core, settings = ov.Core(), {**_settings(spec, threads, profile=profile), "LP_TRANSFORMS_MODE": False}
    shelf = Shelf(core, directory, spec, described(core, require(core, spec)), settings)
    with loading(spec):
        compiled = shelf.take(lambda: core.compile_model(core.read_model(directory / spec.model), CPU, settings))
    return OpenVinoGraph(compiled, spec, shelf)


def _settings(spec: StageSpec, threads: int, *, profile: bool = False) -> dict[str, Any]:
    if unknown := sorted(spec.options.keys() - {*OPTIONS}):
        raise InputError("option-unknown", f"the bundle sets {unknown[0]}", hint=did_you_mean(unknown[0], OPTIONS))
    return {
        **spec.options,
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # what a stage is pinned to is the node's matter
        "PERF_COUNT": profile,
    }


__all__ = ["OPTIONS", "load_decoder", "load_graph", "open_decoder", "start"]
