"""Whether what a graph gave in stages is what it gave whole.

Integers, truth values and texts are equal, and floats within 1e-5 + 1e-4 |b|, NaN and infinity where the whole has
them. Sequences are compared one by one. Of what is left to chance only the kind can be the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ruvrun.elements import STRING, Array, Value, distances, element_of, is_float, values_of

_ABSOLUTE, _RELATIVE = 1e-5, 1e-4


def tensors_agree(
    staged: Mapping[str, Value],
    whole: Mapping[str, Value],
    types: Mapping[str, str] | None = None,
    random: Collection[str] = (),
) -> tuple[bool, float]:
    """Whether outputs are equal (see the module's text), and the largest absolute difference.

    Args:
        staged: by name.
        whole: by name; the names that count.
        types: element types by name, as a manifest has them; the arrays' own where there is none.
        random: names of outputs that are left to chance.
    """
    same, largest = True, 0.0
    for name, wanted in whole.items():
        pairs = [*_pairs(staged[name], wanted)]
        for found, value in pairs:
            if not _alike(found, value, sizes=name not in random):
                return False, float("inf")
            if value is None or name in random:
                continue
            one, apart = _agree(found, value, element_of((types or {}).get(name) or _name(value)))
            same, largest = same and one, max(largest, apart)
    return same, largest


def _pairs(found: Value, wanted: Value) -> list[tuple[Value, Value]]:
    if not isinstance(wanted, list) or not isinstance(found, list) or len(found) != len(wanted):
        return [(found, wanted)]
    return [*zip(found, wanted, strict=True)]


def _alike(found: Value, wanted: Value, sizes: bool) -> bool:
    if not isinstance(wanted, np.ndarray) or not isinstance(found, np.ndarray):
        return type(found) is type(wanted) and (found is None or found == wanted)
    return found.dtype == wanted.dtype and (found.shape == wanted.shape if sizes else found.ndim == wanted.ndim)


def _agree(found: Value, wanted: Value, dtype: str) -> tuple[bool, float]:
    if not isinstance(wanted, np.ndarray):
        return True, 0.0
    if dtype == STRING or not is_float(dtype):
        apart = (found != wanted).astype(np.float64)
        return not apart.any(), float(apart.max(initial=0.0))
    ours, theirs = values_of(found, dtype), values_of(wanted, dtype)
    difference = distances(ours, theirs)
    with np.errstate(invalid="ignore"):
        close = (difference == 0) | (difference <= _ABSOLUTE + _RELATIVE * np.abs(theirs))
    # An infinity allows every distance from it.
    close &= np.isfinite(difference)
    return bool(close.all()), float(difference.max(initial=0.0))


def _name(array: Array) -> str:
    return STRING if array.dtype == object else str(array.dtype.name)
