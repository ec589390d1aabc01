"""What an attention mask allows, found by computing it for a few calls.

A mask is a value that positions alone decide, whatever nodes make it: truth values, or numbers that are added to the
scores. It is clear where every token sees all positions up to its own, or the last so many of them (a window).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ruvcompile.load.decoder_onnx.look import Unclear, evaluate
from ruvcompile.load.decoder_onnx.runs import probes
from ruvrun.executors import Array

# What is added to a score that must not count; half of what a float16 can hold does it.
_FORBIDDING = -3e4


def window_of(model: ir.Model, mask: ir.Value, context: int) -> int:
    """How many positions a token sees, itself the last of them; 0 for all.

    Raises:
        Unclear: the mask is neither causal nor a window.
    """
    sizes = probes(model, context)
    seen = [_allowed(evaluate(model, [mask], size)[0], size.sequence, size.total) for size in sizes]
    longest = seen[-1][-1]
    window = int(longest.sum()) if longest.sum() < sizes[-1].total else 0
    for size, allowed in zip(sizes, seen, strict=True):
        own = np.arange(size.past, size.total)[:, None]
        at = np.arange(size.total)[None, :]
        wanted = (at <= own) & ((at > own - window) if window else True)
        if not np.array_equal(allowed, wanted):
            raise Unclear("the attention mask is neither causal nor a window")
    return window


def _allowed(mask: Array, sequence: int, total: int) -> Array:
    """Truth values ``[sequence, total]``; the same for every head."""
    rows = mask.reshape(-1, *mask.shape[-2:])
    if not (rows == rows[:1]).all():
        raise Unclear("the attention mask differs from head to head")
    allowed = rows[0] if rows.dtype == np.bool_ else rows[0] > _FORBIDDING
    if rows.dtype != np.bool_ and np.any(rows[0][allowed] != 0):
        raise Unclear("the attention mask weighs positions")
    return np.broadcast_to(allowed, (sequence, total))
