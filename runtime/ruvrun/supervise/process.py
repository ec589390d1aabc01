"""A process to keep running, and the child that it is at the moment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from ruvrun.errors import RuvError, UnreachableError, how_it_ended, kind_of


@dataclass(frozen=True)
class Process:
    """One process to keep running: what to call it in messages, its command line, and what its environment adds.

    The ``front`` is ended before the others. ``within`` so many seconds of its start it says that it goes on
    (``vigil``); None: it need not.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    front: bool = False
    within: float | None = None


@dataclass
class Child:
    """What is known of a process that is kept; ``popen`` is None between its end and its next start.

    ``hung`` are the seconds without a sign of life for which it was ended; None where it was not.
    """

    process: Process
    popen: subprocess.Popen[bytes] | None = None
    pidfd: int = -1
    started: float = 0.0
    starts: int = 0
    pause: float = 1.0
    due: float | None = None
    rest: bytes = b""
    error: RuvError | None = None
    loaded: bool = False
    hung: float | None = None

    @property
    def stderr(self) -> IO[bytes]:
        """What it writes for people and for us."""
        assert self.popen is not None
        assert self.popen.stderr is not None
        return self.popen.stderr

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started."""
        if self.popen is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, number)

    def how(self, code: int) -> str:
        """How it ended, in words."""
        return how_it_ended(code) if self.hung is None else f"it hung: no sign of life for {self.hung:.0f} s"

    def died(self, code: int) -> RuvError:
        """Its end as an error, where it said nothing itself."""
        kind = kind_of(code) or UnreachableError
        killed = code == -signal.SIGKILL and self.hung is None
        hint = "if nobody did that, the kernel may have, for lack of memory" if killed else None
        return kind(
            "process-died",
            f"the process of {self.process.name} ended: {self.how(code)}",
            hint=hint or "its last words, if any, stand above",
        )
