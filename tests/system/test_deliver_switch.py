"""All machines switch, or all go back, whatever happens to one of them meanwhile; with Ansible, too."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.system.deliveries import MACHINES, WORDS, Pair, deliver, running, runs, short, table
from tests.system.hosts import NAMES, PYTHON, WAIT, Fleet

pytestmark = [pytest.mark.system, MACHINES]


def test_a_switch_that_is_interrupted_goes_back_whole(fleet: Fleet, pair: Pair) -> None:
    slow = fleet.machines["pi-1"]
    slow.run("touch /run/starts-slowly")
    process = fleet.start(pair.new / "deliver/deliver.sh", *WORDS)
    until = time.monotonic() + 4 * WAIT
    while short(pair.new) not in slow.run("readlink /opt/ruvrun/*/current"):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=4 * WAIT)
    assert process.returncode == 130, told
    assert "all go back: interrupted" in told
    assert running(fleet) == {short(pair.old)}


def test_a_fleet_that_does_not_get_ready_goes_back(fleet: Fleet, pair: Pair) -> None:
    fleet.machines["pi-2"].run("touch /run/starts-nothing")
    done = deliver(fleet, pair.new, "--wait", "4")
    assert done.returncode == 6, done.stderr
    assert "error[fleet-not-ready]" in done.stderr
    assert "pi-2 waiting" in done.stderr
    assert running(fleet) == {short(pair.old)}
    fleet.machines["pi-2"].run("rm /run/starts-nothing")
    done = deliver(fleet, pair.new)
    assert done.returncode == 0, done.stderr
    assert running(fleet) == {short(pair.new)}


def test_a_machine_that_is_lost_while_it_switches_is_told_of_until_all_run_one_build(fleet: Fleet, pair: Pair) -> None:
    """Whatever else keeps it from going back: at last a reason that is gone when it is tried once more."""
    lost = fleet.machines["pi-1"]
    lost.run("touch /run/loses-its-line")
    done = deliver(fleet, pair.new)
    assert done.returncode == 6, done.stderr
    assert "error[line-lost]: pi-1: " in done.stderr
    assert "error[host-unreachable]: pi-1: " in done.stderr
    told = done.stderr[done.stderr.index("error[fleet-mixed]") :]
    assert f"\n  {short(pair.old)}: pi-0, pi-2\n  not known: pi-1\n" in told
    assert "\n  hint: once pi-1 can be reached: ./deliver.sh rollback, " in told
    assert [row[3].partition(".")[0] for row in table(done.stdout).values()] == [short(pair.old), "-", short(pair.old)]
    mixed = {"pi-0": short(pair.old), "pi-1": short(pair.new), "pi-2": short(pair.old)}
    assert runs(fleet) == mixed

    lost.run("ip link set eth0 up")
    done = deliver(fleet, pair.new, "status")
    assert done.returncode == 7, done.stderr
    assert f"  {short(pair.old)}: pi-0, pi-2\n" in done.stderr
    assert f"  {short(pair.new)}, this build: pi-1\n" in done.stderr
    assert "hint: ./deliver.sh rollback, " in done.stderr

    lost.run(_no_rollback("exit 1"))
    done = deliver(fleet, pair.new, "rollback")
    assert done.returncode == 7, done.stderr
    assert re.findall(r"^error\[(.+?)\]: (\S+)", done.stderr, re.MULTILINE) == [
        ("busy", "pi-1:"),
        ("fleet-mixed", "not"),
    ]
    assert runs(fleet) == mixed

    lost.run(_no_rollback("rm /usr/local/bin/flock; exit 1"))
    done = deliver(fleet, pair.new, "rollback")
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    assert running(fleet) == {short(pair.old)}


def _no_rollback(instead: str) -> str:
    """A lock that install.sh --rollback does not get."""
    lines = [
        "#!/bin/bash",
        'words=$(tr "\\0" " " </proc/$PPID/cmdline)',
        f'case $words in *"install.sh --rollback "*) {instead} ;; esac',
        'exec /usr/bin/flock "$@"',
    ]
    return f"printf '%s\\n' {shlex.join(lines)} >/usr/local/bin/flock; chmod 755 /usr/local/bin/flock"


def play(fleet: Fleet, dist: Path, **variables: object) -> tuple[int, str, dict[str, dict[str, int]]]:
    """A run of the playbook: exit code, what was told, and the recap of each machine."""
    words = [word for name, value in variables.items() for word in ("-e", json.dumps({name: value}))]
    fixed = {"install_words": f"--python {PYTHON}", "ansible_python_interpreter": sys.executable}
    words = [str(Path(sys.executable).with_name("ansible-playbook")), "deliver.yml", *words, "-e", json.dumps(fixed)]
    done = fleet.run(
        *("bash", "-c", f"cd {shlex.quote(str(dist / 'deliver/ansible'))} && exec {shlex.join(words)}"),
        seconds=400,
        ANSIBLE_SSH_ARGS=f"-F {fleet.folder / 'desk/config'} -o ControlMaster=auto -o ControlPersist=60",
        ANSIBLE_HOME=str(fleet.folder / "ansible"),
        ANSIBLE_NOCOLOR="1",
    )
    recap = re.findall(r"^(\S+)\s+: (ok=.*)$", done.stdout, re.MULTILINE)
    counts = {name: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)} for name, line in recap}
    return done.returncode, done.stdout + done.stderr, counts


def test_ansible_delivers_the_same_and_a_second_run_changes_nothing(bare: Fleet, first: Path, second: Path) -> None:
    fleet = bare
    code, told, counts = play(fleet, first)
    assert code == 0, told
    assert counts.keys() == set(NAMES)
    assert all(count["changed"] > 0 for count in counts.values())
    assert running(fleet) == {short(first)}
    code, told, counts = play(fleet, first)
    assert code == 0, told
    assert {name: count["changed"] for name, count in counts.items()} == dict.fromkeys(NAMES, 0), told
    fleet.machines["pi-2"].run("touch /run/starts-nothing")
    code, told, _ = play(fleet, second, seconds=3)
    assert code != 0
    assert "all have gone back" in told
    assert running(fleet) == {short(first)}


def test_with_ansible_the_others_go_back_when_one_is_lost_while_it_switches(fleet: Fleet, pair: Pair) -> None:
    fleet.machines["pi-1"].run("touch /run/loses-its-line")
    code, told, _ = play(fleet, pair.new)
    assert code != 0
    old = f"running={short(pair.old)}"
    assert f"NOT all have gone back: pi-0 {old}, pi-1 cannot be reached, pi-2 {old}" in told, told
    assert runs(fleet) == {"pi-0": short(pair.old), "pi-1": short(pair.new), "pi-2": short(pair.old)}
    fleet.machines["pi-1"].run("ip link set eth0 up")
    back = deliver(fleet, pair.new, "rollback")
    assert back.returncode == 0, back.stderr
    assert running(fleet) == {short(pair.old)}
