"""Deliveries to three machines with a real sshd each: what gets there is whole and checked, or the old one runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.deliveries import MACHINES, WORDS, Pair, bytes_of, deliver, running, short, table, weights
from tests.system.hosts import NAMES, PYTHON, STRANGER, WAIT, Fleet, Machine

pytestmark = [pytest.mark.system, MACHINES]


def test_a_delivery_is_whole_and_what_is_there_is_not_copied(bare: Fleet, first: Path, second: Path) -> None:
    fleet = bare
    weighed = deliver(fleet, first, "--dry-run")
    whole = {name: int(row[0]) for name, row in table(weighed.stdout).items()}
    for name, weight in whole.items():
        assert weight == sum(path.stat().st_size for path in (first / "bundles" / name).rglob("*") if path.is_file())
    assert running(fleet) == {"none"}

    done = deliver(fleet, first)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["node", "copied", "staged", "self-check", "running"]
    rows = table(done.stdout)
    for name, (copied, _, checked, now) in rows.items():
        assert bytes_of(copied) == pytest.approx(whole[name], rel=0.1)
        assert (checked, now.partition(".")[0]) == ("passed", short(first))
    assert running(fleet) == {short(first)}

    again = deliver(fleet, first)
    assert again.returncode == 0, again.stderr
    assert {name: row[0] for name, row in table(again.stdout).items()} == dict.fromkeys(NAMES, "0.0B")
    assert [row[3] for row in table(again.stdout).values()] == [row[3] for row in rows.values()]

    moved = deliver(fleet, second, "--dry-run")
    for name, row in table(moved.stdout).items():
        moved_here = weights(second, name) - weights(first, name)
        layers = sum((second / f"bundles/{name}/weights" / layer).stat().st_size for layer in moved_here)
        assert layers <= int(row[0]) < layers + 200_000, "a layer that did not move is copied"

    done = deliver(fleet, second)
    assert done.returncode == 0, done.stderr
    assert running(fleet) == {short(second)}
    back = deliver(fleet, second, "rollback")
    assert back.returncode == 0, back.stderr
    assert running(fleet) == {short(first)}
    status = deliver(fleet, second, "status")
    assert {row[3].partition(".")[0] for row in table(status.stdout).values()} == {short(first)}


def test_the_smoke_test_knows_its_build(fleet: Fleet, pair: Pair, tmp_path: Path) -> None:
    first, second = pair.old, pair.new
    assert deliver(fleet, first, "switch").returncode == 0, "it waits until all are ready"
    words = ("--streams", "1,2", "--repeats", "2", "--prompt-tokens", "8", "--max-tokens", "8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = fleet.run(first / "deliver/smoke.sh", *words, "-o", tmp_path / "smoke.json", PATH=path)
    assert done.returncode == 0, done.stderr
    assert "as built: " in done.stdout
    told = json.loads((tmp_path / "smoke.json").read_text())
    assert {node["state"] for node in told["health"]["nodes"]} == {"ready"}
    assert [mean["streams"] for mean in told["bench"]["mean"]] == [1, 2]
    assert all(run["tokens"] == 8 * run["streams"] for run in told["bench"]["runs"])
    other = fleet.run(second / "deliver/smoke.sh", *words, "-o", tmp_path / "other.json", PATH=path)
    assert (other.returncode, "error[other-build]" in other.stderr) == (6, True), other.stderr
    assert not (tmp_path / "other.json").exists()


@pytest.mark.parametrize("way", ["rsync", "ssh"])
def test_an_interrupted_copy_goes_on_where_it_stopped(fleet: Fleet, pair: Pair, way: str) -> None:
    slow = fleet.machines["pi-1"]
    with _without_rsync(slow) if way == "ssh" else contextlib.nullcontext():
        _interrupt(fleet, pair, slow)


def _interrupt(fleet: Fleet, pair: Pair, slow: Machine) -> None:
    (pair.new / "bundles/pi-1/node/notes.bin").write_bytes(os.urandom(4_000_000))
    whole = int(table(deliver(fleet, pair.new, "--dry-run").stdout)["pi-1"][0])
    _limit(fleet, "pi-1", "4mbit")
    process = fleet.start(pair.new / "deliver/deliver.sh", *WORDS)
    arriving = "find /opt/ruvrun/*/incoming/ -type f -size +1000k"
    until = time.monotonic() + WAIT
    while not slow.run(arriving, check=False).strip():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=WAIT)
    assert process.returncode == 130, told
    assert running(fleet) == {short(pair.old)}
    _limit(fleet, "pi-1", None)
    done = deliver(fleet, pair.new)
    assert done.returncode == 0, done.stderr
    assert bytes_of(table(done.stdout)["pi-1"][0]) < whole - 900_000
    assert running(fleet) == {short(pair.new)}


@contextlib.contextmanager
def _without_rsync(machine: Machine) -> Iterator[None]:
    machine.run("mount --bind /dev/null /usr/bin/rsync")
    try:
        yield
    finally:
        machine.run("umount /usr/bin/rsync")


def _limit(fleet: Fleet, name: str, rate: str | None) -> None:
    words = ["ip", "netns", "exec", fleet.desk, "tc", "qdisc"]
    if rate is None:
        subprocess.run([*words, "delete", "dev", f"to-{name}", "root"], check=True)
        return
    subprocess.run(
        [*words, "add", "dev", f"to-{name}", "root", "tbf", "rate", rate, "burst", "16kb", "latency", "100ms"],
        check=True,
    )


@pytest.mark.parametrize("way", ["rsync", "ssh"])
def test_what_is_damaged_on_the_way_is_noticed(fleet: Fleet, pair: Pair, way: str) -> None:
    (name,) = [name for name in NAMES if weights(pair.new, name) - weights(pair.old, name)]
    victim = fleet.machines[name]  # which gets a layer that was another's
    if way == "rsync":
        damage = 'target=$(find /opt/ruvrun/*/incoming/weights -type f -links 1 | head -n 1); printf x >>"$target"'
        script = f'#!/bin/bash\n/usr/bin/rsync "$@"; code=$?; {damage}; exit $code\n'
        victim.run(f"cat >/usr/local/bin/rsync <<'SCRIPT'\n{script}SCRIPT\nchmod 755 /usr/local/bin/rsync")
        mend = "rm /usr/local/bin/rsync"
    else:
        victim.run("mount --bind /dev/null /usr/bin/rsync")  # it has none
        script = '#!/bin/bash\n[[ $1 != */weights/* && $2 != */weights/* ]] || printf x >>"$1"\nexec /usr/bin/mv "$@"\n'
        victim.run(f"printf %s {shlex.quote(script)} >/usr/local/bin/mv && chmod 755 /usr/local/bin/mv")
        mend = "rm /usr/local/bin/mv"
    try:
        done = deliver(fleet, pair.new)
        assert done.returncode == 5, done.stderr
        assert re.search(rf"error\[copy-damaged\]: {name}: \S+ was damaged on the way", done.stderr), done.stderr
        assert running(fleet) == {short(pair.old)}
        victim.run(mend)
        done = deliver(fleet, pair.new)
        assert done.returncode == 0, done.stderr
        assert running(fleet) == {short(pair.new)}
    finally:
        victim.run("umount /usr/bin/rsync 2>/dev/null || true")


def test_where_the_disk_is_full_the_old_release_runs_on(fleet: Fleet, pair: Pair) -> None:
    (pair.new / "bundles/pi-0/node/notes.bin").write_bytes(os.urandom(4_000_000))
    fleet.machines["pi-0"].run("fallocate -l $(($(df --output=avail -B1 /opt | tail -n 1) - 1000000)) /opt/filled")
    done = deliver(fleet, pair.new)
    fleet.machines["pi-0"].run("rm /opt/filled")
    assert done.returncode == 7, done.stderr
    assert re.search(r"error\[disk-full\]: pi-0: \S+ are to be copied, and \S+ are free", done.stderr), done.stderr
    rows = table(done.stdout)
    assert [rows[name][2] for name in NAMES] == ["-", "passed", "passed"]
    assert running(fleet) == {short(pair.old)}
    assert deliver(fleet, pair.old, "status").returncode == 0


def test_where_one_fails_its_self_check_nobody_switches(fleet: Fleet, pair: Pair) -> None:
    fleet.machines["pi-1"].run("touch /run/computes-wrong")
    done = deliver(fleet, pair.new)
    assert done.returncode == 5, done.stderr
    assert "error[golden-mismatch]: pi-1: " in done.stderr
    rows = table(done.stdout)
    assert [rows[name][2] for name in NAMES] == ["passed", "failed", "passed"]
    assert running(fleet) == {short(pair.old)}
    refused = deliver(fleet, pair.new, "switch")
    assert (refused.returncode, "error[not-staged]: pi-1: " in refused.stderr) == (3, True)
    assert running(fleet) == {short(pair.old)}


LISTENS = "import socket, time; s = socket.create_server((chr(48), 7070)); time.sleep(600)"
FAULTS = {
    "host-unreachable": ("pi-0", "10.87.0.99", "true", 6),
    "ssh-key": ("pi-1", "nobody@10.87.0.11", "true", 6),
    "ssh-wrong": ("pi-2", "root@pi two", "true", 3),
    "ssh-host-key": ("pi-0", f"root@{STRANGER}", "true", 6),
    "other-architecture": ("pi-0", "", "printf '#!/bin/sh\\necho armv7l\\n' >/usr/local/bin/uname", 7),
    "sudo-refused": ("pi-1", "", "mv /etc/sudoers.d/pi /root/sudoers", 7),
    "python-old": ("pi-1", "", f"cp {PYTHON} {PYTHON[:-4]}kept; printf '#!/bin/sh\\necho 3.9\\n' >{PYTHON}", 7),
    "not-installed": (
        "pi-2",
        "",
        "for unit in /etc/systemd/system/ruvrun@*.service; do systemctl stop ${unit##*/}; done;"
        f" setsid {PYTHON} -c '{LISTENS}' >/dev/null 2>&1 </dev/null & echo $! >/run/taken; sleep 1",
        7,
    ),
    "python-missing": ("pi-2", "", f"mv {PYTHON} {PYTHON[:-4]}kept", 7),
}
TOGETHER = [
    ("host-unreachable", "ssh-key"),
    ("ssh-host-key", "ssh-wrong"),
    ("other-architecture", "sudo-refused"),
    ("python-old", "not-installed"),
    ("python-missing",),
]


@pytest.mark.parametrize("faults", TOGETHER, ids=" and ".join)
def test_a_fault_of_one_machine_is_one_error_of_that_machine(fleet: Fleet, pair: Pair, faults: tuple[str, ...]) -> None:
    """The machines have a fault each, but for one or two that do what they were asked."""
    text = (pair.new / "nodes.toml").read_text()
    for fault in faults:
        name, ssh, script, _ = FAULTS[fault]
        if ssh:
            text = re.sub(rf'(name = "{name}".*ssh = )"[^"]*"', rf'\1"{ssh}"', text)
        fleet.machines[name].run(f"{script}; chmod 755 /usr/local/bin/uname 2>/dev/null || true")
    (pair.new / "nodes.toml").write_text(text)
    done = deliver(fleet, pair.new, "stage")
    told = re.findall(r"^error\[(.+?)\]: (\S+):", done.stderr, re.MULTILINE)
    assert told == [(fault, FAULTS[fault][0]) for fault in faults], done.stderr
    assert done.returncode == FAULTS[faults[0]][3]
    ill = {FAULTS[fault][0] for fault in faults}
    assert {name: row[2] for name, row in table(done.stdout).items() if name not in ill} == dict.fromkeys(
        [name for name in NAMES if name not in ill], "passed"
    )
    assert running(fleet) == {short(pair.old)}


def test_every_fault_is_tried() -> None:
    assert sorted(fault for faults in TOGETHER for fault in faults) == sorted(FAULTS)
