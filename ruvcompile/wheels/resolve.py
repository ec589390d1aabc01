"""Which wheels a machine needs: requirements are followed, from wheel to wheel, until nothing is missing.

There is no going back: of every package the newest is taken that satisfies all that has been asked of it so far. Where
a later wheel asks for less, it is fetched again, with all that is known by then. What a version that was given up had
asked for stays asked, which can only leave something older than it had to be. Where that ends in a contradiction, the
error says so, and whose.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ruvcompile.errors import InputError
from ruvcompile.wheels.kind import Kind

Fetch = Callable[[Sequence[Requirement]], Sequence[Path]]
"""Gives the wheel of each requirement, its extras and marker aside."""


def resolve(asked: Iterable[str], kind: Kind, fetch: Fetch) -> list[Path]:
    """The wheels that satisfy ``asked``, and all that they require in turn, on a machine of this kind.

    Raises:
        InputError: a requirement cannot be read.
        RuvError: whatever ``fetch`` raises: there is no such wheel, no network.
    """
    known: dict[str, Requirement] = {}
    chosen: dict[str, Path] = {}
    waiting = _merge(known, map(requirement, asked))
    while waiting:
        names = sorted(waiting)
        chosen.update(zip(names, fetch([known[name] for name in names]), strict=True))
        waiting = set()
        for name in names:
            waiting |= _merge(known, required(chosen[name], known[name].extras, kind))
    return sorted(set(chosen.values()))


def requirement(text: str) -> Requirement:
    """A requirement as packages write it."""
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        what = f"{text!r} is no requirement of a package: {error}"
        raise InputError("wheels-requirement", what, hint="as in ruvrun[onnxruntime] or onnxruntime>=1.32") from None


def required(wheel: Path, extras: Iterable[str], kind: Kind) -> list[Requirement]:
    """What a wheel with these extras requires on such a machine."""
    found = []
    for text in requires(metadata_of(wheel)):
        each = requirement(text)
        if each.marker is None or any(
            each.marker.evaluate({**kind.markers, "extra": extra}) for extra in ("", *sorted(extras))
        ):
            found.append(each)
    return found


def requires(text: str) -> list[str]:
    """The requirements in a package's metadata."""
    return HeaderParser().parsestr(text).get_all("Requires-Dist") or []


def python_of(text: str) -> str:
    """The Pythons that a package's metadata names, as a specifier; empty for all."""
    return str(HeaderParser().parsestr(text).get("Requires-Python") or "")


def metadata_of(wheel: Path) -> str:
    """The metadata inside a wheel.

    Raises:
        InputError: it is no wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [each for each in archive.namelist() if each.count("/") == 1 and each.endswith("info/METADATA")]
            return archive.read(name).decode("utf-8", "replace")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError("wheels-broken", f"{wheel} is no wheel: {error}", hint="remove it, and build again") from None


def _merge(known: dict[str, Requirement], more: Iterable[Requirement]) -> set[str]:
    """Add requirements to the known ones; the names of those of which more is asked than before."""
    changed: set[str] = set()
    for each in more:
        name = canonicalize_name(each.name)
        before = known.get(name, Requirement(name))
        specifier, extras = before.specifier & each.specifier, before.extras | each.extras
        if name not in known or specifier != before.specifier or extras != before.extras:
            known[name] = Requirement(f"{name}{_extras(extras)}{specifier}")
            changed.add(name)
    return changed


def _extras(extras: Iterable[str]) -> str:
    names = ",".join(sorted(extras))
    return f"[{names}]" if names else ""
