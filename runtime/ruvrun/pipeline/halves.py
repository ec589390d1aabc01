"""Activations that cross a link as float16, where the manifest says so: half the bytes, and not the same numbers.

A cut tensor with a ``wire`` type is rounded by the stage that makes it, to nearest and even, and widened by the stage
that reads it; one that is only passed on travels as it came. So a value is off by half a unit in its last place, by a
2048th of it at most, whatever else is in the step: a sequence in company gets what it gets alone.

Float16 ends at 65504, and some models have activations far beyond that, in a few channels of the first tokens. Such a
value is never clipped or made infinite. A build that finds one in its sample does not use float16 (``over_link``). A
stage that meets one later, of a text unlike the sample, sends that token's row as it is: the tensor then travels in its
own type, all other rows rounded as ever. So the one sequence is none the worse, those in its company get what they get
without it, and that step takes the link as long as it would without rounding. What is infinite or no number already
stays that.
"""

from __future__ import annotations

import numpy as np

from ruvrun.elements import Array
from ruvrun.errors import IntegrityError
from ruvrun.manifest import Tensor

LARGEST = 65504
OVERFLOW = "link-overflow"


def narrowed(tensor: Tensor, array: Array) -> Array:
    """``array``, whose first axis is tokens, as it travels: in ``tensor.wire``, or in ``tensor.dtype`` where a row has
    a value that is too large for that; all other rows are rounded in either.
    """
    if not tensor.wire:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        half: Array = array.astype(tensor.wire)
    if not np.isinf(half).any():
        return half
    beyond = (np.isinf(half) & np.isfinite(array)).any(axis=tuple(range(1, array.ndim)))
    if not beyond.any():
        return half
    wide: Array = half.astype(tensor.dtype)
    wide[beyond] = array[beyond]
    return wide


def is_wide(tensor: Tensor, array: Array) -> bool:
    """Whether ``array`` came in its own type, as it must where a value is beyond float16, and there only."""
    if not tensor.wire or array.dtype != np.dtype(tensor.dtype):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((np.isinf(array.astype(tensor.wire)) & np.isfinite(array)).any())


def widened(tensor: Tensor, array: Array) -> Array:
    """What came over a link, in the type that it is computed with."""
    return array.astype(tensor.dtype, copy=False) if tensor.wire else array


def over_link(tensor: Tensor, array: Array) -> Array:
    """What the reader of ``tensor`` gets where its maker has ``array``, of which a sample shall fit the link.

    Raises:
        IntegrityError: ``link-overflow``: a finite value is larger than float16 can hold.
    """
    sent = narrowed(tensor, array)
    if tensor.wire and sent.dtype != np.dtype(tensor.wire):
        raise IntegrityError(
            OVERFLOW,
            f"{tensor.name} has a value of magnitude {np.abs(array[np.isfinite(array)]).max():.6g}, "
            f"and float16 on a link holds at most {LARGEST}",
            hint="build with --link-type f32",
        )
    return widened(tensor, sent)
