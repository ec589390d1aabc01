"""Named values in an ``.npz`` file: what ``numpy.savez`` writes of arrays, and names for what is no array.

============================  ==================================================================
a tensor ``x``                the array ``x``; of a type that numpy lacks, what carries it (``elements``)
strings                       an array of ``str`` (``<U``), never pickled objects
a sequence ``x``              the arrays ``x[0]``, ``x[1]``, ...; an empty one is an empty array ``x[]``
an optional that is absent    nothing
============================  ==================================================================

A name with brackets that a graph really uses is just a name: whoever reads says which names it expects.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from ruvrun.elements import Array, Value

_ITEM = re.compile(r"(.*)\[(\d*)\]\Z", re.DOTALL)


def write_npz(stream: IO[bytes], values: Mapping[str, Value]) -> None:
    """Write ``values`` as an ``.npz`` file; the same values give the same bytes.

    Raises:
        TypeError: a value that is neither an array nor a sequence of them (a map).
    """
    # Not numpy.savez: it cannot write an array that is called `file`.
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in _flat(values).items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_npz(path: Path, names: Collection[str]) -> dict[str, Value]:
    """The values in the ``.npz`` file at ``path``.

    Args:
        path: the file.
        names: those that are expected; a name in brackets is part of a sequence unless it is one of them.

    Raises:
        OSError, ValueError: it cannot be read, or is no such file.
    """
    try:
        with path.open("rb") as file:
            start = file.read(6)
        if not zipfile.is_zipfile(path):
            single = start == b"\x93NUMPY"
            raise ValueError("it holds one array and no name" if single else "it is no zip archive, or is cut off")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: _text(stored[name]) for name in stored.files}
    except (EOFError, zipfile.BadZipFile, KeyError, AttributeError, TypeError) as error:
        raise ValueError(str(error) or type(error).__name__) from None
    found: dict[str, Value] = {}
    items: dict[str, dict[int, Array]] = {}
    for name, array in arrays.items():
        match = None if name in names else _ITEM.fullmatch(name)
        if match is None:
            found[name] = array
        else:
            sequence = items.setdefault(match[1], {})
            if match[2]:
                sequence[int(match[2])] = array
    for name, sequence in items.items():
        if sorted(sequence) != list(range(len(sequence))):
            raise ValueError(f"the sequence {name!r} has gaps")
        found[name] = [sequence[number] for number in range(len(sequence))]
    return found


def _flat(values: Mapping[str, Value]) -> dict[str, Array]:
    flat: dict[str, Array] = {}
    for name, value in values.items():
        if isinstance(value, list):
            flat.update((f"{name}[{number}]", _plain(each)) for number, each in enumerate(value))
            if not value:
                flat[f"{name}[]"] = np.empty(0, np.float32)
        elif value is not None:
            flat[name] = _plain(value)
    return flat


def _plain(value: Value) -> Array:
    if isinstance(value, Mapping | list) or value is None:
        raise TypeError(f"a {type(value).__name__} has no place in an npz file")
    array: Array = np.asarray(value)
    return array.astype(str) if array.dtype == object else array


def _text(array: Array) -> Array:
    return array.astype(object) if array.dtype.kind == "U" else array
