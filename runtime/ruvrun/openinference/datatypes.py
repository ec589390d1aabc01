"""The protocol's names for element types, and a model's description in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ruvrun.manifest import Manifest, Tensor

Array = npt.NDArray[Any]

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
}
"""The protocol's name of each element type that links carry."""

DTYPES: Mapping[str, np.dtype[Any]] = {word: np.dtype(name).newbyteorder("<") for name, word in DATATYPES.items()}
"""The array type of each of the protocol's names, little-endian as the protocol has it."""

BYTES = "BYTES"
"""The protocol's name for strings, which no link carries."""


def datatype_of(tensor: Tensor) -> str:
    """The protocol's name for a tensor's element type."""
    return BYTES if tensor.dtype in ("string", "str", "object") else DATATYPES.get(tensor.dtype, tensor.dtype.upper())


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
    return {"name": tensor.name, "datatype": datatype_of(tensor), "shape": shape}
