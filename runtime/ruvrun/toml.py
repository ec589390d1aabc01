"""Our files as TOML: read with an answer for every way they can be wrong, written the same way every time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli
import tomli_w

from ruvrun.errors import InputError

FORMAT = 1
"""The ``format`` of every file of this version; a file that leaves it out is taken to be of this one."""

_S = TypeVar("_S")


def read_file(path: Path, what: str) -> bytes:
    """All of a file; ``what`` it is, for a person.

    Raises:
        InputError: ``file-missing``, ``file-unreadable``.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError("file-missing", f"no {what} at {path}", hint="check the path") from None
    except OSError as error:
        raise InputError(
            "file-unreadable", f"cannot read {path}: {error.strerror}", hint="check the path and its permissions"
        ) from None


def read_table(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file; ``what`` it is, for a person. A file of another ``format`` is refused.

    Raises:
        InputError: as ``read_file``; ``toml-invalid``, ``format-unknown``.
    """
    text = read_file(path, what)
    try:
        raw = tomli.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # no text, no TOML, a number or a nest that nobody can mean
        raise InputError(
            "toml-invalid", f"{path} is not valid TOML", context=[str(error)], hint="correct that line"
        ) from None
    if any(not -(2**63) <= number < 2**63 for number in _whole_numbers(raw)):
        what = "a whole number in it has more than 64 bits"
        raise InputError("toml-invalid", f"{path} is not valid TOML", context=[what], hint="correct that number")
    found = raw.get("format", FORMAT)
    if found != FORMAT:
        raise InputError(
            "format-unknown",
            f"{path} has format {found}, this version reads {FORMAT}",
            hint="use the version that wrote it",
        )
    return raw


def _whole_numbers(raw: dict[str, Any]) -> Iterator[int]:
    left: list[Any] = [raw]
    while left:
        value = left.pop()
        if isinstance(value, int):
            yield value
        elif isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value


def read_toml(path: Path, kind: type[_S], what: str) -> _S:
    """Read a TOML file of ours into ``kind``; every way it can be wrong is an ``InputError``."""
    raw = read_table(path, what)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise InputError(
            "toml-wrong", f"{path} is not a valid {what}", context=[str(error)], hint=_key_hint(error)
        ) from None


def dump_toml(value: Any) -> bytes:
    """The bytes of a struct as TOML; ``format`` and ``protocol`` are always written."""
    body = msgspec.to_builtins(value)
    head = {key: getattr(value, key) for key in ("format", "protocol", "id") if hasattr(value, key)}
    return tomli_w.dumps({**head, **{k: v for k, v in body.items() if k not in head}}).encode()


def _key_hint(error: msgspec.ValidationError) -> str:
    unknown = re.search(r"unknown field `(\w+)`", str(error))
    return f"remove the key {unknown.group(1)!r}" if unknown else "compare it with one that `ruvcompile build` wrote"
