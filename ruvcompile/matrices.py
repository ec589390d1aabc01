"""Matrices that are too large to be in memory as floats, read a few rows at a time.

The embedding of an 8B model is 2 GB in float32, and one MLP of a 70B 2.8 GB; nothing needs more than a few megabytes
of them at once. So the weight of a checkpoint is a ``FloatTensor`` that says how to read some rows by themselves, and
whoever walks over a matrix (quantising it, multiplying with it) does so with ``row_blocks``, which also takes any other
tensor.

Rows here are those of the file: a linear weight lies there as ``[out, in]``, while the canonical form's is
``[in, out]``, so its rows in this sense are its columns (``transposed``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Floats = npt.NDArray[np.float32]
BLOCK_BYTES = 32 << 20
"""Of float32, at most, that ``row_blocks`` hands out at once; a single row may be more."""


class FloatTensor(ir.LazyTensor):
    """A lazy float32 tensor; of a matrix, the stored rows can be read by themselves.

    Args:
        read: the whole tensor; nothing keeps the result.
        shape: of the tensor.
        rows: rows ``start`` to ``stop`` as they are stored, without reading the rest; None where only the whole can
            be read.
        transposed: whether the tensor is the transpose of what is stored.
    """

    def __init__(
        self,
        read: Callable[[], Floats],
        shape: tuple[int, ...],
        *,
        name: str,
        metadata: Mapping[str, str],
        rows: Callable[[int, int], Floats] | None = None,
        transposed: bool = False,
    ) -> None:
        super().__init__(
            lambda: ir.Tensor(read(), name=name),
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape(shape),
            name=name,
            metadata_props=dict(metadata),
        )
        self.rows = rows if len(shape) == 2 else None
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
    read = read_rows(tensor, transposed=transposed)
    for start in range(0, rows, step):
        yield read(start, min(rows, start + step))


def read_rows(tensor: ir.TensorProtocol, *, transposed: bool) -> Callable[[int, int], Floats]:
    """What reads rows ``start`` to ``stop`` of a matrix; where it has to, it reads all of it now, and keeps it."""
    if isinstance(tensor, FloatTensor) and tensor.rows is not None and tensor.transposed == transposed:
        return tensor.rows
    whole = tensor.numpy().T if transposed else tensor.numpy()
    return lambda start, stop: whole[start:stop]
