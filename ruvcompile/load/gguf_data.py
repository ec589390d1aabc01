"""Reads the tensors of a GGUF file, each when it is asked for, as float32.

The block formats are those of the ``gguf`` package, whose ``quants`` decodes them; tests hold it against definitions
of their own. A row is whole blocks in every format, so some rows can be read without the rest. A whole tensor is
decoded a few rows at a time into the array that is handed out: what decoding needs besides does not grow with it.
"""

from __future__ import annotations

import math

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf.quants import dequantize

from ruvcompile.errors import InputError
from ruvcompile.load.gguf_file import GgufFile, StoredTensor
from ruvcompile.load.stored import check_numbers, data_of
from ruvcompile.matrices import Floats

_AT_ONCE = 1 << 20
"""Weights that are decoded at once."""


def read_tensor(file: GgufFile, tensor: StoredTensor) -> Floats:
    """Decode one tensor to float32, shape ``tensor.shape``. Nothing of it is kept."""
    return _read(file, tensor, 0, math.prod(tensor.shape[:-1])).reshape(tensor.shape)


def read_rows(file: GgufFile, tensor: StoredTensor, start: int, stop: int) -> Floats:
    """``read_tensor(file, tensor)[start:stop]`` of a matrix, without reading the rest."""
    return _read(file, tensor, start, stop)


def _read(file: GgufFile, tensor: StoredTensor, start: int, stop: int) -> Floats:
    columns = tensor.shape[-1]
    block, width = GGML_QUANT_SIZES[tensor.type]
    row = columns // block * width
    result = np.empty((stop - start, columns), np.float32)
    step = max(1, _AT_ONCE // columns)
    with data_of(file.path, file.stamp) as stream:
        stream.seek(tensor.offset + start * row)
        for first in range(0, stop - start, step):
            some = result[first : first + step]
            raw = np.empty((len(some), row), np.uint8)
            view = memoryview(raw.reshape(-1))  # type: ignore[arg-type]  # numpy has the buffer protocol from Python 3.12 on, for mypy
            while view:
                got = stream.readinto(view)
                if not got:
                    raise InputError(
                        "gguf-truncated",
                        f"{file.named_as} became shorter while it was read",
                        hint="leave it alone during a build",
                    )
                view = view[got:]
            with np.errstate(invalid="ignore"):
                some[:] = np.asarray(dequantize(raw, tensor.type), np.float32).reshape(some.shape)
            check_numbers(some, tensor.name, file.path)
    return result
