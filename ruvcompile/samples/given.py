"""Arrays that the user gives for inputs: read, and brought into the type the model takes where that loses nothing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.passes.infer import spelt
from ruvcompile.samples.conventions import Port
from ruvrun.elements import Array, Value, bits_of, carrier
from ruvrun.npz import read_npz


def read_given(path: Path, names: Collection[str]) -> dict[str, Value]:
    """What ``--inputs`` names, by input.

    Raises:
        InputError: the file is missing, unreadable or no archive of arrays.
    """
    try:
        return read_npz(path, names)
    except FileNotFoundError:
        raise InputError("file-missing", f"no inputs at {path}", hint="check the path") from None
    except OSError as error:
        raise InputError("file-unreadable", f"cannot read {path}: {error}", hint="check its permissions") from None
    except ValueError as error:
        raise InputError(
            "inputs-invalid", f"{path} is no .npz file", context=[str(error)], hint="write it with numpy.savez"
        ) from None


def only_array(name: str, value: Value, path: Path | None) -> Array:
    """``value``, which must not be a sequence."""
    if isinstance(value, np.ndarray):
        return value
    what = f"{path}: {name} is a sequence, the model takes a tensor"
    raise InputError("input-type-wrong", what, hint="give an array")


def fitting(port: Port, array: Array, path: Path | None) -> Array:
    """``array`` in the type of ``port``, when that loses nothing and the shape fits."""
    name = spelt(ir.TensorType(port.dtype))
    dtype, array = carrier(name), bits_of(array, name)
    if not fits(port.shape, array.shape):
        raise InputError(
            "input-shape-wrong",
            f"{path}: {port.name} is {times(array.shape)}, the model takes {times(port.shape)}",
            hint="give an array of that shape",
        )
    if array.dtype == dtype:
        return array
    if array.dtype.kind in "iu" and dtype.kind in "iu" and port.integer and np.array_equal(array.astype(dtype), array):
        return array.astype(dtype)
    raise InputError(
        "input-type-wrong",
        f"{path}: {port.name} is {array.dtype}, the model takes {name}",
        hint=f"convert it with .astype('{dtype}')",
    )


def fits(declared: tuple[int | str, ...], actual: tuple[int, ...]) -> bool:
    """Whether a shape is one that the model declares: named dimensions take any size."""
    return len(declared) == len(actual) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(declared, actual, strict=True)
    )


def times(shape: tuple[int | str, ...]) -> str:
    """A shape as the command line has it: ``1x3x640x640``."""
    return "x".join(map(str, shape)) or "scalar"
