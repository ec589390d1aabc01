"""Keeping processes: real ones, each a line of Python, driven by what they write and by their ends."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from ruvrun import supervise
from ruvrun.errors import IntegrityError, UnreachableError
from ruvrun.supervise import Process, Supervisor
from ruvrun.supervise.child import LOADED, status_line, status_of
from tests.commands.served import has_ended
from tests.runtime.supervised import SLEEP, STUBBORN, WAIT, Kept, keeping, python


def test_the_last_child_that_is_loaded_makes_it_ready_once_and_its_words_are_the_status() -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    loaded = f"import sys, time; print({LOADED!r}, file=sys.stderr, flush=True); "
    again = f"print({LOADED!r}, file=sys.stderr, flush=True); "
    says = f"print({status_line('ready: here')!r}, file=sys.stderr, flush=True); time.sleep(60)"
    supervisor = Supervisor(
        [python("one", loaded + "time.sleep(60)"), python("two", loaded + again + "time.sleep(1); " + says)],
        tell=told.put,
        status=heard.put,
        loaded=lambda: heard.put("LOADED"),
        alive=lambda: heard.put("alive"),
        every=0.05,
    )
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    lines = []
    while "ready: here" not in lines:
        lines.append(heard.get(timeout=WAIT))
    supervisor.stop()
    thread.join(WAIT)
    assert lines.count("LOADED") == 1
    assert lines.index("LOADED") < lines.index("ready: here")
    assert lines.count("alive") > 3
    assert told.empty(), "what is for the init system alone was told to a person"


def test_a_child_that_dies_before_the_others_are_loaded_has_to_load_again(tmp_path: Path) -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    said = f"print({LOADED!r}, file=sys.stderr, flush=True)"
    first = f"import sys, time, pathlib; gone = pathlib.Path({str(tmp_path / 'gone')!r}); "
    whole = f"time.sleep(1); pathlib.Path({str(tmp_path / 'whole')!r}).touch()"
    dies = f"\nif gone.exists(): {whole}; {said}; time.sleep(60)\n{said}; gone.touch(); sys.exit(9)"
    late = f"import sys, time, pathlib\nwhile not pathlib.Path({str(tmp_path / 'gone')!r}).exists(): time.sleep(0.01)\n"
    supervisor = Supervisor(
        [python("dies", first + dies), python("late", late + "time.sleep(1)\n" + said + "\ntime.sleep(60)")],
        tell=heard.put,
        loaded=lambda: heard.put("LOADED"),
    )
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    lines = []
    while "LOADED" not in lines:
        lines.append(heard.get(timeout=WAIT))
    whole_then = (tmp_path / "whole").exists()
    supervisor.stop()
    thread.join(WAIT)
    assert whole_then, "told to be loaded while one of them was dead"


@pytest.mark.parametrize("text", ["ready: here", 'a "word"', ""])
def test_a_line_that_is_a_status_is_told_from_others_and_from_one_that_was_cut_off(text: str) -> None:
    line = status_line(text)
    assert status_of(line) == text
    assert status_of(line[:-1]) is None
    assert status_of(text) is None


def test_what_a_person_is_told_is_the_status_too() -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    supervisor = Supervisor([python("one", SLEEP)], tell=lambda _: None, status=heard.put)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    assert heard.get(timeout=WAIT) == "up"
    supervisor.stop()
    thread.join(WAIT)


def test_stop_ends_every_child_in_its_own_session() -> None:
    with keeping(python("one", SLEEP), python("two", SLEEP)) as kept:
        kept.line("up")
        kept.line("up")
        pids = kept.supervisor.pids()
        assert sorted(pids) == ["one", "two"]
        assert all(os.getsid(pid) == pid for pid in pids.values())
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    assert kept.error is None


def test_a_killed_child_is_started_again_and_the_other_is_left_alone() -> None:
    with keeping(python("one", SLEEP), python("two", SLEEP)) as kept:
        kept.line("up")
        kept.line("up")
        before = kept.supervisor.pids()
        os.kill(before["one"], signal.SIGKILL)
        assert "killed by SIGKILL" in kept.line("lost: one")
        kept.line("up")
        after = kept.supervisor.pids()
        assert after["one"] != before["one"]
        assert after["two"] == before["two"]


def test_the_pause_before_a_restart_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []
    clock = [100.0]
    monkeypatch.setattr(supervise.time, "monotonic", lambda: clock[0])
    kept = Supervisor([], tell=lambda _: None)
    child = supervise.Child(python("one", "import sys; sys.exit(1)"))
    monkeypatch.setattr(kept, "_reap", lambda _: 1)
    for _ in range(6):
        child.starts += 1
        child.started = clock[0]
        kept._ended(child)
        assert child.due is not None
        pauses.append(child.due - clock[0])
    assert pauses == [1, 2, 4, 8, 10, 10]
    child.starts, child.started = 7, clock[0]
    clock[0] += 3600
    kept._ended(child)
    assert child.due is not None
    assert child.due - clock[0] == 1


def test_an_error_of_the_user_at_the_first_start_ends_everything_with_that_error() -> None:
    error = IntegrityError("bundle-altered", "stage.onnx is not what it was", context=["sha256"], hint="copy it again")
    code = f"import sys, json; print(json.dumps({error.to_dict()!r}), file=sys.stderr); sys.exit(5)"
    kept = Kept(python("one", SLEEP), python("two", code))
    kept.thread.start()
    kept.end()
    assert isinstance(kept.error, IntegrityError)
    assert kept.error.to_dict() == error.to_dict()
    assert kept.supervisor.pids() == {}


def test_an_end_without_words_is_an_error_with_the_exit_code() -> None:
    kept = Kept(python("one", "import sys; sys.exit(3)"))
    kept.thread.start()
    kept.end()
    assert getattr(kept.error, "exit_code", None) == 3


def test_without_restart_any_end_is_an_error_that_says_how() -> None:
    kept = Kept(python("one", SLEEP), restart=False)
    kept.thread.start()
    kept.line("up")
    os.kill(kept.supervisor.pids()["one"], signal.SIGKILL)
    kept.end()
    assert isinstance(kept.error, UnreachableError)
    assert "SIGKILL" in kept.error.message


def test_who_ignores_sigterm_is_killed_and_so_is_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "PATIENCE", 0.2)
    grandchild = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); " + STUBBORN
    with keeping(python("one", grandchild)) as kept:
        kept.line("up")
        kept.line("up")
        pid = kept.supervisor.pids()["one"]
        family = [pid, *(child.pid for child in psutil.Process(pid).children())]
        assert len(family) == 2
        watched = [os.pidfd_open(pid) for pid in family]
    assert all(has_ended(pidfd) for pidfd in watched)


def test_the_front_ends_before_the_others_whatever_it_still_has_to_finish() -> None:
    def leaving(name: str, seconds: float) -> list[str]:
        code = (
            "import signal, sys, time\n"
            "def leave(*_):\n"
            f"    time.sleep({seconds}); print('left {name}', file=sys.stderr, flush=True); sys.exit(0)\n"
            f"signal.signal(signal.SIGTERM, leave)\n{SLEEP}"
        )
        return [sys.executable, "-c", code]

    with keeping(Process("stage", leaving("stage", 0)), Process("head", leaving("head", 0.3), front=True)) as kept:
        kept.line("up")
        kept.line("up")
    assert [kept.line("left"), kept.line("left")] == ["left head", "left stage"]


def test_a_child_ends_when_its_parent_is_killed() -> None:
    child = "from ruvrun.supervise.child import end_with_parent; end_with_parent(); " + SLEEP
    parent = (
        "import sys\nfrom ruvrun.supervise import Process, Supervisor\n"
        f"p = Process('one', [sys.executable, '-c', {child!r}])\n"
        "s = Supervisor([p], tell=lambda line: print(s.pids()['one'], flush=True))\n"
        "s.run()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    watched = os.pidfd_open(int(process.stdout.readline()))
    process.kill()
    process.wait()
    process.stdout.close()
    assert has_ended(watched)


def test_environment_is_added_to() -> None:
    code = "import os, sys; print(os.environ['ADDED'], 'PATH' in os.environ, file=sys.stderr, flush=True); " + SLEEP
    with keeping(python("one", code, ADDED="yes")) as kept:
        assert kept.line() == "yes True"


def test_a_last_line_without_an_end_is_passed_on() -> None:
    with keeping(python("one", "import sys; sys.stderr.write('bye'); sys.exit(1)")) as kept:
        assert kept.line() == "bye"
        assert "exit code 1" in kept.line()


def test_what_two_children_say_of_one_event_is_told_once() -> None:
    line = "lost: pi-1, the connection was lost"
    code = f"import sys; print({line!r}, file=sys.stderr, flush=True); " + SLEEP
    with keeping(python("one", code), python("two", code)) as kept:
        said = []
        while said.count("up") < 2:
            said.append(kept.line())
        assert said.count(line) == 1
