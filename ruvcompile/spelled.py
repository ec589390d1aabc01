"""What the text of a flag, or the value of its key in ``ruvcompile.toml``, says: lists, sizes, Pythons."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ruvcompile.errors import RuvError, UsageError


def listed(value: Any) -> list[str]:
    """The entries of a list, or of a text with commas."""
    return [entry for entry in value.split(",") if entry] if isinstance(value, str) else list(value)


def dashed(key: str) -> str:
    """The name of an option as a person types it."""
    return key.replace("_", "-")


def is_text(path: str) -> bool:
    """Whether the bytes of a path are UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def shapes(given: Any, problems: list[RuvError]) -> dict[str, tuple[int, ...]]:
    """``NAME=1x3x640x640`` or ``NAME=scalar``, any number of them, or a table; what is neither is noted."""
    if isinstance(given, Mapping):
        given = [
            f"{name}={'x'.join(map(str, sizes)) if isinstance(sizes, list) else sizes}" for name, sizes in given.items()
        ]
    found: dict[str, tuple[int, ...]] = {}
    for entry in listed(given):
        match = re.fullmatch(r"([^=]+)=(\d+(?:x\d+)*|scalar)", entry)
        if match:
            sizes = match.group(2)
            found[match.group(1)] = () if sizes == "scalar" else tuple(int(size) for size in sizes.split("x"))
        else:
            problems.append(
                UsageError(
                    "shape-invalid", f"--shape {entry} is not NAME=SIZES", hint="as in --shape images=1x3x640x640"
                )
            )
    return found


def pythons(given: Any, problems: list[RuvError]) -> tuple[str, ...]:
    """``3.11,3.13``: series of Python, each once, oldest first; what is none is noted."""
    found = list(dict.fromkeys(entry.strip() for entry in listed(given)))
    wrong = [entry for entry in found if not re.fullmatch(r"3\.\d{1,2}", entry)]
    problems += [
        UsageError("wheels-invalid", f"--wheels {entry!r} is no version of Python", hint="as in --wheels 3.11,3.13")
        for entry in wrong
    ]
    return tuple(sorted((entry for entry in found if entry not in wrong), key=lambda entry: int(entry[2:])))
