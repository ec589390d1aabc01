"""Reads the header of the GGUF container: metadata, and the table of tensors.

A GGUF file is a header (magic, version, counts), key/value metadata, a table of tensors (name, sizes, type,
offset) and then the tensors' data, aligned. The header is walked here, over a memory map, through ``gguf_bytes``,
which trusts no length. (The ``gguf`` package's reader makes several arrays per metadata element, 2 s and 160 MB
for a vocabulary of 49,152, and trusts the lengths.) No tensor is read here; that is ``gguf_data``.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ruvcompile.errors import InputError
from ruvcompile.load.gguf_bytes import GgufBytes
from ruvcompile.load.stored import Stamp, stamp_of

Type = GGMLQuantizationType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
MAX_NESTING = 4

# Bits per weight as a person counts them: the quantised value, without its share of the block's scale.
BITS: dict[Type, int] = {
    Type.F32: 32, Type.F16: 16, Type.BF16: 16,
    Type.Q4_0: 4, Type.Q4_1: 4, Type.Q5_0: 5, Type.Q5_1: 5, Type.Q8_0: 8,
    Type.Q2_K: 2, Type.Q3_K: 3, Type.Q4_K: 4, Type.Q5_K: 5, Type.Q6_K: 6,
    Type.IQ1_S: 1, Type.IQ1_M: 1, Type.IQ2_XXS: 2, Type.IQ2_XS: 2, Type.IQ2_S: 2, Type.IQ3_XXS: 3, Type.IQ3_S: 3,
    Type.IQ4_NL: 4, Type.IQ4_XS: 4, Type.TQ1_0: 2, Type.TQ2_0: 2, Type.MXFP4: 4,
}  # fmt: skip

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the file. ``shape`` is in numpy's order (a linear weight is ``[out, in]``); ``offset`` in bytes."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def bits(self) -> int:
        """Bits per weight, as in the name of the type: 4 for Q4_1."""
        return BITS[self.type]


@dataclass(frozen=True)
class GgufFile:
    """The header of one file; ``named_as`` is how the user called it, for messages; ``stamp`` see ``stored``."""

    path: Path
    named_as: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    stamp: Stamp | None = None

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """The string under ``key``; an ``InputError`` when it is missing or no string."""
        value = self._required(key)
        return value if isinstance(value, str) else self._wrong(key, "a string", value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false, or a number that means one of them; an ``InputError`` for anything else."""
        value = self.metadata.get(key, default)
        return bool(value) if value in (True, False) else bool(self._wrong(key, "true or false", value))

    def count(self, key: str, default: int | None = None) -> int:
        """The positive whole number under ``key``; an ``InputError`` when there is none."""
        value = self.metadata.get(key, default) if default is not None else self._required(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # one number per layer, all the same
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        return int(self._wrong(key, "a positive whole number", value))

    def number(self, key: str, default: float | None = None) -> float:
        """The positive number under ``key``; an ``InputError`` when there is none.

        What is stored as float32 was written in decimal by whoever made the model: 9.99999974e-06 was 1e-05.
        """
        value = self.metadata.get(key, default) if default is not None else self._required(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
            return float(str(np.float32(value))) if float(np.float32(value)) == value else float(value)
        return float(self._wrong(key, "a positive number", value))

    def _required(self, key: str) -> Any:
        if key in self.metadata:
            return self.metadata[key]
        raise InputError(
            "gguf-key-missing",
            f"{self.named_as} has no metadata key {key!r}",
            hint="convert the checkpoint again with a current converter",
        )

    def _wrong(self, key: str, wanted: str, value: Any) -> Any:
        shown = repr(value)
        raise InputError(
            "gguf-key-wrong",
            f"metadata key {key!r} of {self.named_as} is not {wanted}",
            context=[f"it is {shown if len(shown) < 80 else shown[:77] + '...'}"],
            hint="convert the checkpoint again with a current converter",
        )


def open_gguf(path: Path, named_as: str) -> GgufFile:
    """Read the header of the GGUF file at ``path``.

    Raises:
        InputError: missing or unreadable, not a GGUF, of another version or byte order, truncated, damaged,
            in several parts, or with a tensor type that is not known.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(len(MAGIC))
            if start != MAGIC:
                raise InputError(
                    "gguf-not",
                    f"{named_as} is not a GGUF file",
                    context=[f"it begins with {start!r}" if start else "it is empty"],
                    hint="give a .gguf or an .onnx file; a download may have saved an error page instead",
                )
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return replace(_Walk(data, path, named_as).file(), stamp=stamp_of(stream))
    except FileNotFoundError:
        raise InputError("file-missing", f"no model file at {named_as}", hint="check the path") from None
    except IsADirectoryError:
        raise InputError("gguf-not", f"{named_as} is a directory", hint="give the .gguf file in it") from None
    except OSError as error:
        raise InputError(
            "file-unreadable", f"cannot read {named_as}: {error.strerror}", hint="check its permissions"
        ) from None


class _Walk:
    """One pass over a header, from behind its magic on."""

    def __init__(self, data: mmap.mmap, path: Path, named_as: str) -> None:
        self.path = path
        self.named_as = named_as
        self.bytes = GgufBytes(data, named_as, at=len(MAGIC))

    def file(self) -> GgufFile:
        (version,) = self.bytes.numbers("I", 1, "the version")
        if version not in VERSIONS:
            swapped = version in (2 << 24, 3 << 24)
            raise InputError(
                "gguf-version",
                f"{self.named_as} is " + ("big-endian" if swapped else f"GGUF version {version}"),
                context=[f"this reads little-endian files of version {' and '.join(map(str, VERSIONS))}"],
                hint="convert it again with a current converter",
            )
        tensors, pairs = self.bytes.numbers("Q", 2, "the counts")
        metadata: dict[str, Any] = {}
        for number in range(pairs):
            key = self.bytes.string(f"metadata key {number} of {pairs}")
            if key in metadata:
                raise self.bytes.damaged(f"metadata key {key!r} stands there twice")
            (kind,) = self.bytes.numbers("I", 1, f"the type of {key!r}")
            metadata[key] = self._value(kind, key, 0)
        if isinstance(metadata.get("split.count"), int) and metadata["split.count"] > 1:
            raise InputError(
                "gguf-split",
                f"{self.named_as} is one of {metadata['split.count']} parts of a model",
                hint="join them first: llama-gguf-split --merge FIRST_PART OUT.gguf",
            )
        entries = [self._entry(number, tensors) for number in range(tensors)]
        return GgufFile(self.path, self.named_as, metadata, self._place(entries, metadata))

    def _entry(self, number: int, total: int) -> StoredTensor:
        name = self.bytes.string(f"the name of tensor {number} of {total}")
        (dims,) = self.bytes.numbers("I", 1, f"tensor {name}")
        if not 1 <= dims <= MAX_DIMS:
            raise self.bytes.damaged(f"tensor {name} has {dims} dimensions")
        shape = tuple(reversed(self.bytes.numbers("Q", dims, f"tensor {name}")))
        if 0 in shape:
            raise self.bytes.damaged(f"tensor {name} is empty")
        (kind,) = self.bytes.numbers("I", 1, f"tensor {name}")
        (offset,) = self.bytes.numbers("Q", 1, f"tensor {name}")
        type_ = next((known for known in BITS if known.value == kind), None)
        if type_ is None:
            named = next((known.name for known in Type if known.value == kind), f"number {kind}")
            raise InputError(
                "gguf-quantisation-unknown",
                f"tensor {name} of {self.named_as} is of type {named}, which cannot be read",
                context=[f"readable: {', '.join(sorted(known.name for known in BITS))}"],
                hint="use a file quantised to one of those",
            )
        block, width = GGML_QUANT_SIZES[type_]
        if shape[-1] % block:
            raise self.bytes.damaged(f"rows of tensor {name} are {shape[-1]} long, not whole blocks of {block}")
        return StoredTensor(name, type_, shape, offset, math.prod(shape) // block * width)

    def _place(self, entries: list[StoredTensor], metadata: Mapping[str, Any]) -> dict[str, StoredTensor]:
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align <= 0 or align & (align - 1):
            raise self.bytes.damaged(f"its alignment {align!r} is not a power of two")
        start = -(-self.bytes.at // align) * align
        placed: dict[str, StoredTensor] = {}
        for entry in entries:
            offset = start + entry.offset
            if entry.name in placed:
                raise self.bytes.damaged(f"tensor {entry.name} stands there twice")
            if entry.offset % align:
                raise self.bytes.damaged(f"tensor {entry.name} is not aligned")
            if offset + entry.nbytes > self.bytes.size:
                raise self.bytes.truncated(f"the data of tensor {entry.name}", offset + entry.nbytes)
            placed[entry.name] = StoredTensor(entry.name, entry.type, entry.shape, offset, entry.nbytes)
        return placed

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind in _SCALARS:
            return self.bytes.numbers(_SCALARS[kind], 1, repr(key))[0]
        if kind == _STRING:
            return self.bytes.string(repr(key))
        if kind != _ARRAY or depth > MAX_NESTING:
            raise self.bytes.damaged(f"metadata key {key!r} has a value of unknown type {kind}")
        (inner,) = self.bytes.numbers("I", 1, repr(key))
        (length,) = self.bytes.numbers("Q", 1, repr(key))
        if inner in _SCALARS:
            return list(self.bytes.numbers(_SCALARS[inner], length, repr(key)))
        return [self._value(inner, key, depth + 1) for _ in range(length)]
