"""A matrix in 4 or 8 bits and back, to compare with: quantised as a build does it, and taken apart by its format."""

from __future__ import annotations

from typing import Any

import numpy as np

from ruvcompile.passes.levels import BLOCK, Quantised, quantise_rows

Float = np.ndarray[Any, np.dtype[np.float32]]


def quantised(weight: Float, bits: int) -> Quantised:
    """``weight`` ``[rows, columns]``, which comes at once."""
    return quantise_rows([weight], weight.shape, bits)


def dequantised(packed: Quantised, bits: int) -> Float:
    """The float32 values ``[rows, columns]`` that a quantised weight stands for."""
    values = packed.values
    if bits == 4:
        values = np.stack([values & 15, values >> 4], -1).reshape(values.shape[0], -1)
    zeros: Any = np.float32(128)
    if packed.zeros is not None:
        unpacked = np.stack([packed.zeros & 15, packed.zeros >> 4], -1).reshape(values.shape[0], -1)
        zeros = np.repeat(unpacked[:, : packed.scales.shape[1]], BLOCK, 1).astype(np.float32)
    result: Float = (values.astype(np.float32) - zeros) * np.repeat(packed.scales, BLOCK, 1)
    return result
