"""One thing that was looked at, and how it stands. What is not well comes with why that matters, and what to type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ruvrun.errors import RuvError


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was seen, why that matters, and what to type.

    ``exit_code`` is what `serve` would end with because of it.
    """

    check: str
    state: Literal["ok", "warn", "fail"]
    seen: str
    hint: str | None = None
    exit_code: int = 0
    why: str = ""


def well(check: str, seen: str) -> Finding:
    """It is as it should be."""
    return Finding(check, "ok", seen)


def warning(check: str, seen: str, why: str, hint: str) -> Finding:
    """It serves all the same, but not as it could."""
    return Finding(check, "warn", seen, hint, 0, why)


def failure(check: str, seen: str, why: str, hint: str, exit_code: int) -> Finding:
    """With this it does not serve."""
    return Finding(check, "fail", seen, hint, exit_code, why)


def failed(check: str, error: RuvError, why: str, hint: str = "ruvrun --help") -> Finding:
    """What was to be done ended with this error; ``hint`` is for errors that know none."""
    return failure(check, "; ".join([error.message, *error.context]), why, error.hint or hint, error.exit_code)
