"""ONNX Runtime's sessions for the stages of a bundle, with every option explicit.

**Products of 8 bits.** For unsigned activations and signed weights ONNX Runtime takes, on a PC without VNNI, kernels
that add two products in 16 bits, and cut off what does not fit: a quantised graph computes something else there. With
``session.x64quantprecision`` it makes those weights unsigned while it loads, and takes kernels that are exact, but
slower than those of a CPU with VNNI, which are exact anyway. It would do so there too, so it is asked only where the
CPU has no VNNI (``cuts_off``). What the compiler does for this is told in ``ruvcompile.passes.turnable``. ONNX Runtime
refuses a graph with the option where two operators share a weight or its zero point, as bundles of earlier versions
have it: such a graph is loaded without it, and the golden check says whether what it computes is near enough to what
was recorded. Where nothing is fused (``fused``) nothing is turned either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnxruntime as ort

from ruvrun.errors import InputError
from ruvrun.machine import cpu_features

_EXACT = "session.x64quantprecision"


def open_session(
    model: Path, *, threads: int, spinning: bool = True, fused: bool = True, profile: Path | None = None
) -> Any:
    """An ``onnxruntime.InferenceSession`` on the CPU.

    Args:
        model: the graph's file.
        threads: of one operator; 0 means all cores.
        spinning: whether threads wait for the next operator of a call without sleeping; they never do between calls.
        fused: whether patterns of many nodes become one kernel; False keeps to the graph as it is drawn, but for
            what a few nodes allow (``ORT_ENABLE_BASIC``).
        profile: prefix of the file that ``end_profiling`` writes; None for no profile.

    Raises:
        InputError: ``stage-not-loadable``.
    """

    def options() -> ort.SessionOptions:
        found = ort.SessionOptions()
        found.intra_op_num_threads = threads
        found.inter_op_num_threads = 1
        found.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        levels = ort.GraphOptimizationLevel
        found.graph_optimization_level = levels.ORT_ENABLE_ALL if fused else levels.ORT_ENABLE_BASIC
        found.log_severity_level = 4  # what goes wrong is raised, and told once
        if spinning:
            found.add_session_config_entry("session.force_spinning_stop", "1")
        else:
            found.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if profile is not None:
            found.enable_profiling = True
            found.profile_file_prefix = str(profile)
        return found

    try:
        return open_exact(str(model), options)
    except Exception as error:  # noqa: BLE001 - onnxruntime's errors share no other base class
        raise InputError(
            "stage-not-loadable",
            f"ONNX Runtime cannot load {model.name}",
            context=[str(error)],
            hint="build again with this version",
        ) from None


def open_exact(source: str | bytes, options: Callable[[], ort.SessionOptions]) -> Any:
    """An ``onnxruntime.InferenceSession`` of ``source``, its products of 8 bits exact where the graph allows it.

    Args:
        source: path of a graph's file, or what one holds.
        options: makes the options; once more where the graph is refused with exact products.

    Raises what ONNX Runtime raises without them.
    """
    if cuts_off(cpu_features()):
        exact = options()
        exact.add_session_config_entry(_EXACT, "1")
        with suppress(Exception):  # of fifteen classes
            return ort.InferenceSession(source, exact, providers=["CPUExecutionProvider"])
    return ort.InferenceSession(source, options(), providers=["CPUExecutionProvider"])


def cuts_off(features: Collection[str]) -> bool:
    """Whether, on a CPU with these ``features``, ONNX Runtime adds products of 8 bits in 16 where weights are signed.

    It takes kernels of AVX-512 where there are any, also beside VNNI for AVX2 alone.
    """
    vnni = "avx512_vnni" if "avx512bw" in features else "avx_vnni"
    return "avx2" in features and vnni not in features
