"""The protocol's names for element types, and a model's description in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ruvrun.elements import STRING, element_of
from ruvrun.manifest import Manifest, Tensor
from ruvrun.signature import is_sequence

BYTES, BF16 = "BYTES", "BF16"

DATATYPES: Mapping[str, str] = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": BF16,
    STRING: BYTES,
}
"""The protocol's name of each element type that it has; ONNX has smaller ones too."""

DTYPES: Mapping[str, np.dtype[Any]] = {
    **{word: np.dtype(name).newbyteorder("<") for name, word in DATATYPES.items() if word not in (BYTES, BF16)},
    BF16: np.dtype("<u2"),
    BYTES: np.dtype(object),
}
"""The type of the arrays that stand for each of the protocol's names, little-endian as the protocol has it."""


def datatype_of(tensor: Tensor) -> str | None:
    """The protocol's name for a tensor's element type; None of what it has no form for (sequences, small types)."""
    return None if is_sequence(tensor) else DATATYPES.get(element_of(tensor.dtype))


def version_of(manifest: Manifest) -> str:
    """The one version there is: the beginning of the hash of what is computed."""
    return manifest.id[:12]


def describe_model(manifest: Manifest) -> dict[str, Any]:
    """The body of GET /v2/models/NAME; sizes that the graph leaves open are -1."""
    program = manifest.program
    return {
        "name": program.name,
        "versions": [version_of(manifest)],
        "platform": "onnx_onnxv1",
        "inputs": [_describe(tensor) for tensor in program.inputs],
        "outputs": [_describe(tensor) for tensor in program.outputs],
    }


def _describe(tensor: Tensor) -> dict[str, Any]:
    shape = [-1 if isinstance(size, str) else size for size in tensor.shape]
    return {"name": tensor.name, "datatype": datatype_of(tensor) or tensor.dtype, "shape": shape}
