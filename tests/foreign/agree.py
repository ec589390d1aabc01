"""Whether outputs are what a case wants, by the rules of onnx's own runner of these cases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.foreign.cases import Case, Value

_BFLOAT16 = 2.0**-6
"""Relative, two units in the last place; where a case asks for less."""


def differs(case: Case, found: Mapping[str, Value]) -> str:
    """What is not as ``case`` wants it, as a sentence; empty when all is."""
    return different(found, case.wanted, case.rtol, case.atol)


def different(found: Mapping[str, Value], wanted: Mapping[str, Value], rtol: float, atol: float) -> str:
    """What of ``found`` is not as ``wanted``; empty when all is."""
    if list(found) != list(wanted):
        return f"outputs {list(found)}"
    for name, value in wanted.items():
        if why := _different(found[name], value, rtol, atol):
            return f"{name}: {why}"
    return ""


def _different(found: Value, wanted: Value, rtol: float, atol: float) -> str:
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return f"no sequence of {len(wanted)}"
        return next((why for pair in zip(found, wanted, strict=True) if (why := _different(*pair, rtol, atol))), "")
    if wanted is None or found is None:
        return "" if wanted is found else f"{found} is not {wanted}"
    if not isinstance(found, np.ndarray) or found.shape != wanted.shape:
        return f"shape {getattr(found, 'shape', None)}, not {wanted.shape}"
    if wanted.dtype == object:
        return "" if np.array_equal(found, wanted) else f"{found} is not {wanted}"
    if found.dtype != wanted.dtype:
        return f"{found.dtype}, not {wanted.dtype}"
    if found.dtype.name == "bfloat16":
        rtol = max(rtol, _BFLOAT16)
    if found.dtype.isbuiltin != 1:  # of ml_dtypes, which isclose does not take
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    if np.allclose(found, wanted, rtol, atol, equal_nan=True):
        return ""
    return f"apart by {np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()}"
