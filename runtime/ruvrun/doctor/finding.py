"""One thing that was looked at, and how it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
