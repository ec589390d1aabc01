"""Activations that cross a link as float16, where the manifest says so: half the bytes, and not the same numbers.

A cut tensor with a ``wire`` type is rounded by the stage that makes it, to nearest and even, and widened by the stage
that reads it; one that is only passed on travels as it came. So a value is off by half a unit in its last place, by a
2048th of it at most, whatever else is in the step: a sequence in company gets what it gets alone.

Float16 ends at 65504, and some models have activations far beyond that, in a few channels of the first tokens. Such a
value is refused and never clipped or made infinite: the build finds it in its sample and does not use float16, and a
stage that meets one later fails the step, which ends the request with this as the reason. What is infinite or no number
already stays that.
"""

from __future__ import annotations

import numpy as np

from ruvrun.elements import Array
from ruvrun.errors import IntegrityError
from ruvrun.manifest import Tensor

LARGEST = 65504
OVERFLOW = "link-overflow"


def narrowed(tensor: Tensor, array: Array) -> Array:
    """``array`` as it travels.

    Raises:
        IntegrityError: ``link-overflow``: a finite value is larger than float16 can hold.
    """
    if not tensor.wire:
        return array
    with np.errstate(over="ignore"):
        half: Array = array.astype(tensor.wire)
    beyond = np.isinf(half)
    if beyond.any() and (beyond := beyond & np.isfinite(array)).any():
        raise IntegrityError(
            OVERFLOW,
            f"{tensor.name} has a value of magnitude {np.abs(array[beyond]).max():.6g}, "
            f"and float16 on a link holds at most {LARGEST}",
            hint="build with --link-type f32",
        )
    return half


def widened(tensor: Tensor, array: Array) -> Array:
    """What came over a link, in the type that it is computed with."""
    return array.astype(tensor.dtype) if tensor.wire else array


def over_link(tensor: Tensor, array: Array) -> Array:
    """What the reader of ``tensor`` gets where its maker has ``array``.

    Raises:
        IntegrityError: as ``narrowed``.
    """
    return widened(tensor, narrowed(tensor, array)) if tensor.wire else array
