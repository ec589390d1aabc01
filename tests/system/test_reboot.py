"""From two bundles to a service that is there after a reboot, before a real systemd, in an emulated PC.

Two stages of a tiny model are two services of one PC, which has no network: ``left`` has the head and the first stage,
``right`` the second. All tests are about this one PC, in the order of a machine's life; each leaves it as it found it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from tests.models import write_tiny_gguf
from tests.system.booted import PACKAGES, Computer, computer
from tests.system.debian import Machine, bundles, suite
from tests.system.rack import (
    RUVRUN,
    URL,
    ask,
    await_health,
    await_start,
    checked,
    files,
    install,
    journal,
    releases,
    said,
    shown,
    stage,
)

pytestmark = [pytest.mark.system, pytest.mark.boots]

FLEET = 'format = 1\nhead = "left"\n' + "".join(
    f'[[node]]\nname = "{name}"\ntarget = "x86-64"\naddress = "rack.local"\nport = {port}\n'
    for name, port in (("left", 7070), ("right", 7071))
)
PROMPT = {"prompt": "the and of to", "max_tokens": 24, "temperature": 0}
KEY = "secret-of-alice"
NEWER = "/var/tmp/newer"
SECURITY = 2.5
# An answer is under way, and its stage stands still, when the service is told to stop. What comes from then on?
_INTERRUPTED = f"""
import json, subprocess, sys, threading, time, urllib.request
stage, body = sys.argv[1], {{"prompt": "the", "max_tokens": 200, "temperature": 1, "seed": 1, "stream": True}}
request = urllib.request.Request("{URL}/v1/completions", json.dumps(body).encode())
with urllib.request.urlopen(request, timeout=300) as answer:
    lines = [answer.readline()]
    subprocess.run(["kill", "-STOP", stage], check=True)
    reading = threading.Thread(target=lambda: lines.extend(answer))
    reading.start()
    time.sleep(3)  # what had been said before is through by then
    before = len(lines)
    subprocess.run(["systemctl", "stop", "--no-block", "ruvrun@left"], check=True)
    while b"deactivating" not in subprocess.run(["systemctl", "is-active", "ruvrun@left"], capture_output=True).stdout:
        time.sleep(0.1)
    subprocess.run(["kill", "-CONT", stage], check=True)
    reading.join()
    print(json.dumps([line.decode()[6:] for line in lines[before:] if line.startswith(b"data: ")]))
