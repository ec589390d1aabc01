"""Files a person wrote: read as TOML, checked key by key, with an answer for every way they can be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli

from ruvcompile.errors import InputError, RuvError, UsageError, did_you_mean

FORMAT = 1


def read_configuration(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file that a person wrote; ``format`` may be left out, another one is refused."""
    try:
        raw = tomli.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError("file-missing", f"no {what} at {path}", hint="check the path") from None
    except OSError as error:
        raise InputError("file-unreadable", f"cannot read {path}: {error.strerror}", hint="check the path") from None
    except (UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        raise InputError(
            "toml-invalid", f"{path} is not valid TOML", context=[str(error)], hint="correct that line"
        ) from None
    if raw.pop("format", FORMAT) != FORMAT:
        raise InputError("format-unknown", f"{path} has a format this version does not read", hint="write format = 1")
    return raw


def unknown_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> list[RuvError]:
    """One problem for each key of ``table`` that is not known, with the nearest that is."""
    known = tuple(known)
    return [
        InputError("key-unknown", f"{where}: unknown key {key!r}", hint=did_you_mean(key, known))
        for key in table
        if key not in known
    ]


def not_in_this_version(what: str) -> UsageError:
    """Refuses what the documentation describes and this version does not do; never silently ignored."""
    return UsageError("not-in-this-version", f"{what} is not in this version", hint="leave it out")
