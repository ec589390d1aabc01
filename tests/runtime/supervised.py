"""Processes that a supervisor keeps, each a line of Python, and what it says of them."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ruvrun.errors import RuvError
from ruvrun.supervise import Process, Supervisor

WAIT = 20.0
SLEEP = "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP


def python(name: str, code: str, **env: str) -> Process:
    return Process(name, [sys.executable, "-c", code], env)


class Kept:
    """A supervisor in a thread of its own."""

    def __init__(self, *processes: Process, restart: bool = True) -> None:
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.supervisor = Supervisor(processes, tell=self.lines.put, restart=restart)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.supervisor.run()
        except RuvError as error:
            self.error = error

    def line(self, start: str = "") -> str:
        while not (line := self.lines.get(timeout=WAIT)).startswith(start):
            pass
        return line

    def end(self) -> None:
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


@contextmanager
def keeping(*processes: Process, restart: bool = True) -> Iterator[Kept]:
    kept = Kept(*processes, restart=restart)
    kept.thread.start()
    try:
        yield kept
    finally:
        kept.supervisor.stop()
        kept.end()
