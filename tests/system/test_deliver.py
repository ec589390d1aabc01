"""Deliveries to three machines with a real sshd each: whatever goes wrong on the way, all of them run one build."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ruvrun.manifest import load_manifest
from tests.compiler.builds import build
from tests.models import write_tiny_gguf
from tests.system.hosts import NAMES, PYTHON, STRANGER, WAIT, Fleet, able, machines

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not able() and "CI" not in os.environ,
        reason="machines of namespaces take root, sshd and rsync; tests/system/delivery.sh installs what is missing",
    ),
]

WORDS = ("--", "--python", PYTHON)
USERS = {"pi-0": "root", "pi-1": "pi", "pi-2": "root"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with machines(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model for the same fleet, cut at two places."""
    folder = tmp_path_factory.mktemp("builds")
    nodes = [
        f'[[node]]\nname = "{name}"\ntarget = "x86-64"\nmemory = "8GiB"\naddress = "10.87.0.{10 + number}"\n'
        f'ssh = "{USERS[name]}@10.87.0.{10 + number}"\n'
        for number, name in enumerate(NAMES)
    ]
    (folder / "fleet.toml").write_text("format = 1\n" + "".join(nodes))
    write_tiny_gguf(folder / "tiny.gguf", layers=6, hidden=256, ffn=768)
    made = []
    for name, cut in (("first", (1, 3)), ("second", (1, 4))):
        where = ",".join(f"layers.{layer}/mlp/add" for layer in cut)
        build(folder / "tiny.gguf", folder / name, fleet=str(folder / "fleet.toml"), cut=where, backend="onnxruntime")
        made.append(folder / name)
    return made[0], made[1]


@pytest.fixture
def first(builds: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the first build, to be changed at will."""
    return Path(shutil.copytree(builds[0], tmp_path / "first build"))


@pytest.fixture
def second(builds: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the second."""
    return Path(shutil.copytree(builds[1], tmp_path / "second build"))


@pytest.fixture
def bare(fleet: Fleet) -> Fleet:
    """Machines on which nothing was ever installed."""
    fleet.reset()
    return fleet


@dataclass(frozen=True)
class Pair:
    """Copies of the build that runs on all machines, and of the next one."""

    old: Path
    new: Path


@pytest.fixture
def pair(fleet: Fleet, first: Path, second: Path) -> Pair:
    """What runs is what the test before left there, as if freshly delivered; the first build where that is not one."""
    fleet.mend()
    if running(fleet) == {short(second)}:
        return Pair(second, first)
    if running(fleet) != {short(first)}:
        fleet.reset()
        done = deliver(fleet, first)
        assert done.returncode == 0, done.stderr
        fleet.mend()
    return Pair(first, second)


def deliver(fleet: Fleet, dist: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    more = WORDS if not words or words[0] in ("stage", "--wait", "--dry-run") else ()
    return fleet.run(dist / "deliver" / "deliver.sh", *words, *more, **environment)


def table(told: str) -> dict[str, list[str]]:
    """Rows by node, as words."""
    return {words[0]: words[1:] for line in told.splitlines() if (words := line.split()) and words[0] in NAMES}


def runs(fleet: Fleet) -> dict[str, str]:
    """The build that each machine runs, as its links have it."""
    links = {
        name: machine.run("readlink /opt/ruvrun/*/current || echo none") for name, machine in fleet.machines.items()
    }
    return {name: link.strip().rpartition("/")[2].partition(".")[0] for name, link in links.items()}


def running(fleet: Fleet) -> set[str]:
    """The builds that run somewhere."""
    return set(runs(fleet).values())


def short(dist: Path) -> str:
    return load_manifest(dist / "manifest.toml").id[:12]


def weights(dist: Path, name: str) -> set[str]:
    """The files of weights in a bundle; equal ones have one name in all builds."""
    return {path.name for path in (dist / f"bundles/{name}/weights").iterdir()}


def bytes_of(human: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([KMG]?)i?B", human).groups()  # type: ignore[union-attr]  # else it fails
    return float(number) * 1024 ** " KMG".index(unit or " ")


def test_a_delivery_is_whole_and_what_is_there_is_not_copied(bare: Fleet, first: Path, second: Path) -> None:
    fleet = bare
    weighed = deliver(fleet, first, "--dry-run")
    whole = {name: int(row[0]) for name, row in table(weighed.stdout).items()}
    for name, weight in whole.items():
        assert weight == sum(path.stat().st_size for path in (first / "bundles" / name).rglob("*") if path.is_file())
    assert running(fleet) == {"none"}

    done = deliver(fleet, first)
    assert done.returncode == 0, done.stderr
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


def test_an_interrupted_copy_goes_on_where_it_stopped(fleet: Fleet, pair: Pair) -> None:
    slow = fleet.machines["pi-1"]
    (pair.new / "bundles/pi-1/node/notes.bin").write_bytes(os.urandom(4_000_000))
    whole = int(table(deliver(fleet, pair.new, "--dry-run").stdout)["pi-1"][0])
    _limit(fleet, "pi-1", "4mbit")
    process = fleet.start(pair.new / "deliver/deliver.sh", *WORDS)
    arriving = "find /opt/ruvrun/*/incoming/ -name '*notes.bin*' -size +1000k"
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
