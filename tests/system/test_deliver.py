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
from pathlib import Path

import pytest

from ruvrun.manifest import load_manifest
from tests.compiler.builds import build
from tests.models import write_tiny_gguf
from tests.system.hosts import NAMES, PYTHON, WAIT, Fleet, able, machines

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


@pytest.fixture(autouse=True)
def _bare(fleet: Fleet) -> Iterator[None]:
    yield
    fleet.reset()


def deliver(fleet: Fleet, dist: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    more = WORDS if not words or words[0] in ("stage", "--wait", "--dry-run") else ()
    return fleet.run(dist / "deliver" / "deliver.sh", *words, *more, **environment)


def table(told: str) -> dict[str, list[str]]:
    """Rows by node, as words."""
    return {words[0]: words[1:] for line in told.splitlines() if (words := line.split()) and words[0] in NAMES}


def running(fleet: Fleet, dist: Path) -> set[str]:
    """The builds that run, as the machines' links have it."""
    del dist
    links = [machine.run("readlink /opt/ruvrun/*/current || echo none") for machine in fleet.machines.values()]
    return {link.strip().rpartition("/")[2].partition(".")[0] for link in links}


def short(dist: Path) -> str:
    return load_manifest(dist / "manifest.toml").id[:12]


def bytes_of(human: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([KMG]?)i?B", human).groups()  # type: ignore[union-attr]  # else it fails
    return float(number) * 1024 ** " KMG".index(unit or " ")


def test_a_delivery_is_whole_and_what_is_there_is_not_copied(fleet: Fleet, first: Path, second: Path) -> None:
    weighed = deliver(fleet, first, "--dry-run")
    whole = {name: int(row[0]) for name, row in table(weighed.stdout).items()}
    for name, weight in whole.items():
        assert weight == sum(path.stat().st_size for path in (first / "bundles" / name).rglob("*") if path.is_file())
    assert running(fleet, first) == {"none"}

    done = deliver(fleet, first)
    assert done.returncode == 0, done.stderr
    rows = table(done.stdout)
    for name, (copied, _, checked, runs) in rows.items():
        assert bytes_of(copied) == pytest.approx(whole[name], rel=0.1)
        assert (checked, runs.partition(".")[0]) == ("passed", short(first))
    assert running(fleet, first) == {short(first)}

    again = deliver(fleet, first)
    assert again.returncode == 0, again.stderr
    assert {name: row[0] for name, row in table(again.stdout).items()} == dict.fromkeys(NAMES, "0.0B")
    assert [row[3] for row in table(again.stdout).values()] == [row[3] for row in rows.values()]

    moved = deliver(fleet, second, "--dry-run")
    for name, row in table(moved.stdout).items():
        old, new = ({path.name for path in (dist / f"bundles/{name}/weights").iterdir()} for dist in (first, second))
        layers = sum((second / f"bundles/{name}/weights" / layer).stat().st_size for layer in new - old)
        assert layers <= int(row[0]) < layers + 200_000, "a layer that did not move is copied"

    done = deliver(fleet, second)
    assert done.returncode == 0, done.stderr
    assert running(fleet, second) == {short(second)}
    back = deliver(fleet, second, "rollback")
    assert back.returncode == 0, back.stderr
    assert running(fleet, first) == {short(first)}
    status = deliver(fleet, second, "status")
    assert {row[3].partition(".")[0] for row in table(status.stdout).values()} == {short(first)}


def test_the_smoke_test_knows_its_build(fleet: Fleet, first: Path, second: Path, tmp_path: Path) -> None:
    assert deliver(fleet, first).returncode == 0
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


def test_an_interrupted_copy_goes_on_where_it_stopped(fleet: Fleet, first: Path, second: Path) -> None:
    assert deliver(fleet, first).returncode == 0
    slow = fleet.machines["pi-1"]
    slow.run("rm -rf /opt/ruvrun/*/incoming")
    (second / "bundles/pi-1/node/notes.bin").write_bytes(os.urandom(4_000_000))
    whole = int(table(deliver(fleet, second, "--dry-run").stdout)["pi-1"][0])
    _limit(fleet, "pi-1", "4mbit")
    process = fleet.start(second / "deliver/deliver.sh", *WORDS)
    arriving = "find /opt/ruvrun/*/incoming/ -name '*notes.bin*' -size +1000k"
    until = time.monotonic() + WAIT
    while not slow.run(arriving, check=False).strip():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=WAIT)
    assert process.returncode == 130, told
    assert running(fleet, first) == {short(first)}
    _limit(fleet, "pi-1", None)
    done = deliver(fleet, second)
    assert done.returncode == 0, done.stderr
    assert bytes_of(table(done.stdout)["pi-1"][0]) < whole - 900_000
    assert running(fleet, second) == {short(second)}


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
def test_what_is_damaged_on_the_way_is_noticed(fleet: Fleet, first: Path, second: Path, way: str) -> None:
    assert deliver(fleet, first).returncode == 0
    victim = fleet.machines["pi-1"]  # which gets a layer that was another's
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
        done = deliver(fleet, second)
        assert done.returncode == 5, done.stderr
        assert re.search(r"error\[copy-damaged\]: pi-1: \S+ was damaged on the way", done.stderr), done.stderr
        assert running(fleet, first) == {short(first)}
        victim.run(mend)
        done = deliver(fleet, second)
        assert done.returncode == 0, done.stderr
        assert running(fleet, second) == {short(second)}
    finally:
        victim.run("umount /usr/bin/rsync 2>/dev/null || true")


def test_where_the_disk_is_full_the_old_release_runs_on(fleet: Fleet, first: Path, second: Path) -> None:
    assert deliver(fleet, first).returncode == 0
    (second / "bundles/pi-0/node/notes.bin").write_bytes(os.urandom(4_000_000))
    fleet.machines["pi-0"].run("fallocate -l $(($(df --output=avail -B1 /opt | tail -n 1) - 1000000)) /opt/filled")
    done = deliver(fleet, second)
    fleet.machines["pi-0"].run("rm /opt/filled")
    assert done.returncode == 7, done.stderr
    assert re.search(r"error\[disk-full\]: pi-0: \S+ are to be copied, and \S+ are free", done.stderr), done.stderr
    rows = table(done.stdout)
    assert [rows[name][2] for name in NAMES] == ["-", "passed", "passed"]
    assert running(fleet, first) == {short(first)}
    assert deliver(fleet, first, "status").returncode == 0


def test_where_one_fails_its_self_check_nobody_switches(fleet: Fleet, first: Path, second: Path) -> None:
    assert deliver(fleet, first).returncode == 0
    fleet.machines["pi-1"].run("touch /run/computes-wrong")
    done = deliver(fleet, second)
    assert done.returncode == 5, done.stderr
    assert "error[golden-mismatch]: pi-1: " in done.stderr
    rows = table(done.stdout)
    assert [rows[name][2] for name in NAMES] == ["passed", "failed", "passed"]
    assert running(fleet, first) == {short(first)}
    refused = deliver(fleet, second, "switch")
    assert (refused.returncode, "error[not-staged]: pi-1: " in refused.stderr) == (3, True)
    assert running(fleet, first) == {short(first)}


def test_a_switch_that_is_interrupted_goes_back_whole(fleet: Fleet, first: Path, second: Path) -> None:
    assert deliver(fleet, first).returncode == 0
    slow = fleet.machines["pi-1"]
    slow.run("touch /run/starts-slowly")
    process = fleet.start(second / "deliver/deliver.sh", *WORDS)
    until = time.monotonic() + 4 * WAIT
    while short(second) not in slow.run("readlink /opt/ruvrun/*/current"):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=4 * WAIT)
    assert process.returncode == 130, told
    assert "all go back: interrupted" in told
    assert running(fleet, first) == {short(first)}


