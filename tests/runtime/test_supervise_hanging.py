"""Kept processes that hang: found by what they say no more, ended, and started again."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import psutil
import pytest

from ruvrun import supervise
from ruvrun.errors import UnreachableError
from ruvrun.supervise import Supervisor
from ruvrun.supervise.vigil import alive_line
from tests.commands.served import has_ended
from tests.runtime.supervised import SLEEP, Kept, keeping, python

SAYS_ONCE = (
    "import sys, time; print('up', file=sys.stderr); "
    f"print({alive_line(0.1)!r}, file=sys.stderr, flush=True); time.sleep(60)"
)
GOES_ON = (
    "import sys, time\n"
    f"print({alive_line(2.0)!r}, 'up', sep='\\n', file=sys.stderr, flush=True)\n"
    f"while True: print({alive_line(2.0)!r}, file=sys.stderr, flush=True); time.sleep(0.05)"
)


def test_a_child_that_says_no_more_that_it_goes_on_is_started_again_and_no_other() -> None:
    says_once = python("one", SAYS_ONCE)
    with keeping(says_once, python("two", GOES_ON), python("three", SLEEP)) as kept:
        for _ in range(3):
            kept.line("up")
        before = kept.supervisor.pids()
        assert kept.line("lost: ").startswith("lost: one, it hung: no sign of life for ")
        kept.line("up")
        after = kept.supervisor.pids()
        assert after["one"] != before["one"]
        assert (after["two"], after["three"]) == (before["two"], before["three"])


def test_a_child_that_was_stopped_is_started_again() -> None:
    with keeping(python("one", GOES_ON)) as kept:
        kept.line("up")
        first = kept.supervisor.pids()["one"]
        os.kill(first, signal.SIGSTOP)
        assert kept.line("lost: ").startswith("lost: one, it hung: ")
        kept.line("up")
        assert not psutil.pid_exists(first)


def test_a_child_that_hangs_before_its_first_word_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only this test moves."""
    clock = [100.0]
    monkeypatch.setattr(supervise.time, "monotonic", lambda: clock[0])
    lines: list[str] = []
    kept = Supervisor([replace(python("one", "import time; time.sleep(60)"), within=300.0)], tell=lines.append)
    (child,) = kept._children
    kept._start(child)
    assert child.popen is not None
    watched = os.pidfd_open(child.popen.pid)
    monkeypatch.setattr(kept, "_turn", lambda *_: None)
    clock[0] += 299
    kept._wait()
    assert child.hung is None
    clock[0] += 1
    kept._wait()
    assert child.hung == 300.0
    assert has_ended(watched)
    kept._ended(child)
    assert lines == ["lost: one, it hung: no sign of life for 300 s; starting it again in 1 s"]


def test_where_nobody_is_started_again_a_child_that_hangs_is_an_error() -> None:
    kept = Kept(python("one", SAYS_ONCE), restart=False)
    kept.thread.start()
    kept.end()
    assert isinstance(kept.error, UnreachableError)
    assert "it hung" in kept.error.message
    assert "lack of memory" not in str(kept.error.hint)


def test_while_one_hangs_nobody_is_told_that_the_service_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that not even the kernel can end (it waits for a device) is the init system's to see."""
    told: list[str] = []
    clock = [100.0]
    monkeypatch.setattr(supervise.time, "monotonic", lambda: clock[0])
    kept = Supervisor([python("one", SLEEP)], tell=lambda _: None, alive=lambda: told.append("alive"), every=20.0)
    (child,) = kept._children
    monkeypatch.setattr(supervise.Child, "kill", lambda *_: None)
    monkeypatch.setattr(kept, "_turn", lambda *_: None)
    kept._line(child, alive_line(60.0))
    kept._wait()
    assert told == ["alive"]
    clock[0] += 61
    kept._wait()
    kept._wait()
    assert told == ["alive"]
    assert child.hung
