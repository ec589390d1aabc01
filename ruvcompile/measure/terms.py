"""What a program is measured with: the kind of machine and company that rows are filed under, and where it is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ruvcompile.lower.weights import WeightStore
from ruvcompile.progress import Progress


@dataclass(frozen=True)
class Terms:
    """The terms of a measurement.

    Attributes:
        target, backend, threads, beside: what the rows are filed under, and how they are measured.
        store, scratch: where what is run is written.
        progress: told of how far it is, and of what is worth a person's attention.
        kv_type: of a decoder's keys and values.
        rows: of a decoder's largest step, where they are more than are measured anyway.
        brief: as for a second back end (``ruvrun.profile.conditions``): overheads tell the bytes of a process alone.
    """

    target: str
    backend: str
    threads: int
    beside: int
    store: WeightStore
    scratch: Path
    progress: Progress
    kv_type: str = "f32"
    rows: int = 0
    brief: bool = False