def test_a_fleet_that_does_not_get_ready_goes_back(fleet: Fleet, first: Path, second: Path) -> None:
    assert deliver(fleet, first).returncode == 0
    fleet.machines["pi-2"].run("touch /run/starts-nothing")
    done = deliver(fleet, second, "--wait", "4")
    assert done.returncode == 6, done.stderr
    assert "error[fleet-not-ready]" in done.stderr
    assert "pi-2 waiting" in done.stderr
    assert running(fleet, first) == {short(first)}
    fleet.machines["pi-2"].run("rm /run/starts-nothing")
    done = deliver(fleet, second)
    assert done.returncode == 0, done.stderr
    assert running(fleet, second) == {short(second)}


LISTENS = "import socket, time; s = socket.create_server((chr(48), 7070)); time.sleep(600)"
FAULTS = {
    "host-unreachable": ("pi-0", "10.87.0.99", "true", 6),
    "ssh-key": ("pi-1", "nobody@10.87.0.11", "true", 6),
    "ssh-wrong": ("pi-2", "root@pi two", "true", 3),
    "other-architecture": ("pi-0", "", "printf '#!/bin/sh\\necho armv7l\\n' >/usr/local/bin/uname", 7),
    "python-old": ("pi-1", "", f"cp {PYTHON} {PYTHON[:-4]}kept; printf '#!/bin/sh\\necho 3.9\\n' >{PYTHON}", 7),
    "not-installed": (
        "pi-2",
        "",
        f"setsid {PYTHON} -c '{LISTENS}' >/dev/null 2>&1 </dev/null & echo $! >/run/taken; sleep 1",
        7,
    ),
}


