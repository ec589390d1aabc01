"""How far a long step is: what the compiler reports to, and what a terminal makes of it.

The steps of the compiler know only the ``Progress`` protocol::

    with progress.step("measure", total=31) as bar:
        for segment in segments:
            ...
            bar.advance()

``Silent`` ignores everything; ``Terminal`` draws one line on a stream that a person watches, and nothing but
notes on any other stream. Nothing here prints on its own: the command line passes the stream in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

WIDTH = 30
EVERY_S = 0.1


class Bar(Protocol):
    """One step that is under way."""

    def advance(self, amount: int = 1) -> None:
        """Note that ``amount`` more of the step's total is done."""


class Progress(Protocol):
    """Where the compiler reports what it is doing."""

    def step(self, name: str, total: int | None = None) -> AbstractContextManager[Bar]:
        """Open a step; ``total`` is what its ``advance`` calls will add up to, None where nobody knows."""

    def note(self, text: str) -> None:
        """One line for a person: a default that was applied, a choice that was made, a measured loss."""

    def detail(self, text: str) -> None:
        """One line for a person who asked for more (``-v``)."""


class _Nothing:
    def advance(self, amount: int = 1) -> None:
        pass


class Silent:
    """Reports nothing; for tests and for callers that do not care."""

    def step(self, name: str, total: int | None = None) -> AbstractContextManager[Bar]:  # noqa: ARG002 - the protocol's
        return self._open()

    @contextmanager
    def _open(self) -> Iterator[Bar]:
        yield _Nothing()

    def note(self, text: str) -> None:
        pass

    def detail(self, text: str) -> None:
        pass


class _Line:
    """A bar on a terminal: redrawn at most every tenth of a second, so that drawing costs nothing."""

    def __init__(self, name: str, total: int | None, stream: TextIO, clock: Callable[[], float]) -> None:
        self.name, self.total, self.stream, self.clock = name, total, stream, clock
        self.done = 0
        self.start = clock()
        self.drawn = -EVERY_S

    def advance(self, amount: int = 1) -> None:
        self.done += amount
        self.draw()

    def draw(self, *, last: bool = False) -> None:
        now = self.clock() - self.start
        if not last and now - self.drawn < EVERY_S:
            return
        self.drawn = now
        if self.total:
            filled = min(WIDTH, WIDTH * self.done // self.total)
            middle = f"[{'#' * filled}{'.' * (WIDTH - filled)}] {self.done}/{self.total}"
        else:
            middle = f"{self.done} done" if self.done else "..."
        self.stream.write(f"\r{self.name:<12} {middle}  {now:.1f} s".ljust(78))
        self.stream.flush()


class Terminal:
    """Progress for a person: bars only where ``stream`` is a terminal, notes unless ``quiet``.

    Args:
        stream: standard error.
        verbosity: -1 quiet (nothing), 0 bars and notes, 1 details and the seconds of each step too.
        clock: seconds; a test passes its own.
    """

    def __init__(self, stream: TextIO, verbosity: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.verbosity, self.clock = stream, verbosity, clock
        self.draws = verbosity >= 0 and stream.isatty()

    @contextmanager
    def step(self, name: str, total: int | None = None) -> Iterator[Bar]:
        start = self.clock()
        line = _Line(name, total, self.stream, self.clock) if self.draws else None
        if line:
            line.draw()
        try:
            yield line or _Nothing()
        finally:
            if line:
                line.draw(last=True)
                self.stream.write("\n")
        if not line:
            self.detail(f"{name}: {self.clock() - start:.1f} s")

    def note(self, text: str) -> None:
        if self.verbosity >= 0:
            self.stream.write(text + "\n")

    def detail(self, text: str) -> None:
        if self.verbosity > 0:
            self.stream.write(text + "\n")
