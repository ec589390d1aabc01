"""A matrix of floats as levels: integers of 4 or 8 bits, in blocks of 32 that each have a scale.

Four bits are asymmetric with a uint8-packed zero point per block (float zero points take a kernel that is two
orders of magnitude slower); eight bits are symmetric around 128. A block's scale is fitted by least squares
after rounding, over a few ranges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ruvcompile.matrices import Floats

BLOCK = 32
FITTED_RANGES = (1.0, 0.9)
# Weights that are worked on at once: some twenty passes over them, in a core's own cache three times as fast.
AT_ONCE = 128 * 1024

Bytes = npt.NDArray[Any]


@dataclass(frozen=True)
class Quantised:
    """One weight ``[rows, columns]`` in blocks of 32 along its columns.

    ``values`` ``[rows, columns * bits / 8]``, low nibble first; ``scales`` ``[rows, columns / 32]``;
    ``zeros`` ``[rows, ceil(columns / 32 * bits / 8)]`` or None where it is the middle of the range.
    """

    values: Bytes
    scales: Floats
    zeros: Bytes | None


def quantise_rows(parts: Iterable[Floats], shape: tuple[int, ...], bits: int) -> Quantised:
    """Quantise a matrix ``[rows, columns]``, columns a multiple of 32, to 4 or 8 bits. It comes a few rows at a time
    (``matrices.row_blocks``), together of ``shape``.
    """
    rows, columns = shape
    blocks = columns // BLOCK
    values = np.empty((rows, columns * bits // 8), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    zeros = np.empty((rows, (blocks + 1) // 2), np.uint8) if bits == 4 else None
    step, at = max(1, AT_ONCE // columns), 0
    for part in parts:
        for start in range(0, len(part), step):
            some = np.ascontiguousarray(part[start : start + step], np.float32).reshape(-1, BLOCK)
            here = slice(at, at + some.size // columns)
            levels, scale, zero = _fit_asymmetric(some) if bits == 4 else _fit_symmetric(some)
            scales[here] = scale.reshape(-1, blocks)
            if zeros is not None:
                packed = levels.reshape(-1, columns // 2, 2)
                np.bitwise_or(packed[..., 0], packed[..., 1] << 4, out=values[here])
                zeros[here] = _pack_zeros(zero.reshape(-1, blocks))
            else:
                values[here] = levels.reshape(-1, columns)
            at = here.stop
    return Quantised(values, scales, zeros)


def _fit_symmetric(blocks: Floats) -> tuple[Bytes, Floats, Bytes]:
    """Levels ``[n, 32]`` around 128 and scales ``[n]`` of blocks ``[n, 32]``; zero points are all the same."""
    scale = np.abs(blocks).max(1) / np.float32(127)
    levels = np.rint(blocks / _divisor(scale)[:, None]) + np.float32(128)
    return levels.astype(np.uint8), scale, np.empty(0, np.uint8)


def _fit_asymmetric(blocks: Floats) -> tuple[Bytes, Floats, Bytes]:
    """Levels ``[n, 32]`` (0 to 15), scales ``[n]`` and zero points ``[n]``: the least squared error of a few ranges."""
    low, high = np.minimum(blocks.min(1), 0), np.maximum(blocks.max(1), 0)
    best: tuple[Floats, Floats, Floats] | None = None
    least: Floats | None = None
    for share in FITTED_RANGES:
        step = _divisor((high - low) * np.float32(share / 15))
        zero = np.clip(np.rint(-low * np.float32(share) / step), 0, 15)
        centred = np.clip(np.rint(blocks / step[:, None]) + zero[:, None], 0, 15) - zero[:, None]
        # With levels L fixed, the best scale is <w, L> / <L, L>, and its error |w|^2 - <w, L>^2 / <L, L>.
        power = np.einsum("ij,ij->i", centred, centred)
        along = np.einsum("ij,ij->i", blocks, centred)
        gain = along * along / _divisor(power)
        candidate = (along / _divisor(power), zero, centred)
        if best is None or least is None:
            best, least = candidate, gain
            continue
        better = gain > least
        least = np.where(better, gain, least)
        best = (
            np.where(better, candidate[0], best[0]),
            np.where(better, candidate[1], best[1]),
            np.where(better[:, None], candidate[2], best[2]),
        )
    assert best is not None
    scale, zero, centred = best
    return (centred + zero[:, None]).astype(np.uint8), scale.astype(np.float32), zero.astype(np.uint8)


def _divisor(value: Floats) -> Floats:
    """``value`` with zeros replaced by one, so that an all-zero block divides harmlessly."""
    return np.where(value == 0, np.float32(1), value)


def _pack_zeros(zeros: Bytes) -> Bytes:
    if zeros.shape[1] % 2:
        zeros = np.concatenate([zeros, np.zeros((zeros.shape[0], 1), np.uint8)], 1)
    packed: Bytes = zeros[:, 0::2] | zeros[:, 1::2] << 4
    return packed
