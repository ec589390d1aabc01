"""The golden check: before a stage joins, it repeats a short run that the build has done, and compares.

It finds what hashes cannot: a kernel that computes something else here, weights packed wrongly, a back end of another
version. It is also the warm-up, so that the first request does not pay for it. Of an output that is left to chance
(``like.`` in the file) the values are not compared, only type and rank.

The bound is that of the largest value. Of a decoder each token has its own, as much smaller as its largest value is:
what the first token of a prompt carries may be a hundred times larger than all that follows, and beside that no fault
of a layer would be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from ruvrun.bundle import StageSpec
from ruvrun.elements import STRING, Array, Value, element_of, is_float, largest_difference, values_of
from ruvrun.errors import IntegrityError
from ruvrun.executors import DecoderExecutor, GraphExecutor, Span
from ruvrun.npz import read_npz

_IN, _OUT, _LIKE = "in.", "out.", "like."
_LEAST = 1e-6


def check_golden(directory: Path, spec: StageSpec, executor: DecoderExecutor | GraphExecutor) -> float:
    """Run the golden check of the bundle in ``directory``; returns the largest absolute difference.

    A decoder's check is one chunk at position 0 of slot 0, and is left out where the context is shorter than that.

    Raises:
        IntegrityError: an output is missing, or differs by more than the bound.
    """
    if spec.golden is None:
        return 0.0
    ports = {f"{kind}{port.name}" for kind in (_IN, _OUT, _LIKE) for port in (*spec.inputs, *spec.outputs)}
    stored = read_npz(directory / spec.golden.file, ports)
    inputs: dict[str, Value] = _named(stored, _IN)
    if spec.kind == "decoder":
        decoder = cast(DecoderExecutor, executor)
        tokens = min(len(array) for array in inputs.values())
        if tokens > decoder.context:
            return 0.0
        outputs: Mapping[str, Value] = decoder.step([Span(0, 0, tokens, 1)], inputs)
    else:
        left_out = {port.name: None for port in spec.inputs}
        outputs = cast(GraphExecutor, executor).run(left_out | inputs)
    types = {port.name: element_of(port.dtype) for port in spec.outputs}
    largest, whole = 0.0, largest_of(spec, _named(stored, _OUT))
    for name, wanted in _named(stored, _OUT).items():
        dtype, found = types.get(name) or str(wanted.dtype), outputs.get(name)
        pieces = [(name, wanted, found, spec.golden.bound)]
        if spec.kind == "decoder":
            _same_kind(name, wanted, found, True)
            pieces = [
                (f"{name} of token {token}", one, cast(Array, found)[token], spec.golden.bound * size_of(one, whole))
                for token, one in enumerate(wanted)
            ]
        for what, one, other, bound in pieces:
            largest = max(largest, _difference(what, dtype, one, other, bound))
    for name, wanted in _named(stored, _LIKE).items():
        _same_kind(name, wanted, outputs.get(name), False)
    return largest


def largest_of(spec: StageSpec, outputs: Mapping[str, Value]) -> float:
    """The largest finite absolute value among the floats of a stage's ``outputs``, and never 0."""
    largest = _LEAST
    for port in spec.outputs:
        dtype, value = element_of(port.dtype), outputs.get(port.name)
        if dtype == STRING or not is_float(dtype):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, np.ndarray):
                largest = max(largest, _largest(each, dtype))
    return largest


def size_of(token: Array, whole: float) -> float:
    """What a decoder stage gives for a token, as a share of the largest value of all; never 0."""
    return max(_LEAST, _largest(token, str(token.dtype))) / whole


def _largest(array: Array, dtype: str) -> float:
    values = np.abs(values_of(array, dtype))
    return float(values.max(initial=0.0, where=np.isfinite(values)))


def _named(stored: Mapping[str, Value], kind: str) -> dict[str, Value]:
    return {name.removeprefix(kind): value for name, value in stored.items() if name.startswith(kind)}


def _difference(name: str, dtype: str, wanted: Value, found: Value, bound: float) -> float:
    """The largest difference of two values of elements of type ``dtype``, once it is sure that it is allowed."""
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            raise _mismatch(f"{name} should be a sequence of {len(wanted)} tensors")
        pairs = [*zip(wanted, found, strict=True)]
        return max((_difference(f"{name}[{n}]", dtype, *pair, bound) for n, pair in enumerate(pairs)), default=0.0)
    _same_kind(name, wanted, found, True)
    if dtype == STRING:
        if (wanted != found).any():
            raise _mismatch(f"{name} holds other texts")
        return 0.0
    largest = largest_difference(wanted, found, dtype)
    bound = bound if is_float(dtype) else 0.0
    if not largest <= bound:  # NaN is no agreement
        raise _mismatch(f"{name} differs by {largest:.3g}, the bound is {bound:.3g}")
    return largest


def _same_kind(name: str, wanted: Value, found: Value, sizes: bool) -> None:
    """Refuse another type or shape; what is left to chance may be of another size, too."""
    fits = isinstance(found, np.ndarray) and found.dtype == wanted.dtype and found.ndim == wanted.ndim
    if not fits or (sizes and found.shape != wanted.shape):
        seen = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else "no tensor"
        raise _mismatch(f"{name} should be {wanted.dtype} {list(wanted.shape)}, came: {seen}")


def _mismatch(what: str) -> IntegrityError:
    return IntegrityError(
        "golden-mismatch",
        "this machine does not compute what the build machine computed",
        context=[what],
        hint="install the back end's version that the bundle was built with, or build for this target",
    )