@pytest.mark.parametrize("together", [tuple(FAULTS)[:3], tuple(FAULTS)[3:]], ids=["ways", "machines"])
def test_a_fault_of_one_machine_is_one_error_of_that_machine(
    fleet: Fleet, first: Path, together: tuple[str, ...]
) -> None:
    """Each of the three machines has a fault of its own, and then none but one has."""
    for faults in (together, together[:1]):
        nodes = (first / "nodes.toml").read_text()
        changed = nodes
        for fault in faults:
            name, ssh, script, _ = FAULTS[fault]
            if ssh:
                changed = re.sub(rf'(name = "{name}".*ssh = )"[^"]*"', rf'\1"{ssh}"', changed)
            fleet.machines[name].run(f"{script}; chmod 755 /usr/local/bin/uname 2>/dev/null || true")
        (first / "nodes.toml").write_text(changed)
        done = fleet.run(first / "deliver/deliver.sh", "stage", *WORDS)
        (first / "nodes.toml").write_text(nodes)
        told = re.findall(r"^error\[(.+?)\]: (\S+):", done.stderr, re.MULTILINE)
        assert [(ref, name) for ref, name in told if ref in FAULTS] == [(fault, FAULTS[fault][0]) for fault in faults]
        assert done.returncode == FAULTS[faults[0]][3]
        assert {row[2] for name, row in table(done.stdout).items() if name not in {FAULTS[f][0] for f in faults}} <= {
            "passed"
        }
        assert running(fleet, first) == {"none"}
        fleet.reset()


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


def test_ansible_delivers_the_same_and_a_second_run_changes_nothing(fleet: Fleet, first: Path, second: Path) -> None:
    code, told, counts = play(fleet, first)
    assert code == 0, told
    assert counts.keys() == set(NAMES)
    assert all(count["changed"] > 0 for count in counts.values())
    assert running(fleet, first) == {short(first)}
    code, told, counts = play(fleet, first)
    assert code == 0, told
    assert {name: count["changed"] for name, count in counts.items()} == dict.fromkeys(NAMES, 0), told
    fleet.machines["pi-2"].run("touch /run/starts-nothing")
    code, told, _ = play(fleet, second, seconds=3)
    assert code != 0
    assert "all have gone back" in told
    assert running(fleet, first) == {short(first)}
