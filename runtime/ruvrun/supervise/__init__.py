"""Keeps the processes of one invocation running: starts them, starts the dead again, ends them all.

One thread, one wait: the supervisor sleeps in a single ``select`` over a descriptor per child that becomes
readable when the child ends (a pidfd), the children's standard errors, and a pipe through which ``stop`` and
signals wake it. Nothing is polled.

Five rules:

1. A child lives in its own session, so that Ctrl-C on the terminal reaches only us and we end the children in
   order; and it holds the reading end of a pipe on its standard input. Whatever ends us, however suddenly,
   closes the other end, and the child ends itself (``end_with_parent``). No process is left behind.
2. A child that dies is started again after 1 s, 2 s, 4 s ... at most 10 s, while the others keep running; a
   child that ran for a minute begins at 1 s again.
3. A child whose first start fails with an error that no second start would cure (bad input, does not fit,
   altered bundle, machine refuses) ends everything with that error. Children say it as one line of JSON on
   standard error; all other lines are passed on as they come.
4. Ending is SIGTERM, then SIGKILL after 4.5 s, to the child's whole process group; first to the ``front``, which others
   talk to and which may have something to finish with the help of the rest, then to all others.
5. A child that hangs is ended like one that died, and started again (``vigil``). Until then nobody is told that this
   service lives, so that an init system which watches it has the last word.

A child that does its part from now on says so by the line ``LOADED``; ``status_line`` is how it is. Neither is passed
on: they are for whoever started us and watches, an init system say, which is told when the last child is loaded.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

from ruvrun.errors import parse_error
from ruvrun.supervise.child import LOADED, PATIENCE, status_of
from ruvrun.supervise.process import Child, Process
from ruvrun.supervise.repeats import Repeats
from ruvrun.supervise.vigil import Vigil, alive_for

SLOWEST_RESTART = 10.0
SETTLED = 60.0

# What children say of one another while all of them are being ended is no news.
_EXPECTED = ("lost: ", "waiting: ", "refused: ")
# An exit code at the first start that ends everything: 1 and 6 might pass, the user's errors will not.
_FINAL = (2, 3, 4, 5, 7)


class Supervisor:
    """Runs processes until ``stop``, or until one of them cannot run at all.

    Args:
        processes: what to run.
        tell: gets every line that a child writes to its standard error, and our own notices; called in the
            thread that runs ``run``.
        restart: start a dead child again; without it, any child's end is an error that ends everything.
        status: gets how this service is: what was told last, and what children say for that alone.
        loaded: called once, when every child has been loaded.
        alive: called every ``every`` seconds while this runs and nobody hangs.
    """

    def __init__(
        self,
        processes: Iterable[Process],
        *,
        tell: Callable[[str], None],
        restart: bool = True,
        status: Callable[[str], None] = lambda _line: None,
        loaded: Callable[[], None] = lambda: None,
        alive: Callable[[], None] = lambda: None,
        every: float | None = None,
    ) -> None:
        self._children = [Child(process) for process in processes]
        self._tell_person, self._status = tell, status
        self._restart = restart
        self._loaded, self._alive, self._every = loaded, alive, every
        self._stopping = False
        self._repeats, self._vigil = Repeats(), Vigil()
        self._selector = selectors.DefaultSelector()
        self._waking, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._waking, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Start everything and keep it running; returns after ``stop``, with every child gone.

        Raises:
            RuvError: a child cannot run at all; every other child has been ended.
        """
        try:
            for child in self._children:
                self._start(child)
            while not self._stopping:
                self._wait()
        finally:
            self._end_all()
            self._selector.close()
            os.close(self._waking)

    def stop(self) -> None:
        """Make ``run`` end everything and return. Safe in any thread and in a signal handler."""
        self._stopping = True
        with contextlib.suppress(OSError):
            os.write(self._wake, b".")

    def pids(self) -> dict[str, int]:
        """The running children's process ids, by name."""
        return {child.process.name: child.popen.pid for child in self._children if child.popen is not None}

    def _start(self, child: Child) -> None:
        child.due = None
        child.starts += 1
        child.started = time.monotonic()
        child.rest, child.hung = b"", None
        if child.process.within is not None:
            self._vigil.heard(child.process.name, child.process.within, child.started)
        child.popen = subprocess.Popen(
            child.process.argv,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **child.process.env},
        )
        child.pidfd = os.pidfd_open(child.popen.pid)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        stderr = child.stderr
        os.set_blocking(stderr.fileno(), False)
        self._selector.register(stderr, selectors.EVENT_READ, child)

    def _wait(self) -> None:
        now = time.monotonic()
        waits = [max(0.0, child.due - now) for child in self._children if child.due is not None]
        waits += [each for each in (self._every, self._vigil.pause(now)) if each is not None]
        timeout = min(waits, default=None)
        self._turn(timeout, self._ended)
        self._vigil.waited(timeout, time.monotonic() - now)
        now = time.monotonic()
        silent = self._vigil.silent(now)
        for child in self._children:
            if child.process.name in silent:
                self._vigil.forget(child.process.name)
                child.hung = silent[child.process.name]
                child.kill(signal.SIGKILL)
        if self._every is not None and all(child.hung is None for child in self._children):
            self._alive()
        for child in self._children:
            if child.due is not None and child.due <= now and not self._stopping:
                self._start(child)

    def _turn(self, timeout: float | None, at_end: Callable[[Child], object]) -> None:
        """Wait once, up to ``timeout`` seconds; pass on what was written, and call ``at_end`` for who has ended."""
        for key, _ in self._selector.select(timeout):
            child = key.data
            if child is None:
                os.read(self._waking, 64)
            elif key.fd == child.pidfd:
                at_end(child)
            elif child.popen is not None:
                self._read(child)

    def _read(self, child: Child) -> bool:
        """Pass on what the child wrote; False when there is nothing (more) to read."""
        stderr = child.stderr
        try:
            piece = os.read(stderr.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not piece:
            with contextlib.suppress(KeyError):
                self._selector.unregister(stderr)
            return False
        *lines, child.rest = (child.rest + piece).split(b"\n")
        for line in lines:
            self._line(child, line.decode("utf-8", "replace"))
        return True

    def _line(self, child: Child, line: str) -> None:
        error = parse_error(line)
        if error is not None:
            child.error = error
        elif line == LOADED:
            self._note_loaded(child)
        elif (seconds := alive_for(line)) is not None:
            self._vigil.heard(child.process.name, seconds, time.monotonic())
        elif (status := status_of(line)) is not None:
            self._status(status)
        elif self._stopping and line.startswith(_EXPECTED):
            return
        elif self._repeats.is_new(child.process.name, line, time.monotonic()):
            self._tell(line)

    def _tell(self, line: str) -> None:
        self._tell_person(line)
        self._status(line)

    def _note_loaded(self, child: Child) -> None:
        before = all(each.loaded for each in self._children)
        child.loaded = True
        if not before and all(each.loaded for each in self._children):
            self._loaded()

    def _ended(self, child: Child) -> None:
        code = self._reap(child)
        if self._stopping:
            return
        if not all(each.loaded for each in self._children):
            child.loaded = False
        if not self._restart or (child.starts == 1 and code in _FINAL):
            raise child.error or child.died(code)
        if child.error is not None:
            self._tell(str(child.error))
            child.error = None
        now = time.monotonic()
        child.pause = (
            1.0 if now - child.started > SETTLED or child.starts == 1 else min(child.pause * 2, SLOWEST_RESTART)
        )
        child.due = now + child.pause
        self._tell(f"lost: {child.process.name}, {child.how(code)}; starting it again in {child.pause:.0f} s")

    def _reap(self, child: Child) -> int:
        assert child.popen is not None
        # While the child is not reaped its number is still its own, and its group holds only what it started.
        child.kill(signal.SIGKILL)
        code = child.popen.wait()
        stderr = child.stderr
        while self._read(child):
            pass
        with contextlib.suppress(KeyError):
            self._selector.unregister(stderr)
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        stderr.close()
        if child.popen.stdin is not None:
            child.popen.stdin.close()
        if child.rest:
            self._line(child, child.rest.decode("utf-8", "replace"))
        child.popen, child.pidfd = None, -1
        self._repeats.forget(child.process.name)
        self._vigil.forget(child.process.name)
        return code

    def _end_all(self) -> None:
        self._stopping = True
        self._end([child for child in self._children if child.process.front])
        self._end(self._children)

    def _end(self, children: Sequence[Child]) -> None:
        """End these, and wait until they are gone."""
        for child in children:
            child.kill(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while any(child.popen is not None for child in children):
            left = until - time.monotonic()
            if left <= 0:
                for child in children:
                    if child.popen is not None:
                        child.kill(signal.SIGKILL)
                        self._reap(child)
                break
            self._turn(left, self._reap)


__all__ = ["Process", "Supervisor"]
