"""Weight files of a probe: large weights of products are drawn, and noted, instead of computed and copied.

The values are those that ``ruvrun.profile.draw`` will draw on the machine, so the files that are written here have
the hashes of those there. Nothing of the model's own large weights is read.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import onnx_ir as ir

from ruvcompile.lower.weights import ALIGNMENT, DIRECTORY, Slice, WeightStore, pieces_of, size_of
from ruvrun.profile.draw import Drawn, DrawnFile, Kind, numbers, origin

LEAST = 16 << 10
"""Bytes of a tensor below which it is kept: semantics may hang on small ones, and they are quick to copy."""

_FLOATS: dict[ir.DataType, Kind] = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.DOUBLE: "float64",
}
_BYTES = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT4, ir.DataType.INT4)
_READERS = frozenset(
    (
        *("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "Gather", "MatMulNBits", "MatMulInteger"),
        *("GatherBlockQuantized", "ConvInteger", "QLinearConv", "QLinearMatMul", "DequantizeLinear"),
    )
)
_SCALES = 2
"""Which input of a quantised product holds what its weights are multiplied by."""

_DEVIATION = 74.0
"""Standard deviation of a whole number of eight bits, any being as likely as any other."""


class DrawnStore(WeightStore):
    """Like ``WeightStore``; ``files`` tells what was drawn of those of its files of which anything was."""

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory)
        self.files: dict[str, DrawnFile] = {}
        self._seed = seed
        self._drawn: dict[str, Drawn] = {}

    def keep(self, pieces: Iterable[bytes | memoryview]) -> str:
        """As ``WeightStore.keep``; of what a back end made of the weights, what it left as it was is drawn."""
        tensors: list[Drawn] = []
        length = 0

        def watched() -> Iterator[bytes | memoryview]:
            nonlocal length
            for piece in pieces:
                size = memoryview(piece).nbytes
                if size >= LEAST and (known := self._drawn.get(hashlib.sha256(piece).hexdigest())) is not None:
                    tensors.append(msgspec.structs.replace(known, offset=length))
                length += size
                yield piece

        sha256 = super().keep(watched())
        if tensors:
            self.files[sha256] = DrawnFile(path=f"{DIRECTORY}/{sha256}.bin", salt="", bytes=length, tensor=tensors)
        return sha256

    def _write(self, values: Sequence[ir.Value]) -> dict[str, Slice]:
        partial = self.directory / f"{threading.get_ident()}.partial"
        digest = hashlib.sha256()
        spans: list[tuple[str, int, int]] = []
        tensors: list[Drawn] = []
        salt = str(values[0].name)
        with partial.open("wb") as stream:
            for value in values:
                padding = b"\0" * (-stream.tell() % ALIGNMENT)
                start, size = stream.tell() + len(padding), size_of(value)
                tensor = drawing(value, start, size)
                tensors += [tensor] if tensor is not None else []
                own = hashlib.sha256()
                stream.write(padding)
                digest.update(padding)
                for piece in self._content(value, tensor, salt):
                    stream.write(piece)
                    digest.update(piece)
                    own.update(piece)
                if tensor is not None:
                    self._drawn[own.hexdigest()] = msgspec.structs.replace(tensor, like=origin(salt, tensor))
                spans.append((str(value.name), start, stream.tell() - start))
            length = stream.tell()
        sha256 = digest.hexdigest()
        partial.replace(self.directory / f"{sha256}.bin")
        if tensors:
            self.files[sha256] = DrawnFile(path=f"{DIRECTORY}/{sha256}.bin", salt=salt, bytes=length, tensor=tensors)
        return {name: Slice(sha256, offset, size) for name, offset, size in spans}

    def _content(self, value: ir.Value, tensor: Drawn | None, salt: str) -> Iterator[bytes | memoryview]:
        if tensor is not None:
            return numbers(self._seed, salt, tensor)
        assert value.const_value is not None
        return pieces_of(value.const_value)


def drawing(value: ir.Value, offset: int, length: int) -> Drawn | None:
    """How an initializer is drawn; None for one that is kept.

    1. Small ones are kept, and those of whole numbers: shapes and indices.
    2. Drawn are those that a product or a look-up reads. Of any other a graph may depend on what it holds: the boxes
       that a detector starts from, say.
    """
    uses = value.uses()
    if length < LEAST or not uses or any(use.node.op_type not in _READERS for use in uses):
        return None
    if value.dtype in _BYTES:
        return Drawn(offset=offset, length=length, kind="bytes")
    kind, first = _FLOATS.get(value.dtype) if value.dtype is not None else None, next(iter(uses))
    if kind is None:
        return None
    return Drawn(offset=offset, length=length, kind=kind, shift=_shift(value, first.node, first.idx))


def _shift(value: ir.Value, reader: ir.Node, index: int) -> int:
    """How small the numbers are, so that what comes out of a product is about as large as what goes in."""
    shape = [size for size in value.shape or () if isinstance(size, int)] or [1]
    deviation = _DEVIATION
    if reader.op_type in ("MatMulNBits", "GatherBlockQuantized") and index == _SCALES:
        block = reader.attributes["block_size"].as_int() if "block_size" in reader.attributes else 32
        bits = reader.attributes["bits"].as_int() if "bits" in reader.attributes else 4
        added = _per_row(shape, reader) * block
        deviation *= 2**bits / math.sqrt(12)
    elif reader.op_type in ("Conv", "ConvTranspose"):
        added = math.prod(shape[1:]) // 2  # the half of what comes in is cut off, as a rule
    elif reader.op_type == "MatMul" and len(shape) > 1:
        added = shape[-2]
    else:
        added = shape[-1]
    return round(math.log2(deviation * math.sqrt(max(1, added))))


def _per_row(shape: Sequence[int], reader: ir.Node) -> int:
    """Blocks of a row; scales may be listed on one axis."""
    rows = reader.attributes["N"].as_int() if "N" in reader.attributes else shape[0]
    return max(1, math.prod(shape) // max(1, rows))
