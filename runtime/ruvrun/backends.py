"""The back ends there are, and what holds of each wherever it is spoken of; none of them is imported here.

A plan asks which types of keys and values a back end has, a lowering writes one of them, an executor keeps it; a node
asks for the package that a bundle needs, the head whether a prompt that was computed may be copied. Each fact stands
here once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ruvrun.manifest import RUNTIME_BYTES, SERVING_BYTES, KvType
from ruvrun.manifest.blocks import Pool, pool_of, sequences_of

KV_TYPES: Mapping[str, KvType] = {"f32": "float32", "f16": "float16", "u8": "uint8"}
"""Types of keys and values: their names in options and in OpenVINO, and in a manifest, which are NumPy's."""

CPU, GPU, NPU = "CPU", "GPU", "NPU"

_BARE, _SERVING = 94 << 20, 6 << 20
"""Of a process with OpenVINO's library for a device, measured with SmolLM2 in one and two stages, as for ONNX Runtime.
Most that serving adds there has been taken here when anything was compiled.
"""


@dataclass(frozen=True)
class BackEnd:
    """One of them.

    Attributes:
        title: what people call it.
        module: its executor.
        package: what it is installed with, an extra of ``ruvrun``.
        kv_types: the types that keys and values may have, by the precision of the numbers it computes with.
        device: OpenVINO's name of what its stages are for; empty for other back ends.
        runtime_bytes: what a stage's process takes with nothing loaded, where that was not measured.
        serving_bytes: what serving adds to it, measured or not.
        copies: whether each of its decoders is a ``CopyingExecutor``, and computes a prompt alike however divided.
        pooled: whether each of its decoders is a ``PooledExecutor``.
        ragged: whether each of its decoders computes a step in one call, whatever its sequences want of it: who decodes
            and a chunk of a prompt, too.
    """

    title: str
    module: str
    package: str
    kv_types: Mapping[str, tuple[str, ...]]
    device: str = ""
    runtime_bytes: int = RUNTIME_BYTES
    serving_bytes: int = SERVING_BYTES
    copies: bool = False
    pooled: bool = False
    ragged: bool = False

    @property
    def kinds(self) -> frozenset[str]:
        """All types that keys and values may have."""
        return frozenset(kind for kinds in self.kv_types.values() for kind in kinds)


BACK_ENDS: Mapping[str, BackEnd] = {
    "onnxruntime": BackEnd(
        "ONNX Runtime", "ruvrun.executors.onnxruntime", "onnxruntime", {"f32": ("f32",)}, copies=True
    ),
    "openvino": BackEnd(
        "OpenVINO",
        "ruvrun.executors.openvino.cpu",
        "openvino",
        {"f32": ("f32", "f16", "u8"), "bf16": ("u8",)},  # its attention with numbers of 16 bits has no others of ours
        CPU,
        copies=True,
        pooled=True,
        ragged=True,
        runtime_bytes=_BARE,
        serving_bytes=_SERVING,
    ),
    "openvino-gpu": BackEnd(
        "OpenVINO on a GPU",
        "ruvrun.executors.openvino.gpu",
        "openvino",
        {"f32": ("f16", "f32")},
        GPU,
        runtime_bytes=_BARE,
        serving_bytes=_SERVING,
    ),
    "openvino-npu": BackEnd(
        "OpenVINO on an NPU",
        "ruvrun.executors.openvino.npu",
        "openvino",
        {"f32": ("f16", "f32")},
        NPU,
        runtime_bytes=_BARE,
        serving_bytes=_SERVING,
    ),
    "reference": BackEnd("the reference", "ruvrun.executors.reference", "reference", {"f32": ("f32",)}, copies=True),
}


COPYING = frozenset(name for name, each in BACK_ENDS.items() if each.copies)
POOLED = frozenset(name for name, each in BACK_ENDS.items() if each.pooled)
RAGGED = frozenset(name for name, each in BACK_ENDS.items() if each.ragged)

PRECISIONS = tuple(dict.fromkeys(precision for each in BACK_ENDS.values() for precision in each.kv_types))
"""Of the numbers that any of them computes with."""


def device_for(backend: str) -> str:
    """OpenVINO's name of what the stages of a back end are for; empty for those that are not OpenVINO's."""
    return BACK_ENDS[backend].device if backend in BACK_ENDS else ""


def positions(backend: str, context: int, streams: int) -> int:
    """How many positions of key/value space a stage takes: of a pool whole blocks, and one beside it."""
    if backend not in POOLED:
        return context * streams
    pool = pool_of(context, streams)
    return (pool.blocks + 1) * pool.size


def at_work(backends: Collection[str], streams: int) -> int:
    """How many sequences are at work at a time, at most, in a pipeline on these back ends, planned for ``streams``."""
    return sequences_of(streams) if POOLED.issuperset(backends) else streams


def shared_by(backends: Collection[str], context: int, streams: int) -> Pool | None:
    """The pool that sequences share in a pipeline on these back ends, planned for ``streams`` of ``context`` positions;
    None where each has a slot.
    """
    return pool_of(context, streams) if POOLED.issuperset(backends) else None


def package_of(backend: str) -> str:
    """The package that a back end is in; of an unknown one its name."""
    return BACK_ENDS[backend].package if backend in BACK_ENDS else backend


__all__ = [
    "BACK_ENDS",
    "COPYING",
    "CPU",
    "GPU",
    "KV_TYPES",
    "NPU",
    "POOLED",
    "PRECISIONS",
    "RAGGED",
    "BackEnd",
    "at_work",
    "device_for",
    "package_of",
    "positions",
    "shared_by",
]
