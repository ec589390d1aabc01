"""Reads the safetensors container: the header of one file, and then one tensor, or some rows of one, at a time.

A safetensors file is a length, so many bytes of JSON (name, type, shape and place of every tensor), and the data. The
header is a stranger's: its length is held against the file before anything is read, and every entry is checked
(a known type, sizes that give the length, a place inside the file that is no other tensor's) before anything is
made of it. What is damaged costs an error, not memory and not a wrong weight.

Data is read with ``pread`` into the array that is handed out, and widened to float32 there: no second copy, no memory
map whose pages would count as this process's, and holes of a sparse file cost nothing on disk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ruvcompile.errors import InputError
from ruvcompile.load.json_file import check_regular, parse_json_object
from ruvcompile.load.stored import Stamp, Stored, check_numbers, data_of, stamp_of
from ruvcompile.matrices import Floats

LARGEST_HEADER = 16 << 20
"""Bytes; a file of twenty thousand tensors needs three million."""
MAX_DIMS = 8
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
OTHERS = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1}
OTHERS |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
_AT_ONCE = 4 << 20


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its ``kind`` as the format calls it, ``shape``, and where its bytes begin in the file."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Shard:
    """One file: what is in it, the ``header`` as it stands there, the ``size`` of the whole in bytes, and the
    ``stamp`` that it still has when its data is read (``stored``).
    """

    path: Path
    named_as: str
    entries: Mapping[str, Entry]
    header: bytes
    size: int
    stamp: Stamp


def open_shard(path: Path, named_as: str) -> Shard:
    """Read the header of the safetensors file at ``path``.

    Args:
        path: the file; links are followed.
        named_as: how messages call it.

    Raises:
        InputError: missing, unreadable, cut off, damaged, or with a type of tensor that is not known.
    """
    check_regular(path, named_as)
    try:
        with path.open("rb") as stream:
            stamp = stamp_of(stream)
            size = stamp[0]
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                raise _truncated(named_as, "its header", size, 8 + length)
            if length > LARGEST_HEADER:
                raise _damaged(named_as, f"its header would be {length:,} bytes long")
            header = stream.read(length)
    except FileNotFoundError:
        raise InputError("shard-missing", f"there is no {named_as}", hint="copy the whole checkpoint") from None
    except OSError as error:
        raise InputError(
            "file-unreadable", f"cannot read {named_as}: {error.strerror}", hint="check the path and its permissions"
        ) from None
    said = parse_json_object(header, f"the header of {named_as}")
    said.pop("__metadata__", None)
    entries = {name: _entry(name, value, 8 + length, named_as) for name, value in said.items()}
    _check_places(list(entries.values()), size, named_as)
    return Shard(path, named_as, entries, header, size, stamp)


def stored(shard: Shard, entry: Entry) -> Stored:
    """A float tensor of ``shard``, to be read later.

    Raises:
        InputError: its type is none of float.
    """
    if entry.kind not in FLOATS:
        raise InputError(
            "tensor-type-unknown",
            f"tensor {entry.name} in {shard.named_as} is of type {entry.kind}, which is not read",
            context=[f"read are: {', '.join(sorted(FLOATS))}"],
            hint="use the checkpoint as it was before it was quantised, or a GGUF file of it",
        )
    bits = min(32, 8 * FLOATS[entry.kind])
    rows = partial(_rows, shard, entry) if len(entry.shape) == 2 else None
    return Stored(entry.name, entry.shape, bits, partial(_whole, shard, entry), rows)


def _whole(shard: Shard, entry: Entry) -> Floats:
    return _read(shard, entry, 0, math.prod(entry.shape)).reshape(entry.shape)


def _rows(shard: Shard, entry: Entry, start: int, stop: int) -> Floats:
    columns = entry.shape[1]
    return _read(shard, entry, start * columns, (stop - start) * columns).reshape(-1, columns)


def _read(shard: Shard, entry: Entry, first: int, count: int) -> Floats:
    """``count`` numbers from the ``first`` on, widened in the array that is returned, a few megabytes at a time."""
    width = FLOATS[entry.kind]
    result = np.empty(count, np.float32)
    path = shard.path
    with data_of(path, shard.stamp) as stream:
        stream.seek(entry.offset + first * width)
        for start in range(0, count, _AT_ONCE // width):
            some = result[start : start + _AT_ONCE // width]
            raw = np.empty(some.size * width, np.uint8)
            _fill(stream, raw, path)
            if entry.kind == "BF16":
                # The upper half of a float32, on a little-endian machine the second of its two words.
                words = some.view(np.uint16).reshape(-1, 2)
                words[:, 0], words[:, 1] = 0, raw.view("<u2")
            else:
                with np.errstate(over="ignore"):
                    some[:] = raw.view(f"<f{width}")
                if entry.kind == "F64" and np.isinf(some).any():
                    raise _damaged(str(path), f"tensor {entry.name} holds numbers that no float32 can hold")
            check_numbers(some, entry.name, path)
    return result


def _fill(stream: Any, raw: npt.NDArray[np.uint8], path: Path) -> None:
    view = memoryview(raw)  # type: ignore[arg-type]  # numpy has the buffer protocol from Python 3.12 on, for mypy
    while view:
        got = stream.readinto(view)
        if not got:
            raise InputError(
                "safetensors-truncated",
                f"{path} became shorter while it was read",
                hint="leave it alone during a build",
            )
        view = view[got:]


def _entry(name: str, said: Any, start: int, named_as: str) -> Entry:
    if not isinstance(said, dict) or said.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(named_as, f"what its header says of tensor {name} is not type, shape and place")
    kind, shape, place = said["dtype"], said["shape"], said["data_offsets"]
    if not isinstance(kind, str) or kind not in FLOATS | OTHERS:
        raise InputError(
            "tensor-type-unknown",
            f"tensor {name} in {named_as} is of type {kind!r}, which is not known",
            context=[f"read are: {', '.join(sorted(FLOATS))}"],
            hint="use the checkpoint as it was before it was quantised, or a GGUF file of it",
        )
    if not _counts(shape) or len(shape) > MAX_DIMS or not _counts(place) or len(place) != 2:
        raise _damaged(named_as, f"shape or place of tensor {name} are no whole numbers")
    begin, end = place
    nbytes = math.prod(shape) * (FLOATS | OTHERS)[kind]
    if end - begin != nbytes:
        raise _damaged(
            named_as, f"tensor {name} is {' x '.join(map(str, shape))} of {kind}, {nbytes} bytes, and has {end - begin}"
        )
    return Entry(name, kind, tuple(shape), start + begin, nbytes)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _check_places(entries: list[Entry], size: int, named_as: str) -> None:
    behind, before = 0, "the header"
    for entry in sorted((entry for entry in entries if entry.nbytes), key=lambda entry: entry.offset):
        if entry.offset < behind:
            raise _damaged(named_as, f"tensor {entry.name} lies over {before}")
        behind, before = entry.offset + entry.nbytes, entry.name
        if behind > size:
            raise _truncated(named_as, f"the data of tensor {entry.name}", size, behind)


def _truncated(named_as: str, what: str, size: int, wanted: int) -> InputError:
    return InputError(
        "safetensors-truncated",
        f"{named_as} is truncated: it ends within {what}",
        context=[f"it has {size:,} bytes and would need at least {wanted:,}"],
        hint="download or copy it again",
    )


def _damaged(named_as: str, what: str) -> InputError:
    return InputError("safetensors-damaged", f"{named_as} is damaged", context=[what], hint="download or copy it again")
