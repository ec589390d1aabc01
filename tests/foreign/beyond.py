"""Casts of numbers that the wanted type does not hold: what comes out is what the machine's instructions make of it.

ONNX leaves a conversion to integers out of range undefined. What the package wants is what numpy gave where it was
generated, and neither numpy nor ONNX Runtime gives the same on every kind of CPU.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.foreign.cases import Case


def is_beyond(case: Case) -> bool:
    """Whether ``case`` is a cast to integers of which some number is out of their range."""
    if case.model.graph.node[-1].op_type not in ("Cast", "CastLike"):
        return False
    given, wanted = next(iter(case.inputs.values())), next(iter(case.wanted.values()))
    if not all(isinstance(each, np.ndarray) and each.dtype != object for each in (given, wanted)):
        return False
    try:
        held = ml_dtypes.iinfo(wanted.dtype)
    except ValueError:
        return False  # not integers
    whole = np.trunc(given.astype(np.float64))
    return not bool(np.all((whole >= int(held.min)) & (whole <= int(held.max))))
