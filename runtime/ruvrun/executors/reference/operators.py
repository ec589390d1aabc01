"""Operators of the canonical form in float64, where ``onnx.reference`` has none, or one of another kind.

Its ``Attention`` and ``RMSNormalization`` go by way of float32, its ``MatMul`` and ``Gather`` would want a large float
matrix widened whole, its ``Gelu`` wants types to be inferred, and of ``com.microsoft`` it knows nothing. Here a large
weight is widened a few rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from ruvrun.elements import Array

MS_DOMAIN = "com.microsoft"
AT_ONCE = 1 << 20
"""Weights that are widened at a time."""


class MatMulNBits(OpRun):
    """``x [..., K]`` times the transpose of a quantised matrix ``[N, K]``."""

    op_domain = MS_DOMAIN

    def _run(
        self,
        x: Array,
        values: Array,
        scales: Array,
        zeros: Array | None = None,
        order: Array | None = None,
        bias: Array | None = None,
        **sizes: int,
    ) -> tuple[Array]:
        assert order is None, "the canonical form has none"
        rows, bits, block = sizes["N"], sizes["bits"], sizes["block_size"]
        values, scales = values.reshape(rows, -1), scales.reshape(rows, -1)
        zeros = zeros.reshape(rows, -1) if zeros is not None else None

        def weights(part: slice) -> Array:
            some = zeros[part] if zeros is not None else None
            return widened(values[part], scales[part], some, bits, block)[:, : sizes["K"]]

        made = _product(x, (weights(part) for part in _parts(rows, sizes["K"])), rows)
        return (made if bias is None else made + bias,)


class GatherBlockQuantized(OpRun):
    """Rows of a quantised table ``[rows, columns]``."""

    op_domain = MS_DOMAIN

    def _run(self, values: Array, ids: Array, scales: Array, zeros: Array | None = None, **sizes: int) -> tuple[Array]:
        assert sizes.get("gather_axis", 0) == 0, "an embedding is"
        bits = sizes.get("bits", 4)
        asked = zeros[ids] if zeros is not None else None
        return (widened(values[ids], scales[ids], asked, bits, sizes["block_size"]),)


class MatMul(OpRun):
    """A product in float64; of a matrix some columns at a time."""

    def _run(self, x: Array, matrix: Array) -> tuple[Array]:
        if matrix.ndim != 2:
            return (np.matmul(x.astype(np.float64), matrix.astype(np.float64)),)
        inner, columns = matrix.shape
        parts = (matrix[:, part].T.astype(np.float64) for part in _parts(columns, inner))
        return (_product(x, parts, columns),)


class Gather(OpRun):
    """Rows of a table, widened."""

    def _run(self, table: Array, ids: Array, axis: int) -> tuple[Array]:
        return (wide(np.take(table, ids, axis)),)


class Gelu(OpRun):
    """Exact, or by its usual approximation."""

    def _run(self, x: Array, approximate: str) -> tuple[Array]:
        if approximate == "tanh":
            return (x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
        return (x / 2 * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))),)


class RMSNormalization(OpRun):
    """Over the last axis."""

    def _run(self, x: Array, scale: Array, axis: int, epsilon: float, stash_type: int) -> tuple[Array]:
        del stash_type
        assert axis in (-1, x.ndim - 1), "the canonical form has no other"
        wide = x.astype(np.float64)
        return (wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + epsilon) * scale,)


class Attention(OpRun):
    """Causal attention of one sequence, with its past in front."""

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        **attributes: Any,
    ) -> tuple[Array, Array, Array]:
        assert mask is None, "the canonical form has none"
        heads, held = attributes["q_num_heads"], attributes["kv_num_heads"]
        asked = _by_head(query, heads)
        keys, values = _behind(past_key, _by_head(key, held)), _behind(past_value, _by_head(value, held))
        count, size, length = asked.shape[1], asked.shape[2], keys.shape[1]
        scale = attributes.get("scale") or 1 / math.sqrt(size)
        cap = attributes.get("softcap") or 0.0
        at, seen = np.arange(length - count, length)[:, None], np.arange(length)[None]
        hidden = seen > at
        if (window := attributes.get("left_window_size", -1)) is not None and window >= 0:
            hidden |= seen < at - window
        made = np.empty((heads, count, values.shape[2]))
        for head in range(heads):
            here = head * held // heads
            scores = asked[head] @ keys[here].T * scale
            if cap:
                scores = cap * np.tanh(scores / cap)
            scores[hidden] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            made[head] = scores @ values[here] / scores.sum(-1, keepdims=True)
        return made.transpose(1, 0, 2).reshape(1, count, -1), keys[None], values[None]


OPERATORS: tuple[type[OpRun], ...] = (
    MatMulNBits,
    GatherBlockQuantized,
    MatMul,
    Gather,
    Gelu,
    RMSNormalization,
    Attention,
)
"""What is computed here and not as in ``onnx.reference``."""


def wide(array: Array) -> Array:
    """``array``, in float64 if it is of float32."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


def widened(values: Array, scales: Array, zeros: Array | None, bits: int, block: int) -> Array:
    """The float64 numbers ``[..., columns]`` that quantised ones stand for.

    Args:
        values: ``[..., columns * bits / 8]``, the lowest bits first.
        scales: ``[..., columns / block]``.
        zeros: as many, packed like the values or floats; None for the middle of the range.
    """
    levels = _unpacked(values, bits).astype(np.float64)
    blocks = levels.reshape(*levels.shape[:-1], scales.shape[-1], block)
    middle: Any = 2.0 ** (bits - 1)
    if zeros is not None:
        whole = _unpacked(zeros, bits) if zeros.dtype == np.uint8 else zeros
        middle = whole[..., : scales.shape[-1], None].astype(np.float64)
    blocks -= middle
    blocks *= scales[..., None]
    return levels


def _unpacked(packed: Array, bits: int) -> Array:
    """Numbers of ``bits`` bits, one a byte."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    found: Array = (packed[..., None] >> shifts & np.uint8(2**bits - 1)).reshape(*packed.shape[:-1], -1)
    return found


def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, AT_ONCE // columns)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _product(x: Array, parts: Iterator[Array], rows: int) -> Array:
    """``x`` times the transpose of a matrix that comes some rows at a time."""
    flat, at = x.reshape(-1, x.shape[-1]).astype(np.float64), 0
    made = np.empty((len(flat), rows))
    for part in parts:
        made[:, at : at + len(part)] = flat @ part.T
        at += len(part)
    return made.reshape(*x.shape[:-1], rows)


def _by_head(packed: Array, heads: int) -> Array:
    """``[1, count, heads * size]`` as ``[heads, count, size]``."""
    assert packed.ndim == 3, "the canonical form packs heads"
    assert len(packed) == 1, "sequences are computed one by one"
    return packed.reshape(packed.shape[1], heads, -1).transpose(1, 0, 2).astype(np.float64)


def _behind(past: Array | None, new: Array) -> Array:
    return new if past is None else np.concatenate([past[0].astype(np.float64), new], 1)