subprocess.run(["systemctl", "stop", "ruvrun@left"], check=True)
"""


@pytest.fixture(scope="module")
def pc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Computer]:
    """A running PC with the whole build in /root/dist, and nothing installed."""
    place = tmp_path_factory.mktemp("rack")
    (place / "fleet.toml").write_text(FLEET)
    bundles(
        write_tiny_gguf(place / "tiny.gguf"), place / "dist", fleet=str(place / "fleet.toml"), stages=2,
        backend="onnxruntime", context=256, streams=2, wheels="3.11",
    )  # fmt: skip
    debian = Machine([suite("bookworm", "amd64", *PACKAGES["amd64"])], place / "debian")
    debian.put(place / "dist", "/root/dist")
    made = computer(debian, place / "pc", "rack")
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def bare(pc: Computer) -> set[str]:
    """What is on its disk before anything is installed."""
    return files(pc)


@pytest.fixture(scope="module")
def head(pc: Computer, bare: set[str]) -> Computer:
    """The PC with the head and the first stage alone."""
    assert bare
    install(pc, "left")
    return pc


@pytest.fixture(scope="module")
def rack(head: Computer) -> Computer:
    """The PC with both services."""
    install(head, "right")
    return head


@pytest.fixture(scope="module")
def text(rack: Computer) -> str:
    """What the two stages say."""
    await_health(rack, 200)
    return said(ask(rack, "/v1/completions", PROMPT))


def test_a_head_alone_is_started_and_not_ready(head: Computer) -> None:
    found = shown(head, "left")
    assert (found["Type"], found["ActiveState"], found["SubState"]) == ("notify", "active", "running")
    assert (found["UnitFileState"], found["Restart"], found["NRestarts"]) == ("enabled", "always", "0")
    assert found["WatchdogUSec"] == "1min"
    code, line = checked(head)
    assert (code, line.count("\n")) == (6, 1)
    assert line.startswith("not ready: ")
    assert "right waiting" in line


def test_its_cpu_is_one_that_has_avx2_and_no_avx512(head: Computer) -> None:
    """So all that this PC is seen to do, with bundles of whichever machine built them, such a PC does."""
    flags = head.run("grep -m 1 ^flags /proc/cpuinfo").stdout.split()
    assert {"avx2", "fma"} <= set(flags)
    assert not [flag for flag in flags if flag.startswith("avx512")]


def test_two_services_answer_as_the_record_of_the_build(rack: Computer, text: str) -> None:
    assert {rack.run(f"systemctl is-active ruvrun@{node}").stdout for node in ("left", "right")} == {"active\n"}
    assert checked(rack) == (0, f"ready: 2 of 2 stages at {URL}\n")
    assert shown(rack, "left")["StatusText"] == f"ready: {URL}"
    told = rack.run(f"{RUVRUN} run /root/dist/manifest.toml --url {URL} --golden")
    assert told.returncode == 0, told.stdout + told.stderr
    assert len(text) > 20


def test_they_are_nobody_and_have_their_keys(rack: Computer) -> None:
    """The link between them is encrypted: it is there only when both could read theirs."""
    users = rack.run("ps -o user= -p $(pgrep -d, -f -- '[r]uvrun serve')").stdout.split()
    assert (len(users), set(users)) == (5, {"ruvrun"})
    assert rack.run("ls /run/credentials/ruvrun@left.service").stdout.split() == ["api-keys", "link.key"]
    told = rack.run("setpriv --reuid=ruvrun --regid=ruvrun --clear-groups cat /opt/ruvrun/*/current/node/link.key")
    assert told.stderr.count("Permission denied") == 2


@pytest.mark.parametrize("node", ["left", "right"])
def test_systemd_lets_them_do_little(rack: Computer, node: str) -> None:
    judged = rack.run(f"systemd-analyze security --no-pager ruvrun@{node}").stdout
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", judged)
    assert float(exposure) <= SECURITY, judged


def test_keys_of_clients(rack: Computer, text: str) -> None:
    edited = rack.run(f"echo 'alice {KEY}' >/etc/ruvrun/left/api-keys && systemctl restart ruvrun@left")
    assert edited.returncode == 0, edited.stderr
    await_health(rack, 200)
    assert ask(rack, "/v1/completions", PROMPT)[0] == 401
    assert said(ask(rack, "/v1/completions", PROMPT, KEY)) == text
    rack.run(": >/etc/ruvrun/left/api-keys && systemctl restart ruvrun@left")
    await_health(rack, 200)


def test_who_is_killed_is_started_again(rack: Computer, text: str) -> None:
    before = shown(rack, "left")
    rack.run("systemctl kill --kill-who=main --signal=KILL ruvrun@left")
    after = await_start(rack, "left", before)
    assert int(after["NRestarts"]) == int(before["NRestarts"]) + 1
    await_health(rack, 200)
    assert said(ask(rack, "/v1/completions", PROMPT)) == text


def test_a_stage_that_dies_is_noticed_and_started_by_its_own_service(rack: Computer, text: str) -> None:
    before, lines = shown(rack, "right"), len(journal(rack, "right"))
    rack.run(f"kill -KILL {stage(rack, 'right')}")
    await_health(rack, 503)
    assert checked(rack)[0] == 6
    await_health(rack, 200)
    assert said(ask(rack, "/v1/completions", PROMPT)) == text
    after = shown(rack, "right")
    assert (after["MainPID"], after["NRestarts"]) == (before["MainPID"], before["NRestarts"])
    told = journal(rack, "right")[lines:]
    assert [line.partition(":")[0] for line in told] == ["lost", "joined"], told


def test_a_stage_that_stands_still_is_noticed(rack: Computer, text: str) -> None:
    number = stage(rack, "right")
    rack.run(f"kill -STOP {number}")
    await_health(rack, 503)
    rack.run(f"kill -CONT {number}")
    await_health(rack, 200)
    assert said(ask(rack, "/v1/completions", PROMPT)) == text


def test_the_watchdog_ends_a_service_that_stands_still(rack: Computer, text: str) -> None:
    before = shown(rack, "right")
    rack.run(f"kill -STOP {before['MainPID']}")
    after = await_start(rack, "right", before)
    assert int(after["NRestarts"]) == int(before["NRestarts"]) + 1
    assert any("watchdog" in line.lower() for line in journal(rack, "right"))
    await_health(rack, 200)
    assert said(ask(rack, "/v1/completions", PROMPT)) == text


def test_who_is_answered_when_it_is_stopped_is_told(rack: Computer) -> None:
    lines = len(journal(rack, "left"))
    told = rack.run(f"python3 -c {shlex.quote(_INTERRUPTED)} {stage(rack, 'left')}")
    assert told.returncode == 0, told.stderr
    *tokens, last = json.loads(told.stdout)
    assert tokens, "the head is told first, and has some seconds for what is under way"
    assert last == "[DONE]" or json.loads(last)["error"]["code"] == "stopping"
    assert shown(rack, "left")["Result"] == "success"
    assert not [line for line in journal(rack, "left")[lines:] if line.startswith("lost")]
    assert checked(rack)[0] == 6
    assert rack.run("systemctl start ruvrun@left").returncode == 0
    await_health(rack, 200)


@pytest.fixture(scope="module")
def newer(rack: Computer) -> Iterator[str]:
    """Another release of the same build, in a folder that is not counted; the value is what ``right`` ran before."""
    before = releases(rack, "right")
    assert before["previous"] == "none"
    made = rack.run(f"cp -al /root/dist/bundles/right {NEWER} && sed -i '$a # newer' {NEWER}/node/ruvrun.env")
    assert made.returncode == 0, made.stderr
    yield before["running"]
    assert rack.run(f"rm -r {NEWER}").returncode == 0


def test_an_upgrade_runs_and_the_one_before_it_is_kept(rack: Computer, text: str, newer: str) -> None:
    before = shown(rack, "right")
    install(rack, "right", NEWER)
    after, now = shown(rack, "right"), releases(rack, "right")
    assert (now["previous"], now["staged"]) == (newer, "none")
    assert now["running"] not in (newer, "none")
    assert (after["ActiveState"], after["MainPID"] != before["MainPID"]) == ("active", True)
    assert rack.run("tail -n 1 /etc/ruvrun/right/ruvrun.env").stdout == "# newer\n"
    await_health(rack, 200)
    assert said(ask(rack, "/v1/completions", PROMPT)) == text


def test_a_release_that_does_not_start_gives_way_to_the_one_that_ran(rack: Computer, text: str, newer: str) -> None:
    """It was well when it was staged; what it finds at its start is another file than was built."""
    back = rack.run("/opt/ruvrun/right/current/node/install.sh --rollback")
    assert (back.returncode, releases(rack, "right")["running"]) == (0, newer), back.stderr
    staged = rack.run(f"{NEWER}/node/install.sh --name right --stage")
    assert staged.returncode == 0, staged.stdout + staged.stderr
    rack.run("echo >>/opt/ruvrun/right/staged/golden.npz")
    lines, failing = len(journal(rack, "right")), releases(rack, "right")["staged"]
    done = rack.run(f"{NEWER}/node/install.sh --name right --switch")
    assert done.returncode == 5, done.stdout + done.stderr
    assert f"error[not-started]: release {failing} does not start; {newer} runs again" in done.stderr
    assert any(line.startswith("error[bundle-altered]: ") for line in journal(rack, "right")[lines:])
    assert releases(rack, "right") == {"running": newer, "staged": "none", "previous": "none"}
    assert shown(rack, "right")["ActiveState"] == "active"
    await_health(rack, 200)
    assert said(ask(rack, "/v1/completions", PROMPT)) == text


def test_after_a_reboot_it_serves_by_itself(rack: Computer, text: str) -> None:
    rack.reboot()
    await_health(rack, 200)
    assert said(ask(rack, "/v1/completions", PROMPT)) == text
    assert {shown(rack, node)["NRestarts"] for node in ("left", "right")} == {"0"}
    for node in ("left", "right"):
        ended = journal(rack, node, -1)[-3:]
        assert any("Deactivated successfully" in line for line in ended), ended


def test_uninstall_leaves_nothing(rack: Computer, bare: set[str]) -> None:
    for node in ("right", "left"):
        done = rack.run(f"/opt/ruvrun/{node}/current/node/uninstall.sh")
        assert done.returncode == 0, done.stdout + done.stderr
    assert files(rack) == bare
    assert rack.run("id ruvrun").returncode != 0
    assert rack.run("systemctl list-units --all --plain --no-legend 'ruvrun@*'").stdout == ""
    assert rack.run("systemctl list-unit-files --no-legend 'ruvrun@*'").stdout == ""
    assert rack.run("pgrep -f [r]uvrun").stdout == ""
