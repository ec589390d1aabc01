"""ONNX Runtime's sessions for the stages of a bundle, with every option explicit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime as ort

from ruvrun.errors import InputError


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
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if fused else levels.ORT_ENABLE_BASIC
    options.log_severity_level = 4  # what goes wrong is raised, and told once
    if spinning:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    try:
        return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - onnxruntime's errors share no other base class
        raise InputError(
            "stage-not-loadable",
            f"ONNX Runtime cannot load {model.name}",
            context=[str(error)],
            hint="build again with this version",
        ) from None
