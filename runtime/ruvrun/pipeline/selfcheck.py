"""The golden check: before a stage joins, it repeats a short run that the build has done, and compares.

It finds what hashes cannot: a kernel that computes something else here, weights packed wrongly, a back end of another
version. It is also the warm-up, so that the first request does not pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from ruvrun.bundle import StageSpec
from ruvrun.errors import IntegrityError
from ruvrun.executors import Array, DecoderExecutor, GraphExecutor, Span

_IN, _OUT = "in.", "out."


def check_golden(directory: Path, spec: StageSpec, executor: DecoderExecutor | GraphExecutor) -> float:
    """Run the golden check of the bundle in ``directory``; returns the largest absolute difference.

    A decoder's check is one chunk at position 0 of slot 0, and is left out where the context is shorter than that.

    Raises:
        IntegrityError: an output is missing, or differs by more than the bound.
    """
    if spec.golden is None:
        return 0.0
    with np.load(directory / spec.golden.file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    inputs = {name.removeprefix(_IN): array for name, array in arrays.items() if name.startswith(_IN)}
    wanted = {name.removeprefix(_OUT): array for name, array in arrays.items() if name.startswith(_OUT)}
    if spec.kind == "decoder":
        decoder = cast(DecoderExecutor, executor)
        tokens = min(len(array) for array in inputs.values())
        if tokens > decoder.context:
            return 0.0
        outputs: Mapping[str, Array] = decoder.step([Span(0, 0, tokens, 1)], inputs)
    else:
        outputs = cast(GraphExecutor, executor).run(inputs)
    return max((_difference(name, array, outputs, spec.golden.bound) for name, array in wanted.items()), default=0.0)


def _difference(name: str, wanted: Array, outputs: Mapping[str, Array], bound: float) -> float:
    found = outputs.get(name)
    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        seen = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
        raise _mismatch(f"{name} should be {wanted.dtype} {list(wanted.shape)}, came: {seen}")
    if not wanted.size:
        return 0.0
    largest = float(np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max())
    if wanted.dtype.kind != "f":
        bound = 0.0
    if not largest <= bound:  # NaN is no agreement
        raise _mismatch(f"{name} differs by {largest:.3g}, the bound is {bound:.3g}")
    return largest


def _mismatch(what: str) -> IntegrityError:
    return IntegrityError(
        "golden-mismatch",
        "this machine does not compute what the build machine computed",
        context=[what],
        hint="install the back end's version that the bundle was built with, or build for this target",
    )
