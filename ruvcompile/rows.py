"""Matrices that are too large to be in memory as floats, read a few rows at a time.

The embedding of an 8B model is 2 GB in float32, and one MLP of a 70B 2.8 GB; nothing needs more than a few megabytes
of them at once. So what can read rows by themselves says so with a ``RowTensor``, and whoever walks over a matrix
(quantising it, multiplying with it) does so with ``row_blocks``, which also takes any other tensor.

Rows here are those of the file: a linear weight lies there as ``[out, in]``, while the canonical form's is
``[in, out]``, so its rows in this sense are its columns (``transposed``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Floats = npt.NDArray[np.float32]
BLOCK_BYTES = 32 << 20
"""Of float32, at most, that ``row_blocks`` hands out at once; a single row may be more."""


class RowTensor(ir.LazyTensor):
    """A lazy float32 matrix whose stored rows can be read by themselves.

    Args:
        read: the whole matrix as stored, ``[rows, columns]``.
        rows: ``read()[start:stop]``, without reading the rest.
        shape: as stored.
        transposed: whether the tensor is the transpose of what is stored.
    """

    def __init__(
        self,
        read: Callable[[], Floats],
        rows: Callable[[int, int], Floats],
        shape: tuple[int, int],
        *,
        name: str,
        transposed: bool,
        metadata: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            lambda: ir.Tensor(read().T if transposed else read(), name=name),
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape(shape[::-1] if transposed else shape),
            name=name,
            metadata_props=metadata,
        )
        self.rows = rows
        self.transposed = transposed


def row_blocks(tensor: ir.TensorProtocol, *, transposed: bool, block: int = BLOCK_BYTES) -> Iterator[Floats]:
    """The rows of a matrix in order, a few at a time: ``[some, columns]`` float32, together ``[rows, columns]``.

    Args:
        tensor: ``[rows, columns]``, or ``[columns, rows]`` where ``transposed``.
        transposed: see above.
        block: bytes of float32 at once.
    """
    rows, columns = (int(size) for size in tensor.shape.numpy()[:: -1 if transposed else 1])
    step = max(1, block // max(1, 4 * columns))
    if isinstance(tensor, RowTensor) and tensor.transposed == transposed:
        read = tensor.rows
    else:
        whole = tensor.numpy().T if transposed else tensor.numpy()

        def read(start: int, stop: int) -> Floats:
            return whole[start:stop]

    for start in range(0, rows, step):
        yield read(start, min(rows, start + step))
