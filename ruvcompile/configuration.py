"""Files a person wrote: read as TOML, checked key by key, with an answer for every way they can be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ruvcompile.errors import InputError, RuvError, UsageError, did_you_mean
from ruvrun.manifest import read_table


def read_configuration(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file that a person wrote, without its ``format``."""
    raw = read_table(path, what)
    raw.pop("format", None)
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
