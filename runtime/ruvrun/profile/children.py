"""The processes that a measurement starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ruvrun.supervise import Process


def child(directory: Path, arguments: Sequence[str], threads: int, cpus: Sequence[int], file: Path) -> Process:
    """A process of ``ruvrun profile`` on the bundle in ``directory``, which writes ``file``."""
    argv = [
        *(sys.executable, "-P", "-m", "ruvrun", "profile", str(directory), *arguments),
        *("--threads", str(threads), "-q", "-o", str(file)),
        *(("--cpus", ",".join(map(str, cpus))) if cpus else ()),
    ]
    return Process("the stage that is measured", argv, {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"})
