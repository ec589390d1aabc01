"""Facts of a machine: files of ``/proc`` and ``/sys``, which may not be there."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> str:
    """What a file says; nothing where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
