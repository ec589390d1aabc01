"""JSON that comes with a model, read as what it is: a stranger's file.

Python's own reader takes much that is not JSON (``NaN``, ``Infinity``), says nothing of a key that stands there twice
(and takes the last), makes text of half a character that nothing can write down again, and ends with a different
exception for each kind of damage. Here all of it is one error, and nothing larger than a stated number of bytes is
read.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from ruvcompile.errors import InputError

LARGEST = 64 << 20
"""Bytes: tokenizers with a quarter of a million tokens and their merges take about 35 MB."""

_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_POINTER = 1024


def read_json_object(path: Path, named_as: str) -> dict[str, Any]:
    """The object in the JSON file at ``path``.

    Args:
        path: the file.
        named_as: how messages call it.

    Raises:
        InputError: missing, unreadable, too large, or no JSON object.
    """
    return parse_json_object(read_bytes(path, named_as), named_as)


def read_bytes(path: Path, named_as: str, largest: int = LARGEST) -> bytes:
    """All of a file that is not large.

    Raises:
        InputError: missing, unreadable, or larger than ``largest``.
    """
    check_regular(path, named_as)
    try:
        with path.open("rb") as stream:
            # No more than there is: a buffer of that size would be made before anything is read.
            raw = stream.read(min(os.fstat(stream.fileno()).st_size, largest) + 1)
    except FileNotFoundError:
        raise InputError("file-missing", f"there is no {named_as}", hint="copy the whole checkpoint") from None
    except OSError as error:
        raise InputError(
            "file-unreadable", f"cannot read {named_as}: {error.strerror}", hint="check the path and its permissions"
        ) from None
    if len(raw) > largest:
        raise InputError(
            "file-too-large",
            f"{named_as} is larger than {largest >> 20} MiB",
            hint="get it again: such a file is never that large",
        )
    return raw


def check_regular(path: Path, named_as: str) -> None:
    """Refuse what is no plain file (opening a pipe would wait for ever for who writes into it), or stands for one.

    Raises:
        InputError: it is there, and is something else than a file or a link to one; or it is what git leaves in the
            place of a large file that it has not fetched.
    """
    if path.exists() and not path.is_file():
        raise InputError("file-unreadable", f"{named_as} is no plain file", hint="give the file itself")
    try:
        if path.stat().st_size > _LARGEST_POINTER:
            return
        with path.open("rb") as stream:
            start = stream.read(len(_POINTER))
    except OSError:
        return  # whoever opens it to read says so
    if start == _POINTER:
        raise InputError(
            "file-not-fetched",
            f"{named_as} only points to a file that git has not fetched",
            hint="git lfs pull, in that directory",
        )


def parse_json_object(raw: bytes, named_as: str) -> dict[str, Any]:
    """The JSON object that ``raw`` is.

    Raises:
        InputError: it is none.
    """
    try:
        found = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite
        )
        if b"\\ud" in raw.lower():
            _check_whole(found)
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise _not_json(named_as, what) from None
    if not isinstance(found, dict):
        raise _not_json(named_as, f"it holds a {type(found).__name__}, not an object")
    return found


def _check_whole(found: Any) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("a text in it holds half a character (one surrogate of two)") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:80]!r} stands there twice")
        found[key] = value
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is out of range")
    return value


def _not_json(named_as: str, what: str) -> InputError:
    return InputError(
        "json-wrong",
        f"{named_as} is not sound JSON",
        context=[what],
        hint="download or copy it again; a download may have saved an error page instead",
    )
