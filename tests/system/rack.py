"""What a person at a rack sees of its services: what the head, systemd, the journal and install.sh say."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

from tests.system.booted import WAIT, Computer

RUVRUN = "/opt/ruvrun/left/ruvrun"
URL = "http://127.0.0.1:8000"
_ASK = f"""
import json, sys, urllib.error, urllib.request
path, key, body = json.loads(sys.argv[1])
headers = {{"Authorization": "Bearer " + key}} if key else {{}}
request = urllib.request.Request("{URL}" + path, json.dumps(body).encode() if body else None, headers)
try:
    answer = urllib.request.urlopen(request, timeout=300)
except urllib.error.HTTPError as error:
    answer = error
except OSError:
    sys.exit("nobody answers")
print(json.dumps([answer.status, json.load(answer)]))
"""
# What systemd, Python and useradd keep of their own.
_APART = ("/proc", "/sys", "/dev", "/run", "/tmp/", "/var/tmp/", "/var/log/", "/var/lib/systemd/", "/usr/lib/python3")
_BACKUPS = ("passwd-", "group-", "shadow-", "gshadow-", "subuid-", "subgid-", ".pwd.lock", ".updated")


def files(pc: Computer) -> set[str]:
    """Everything on its disk."""
    apart = "".join(f" ! -path '{path}*'" for path in _APART)
    return {path for path in pc.run(f"find / -xdev{apart}").stdout.splitlines() if not path.endswith(_BACKUPS)}


def install(pc: Computer, node: str, bundle: str = "") -> None:
    """As a person does it, but that every module of every package is compiled, which takes minutes here."""
    done = pc.run(f"PIP_NO_COMPILE=1 {bundle or f'/root/dist/bundles/{node}'}/node/install.sh --name {node}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"running: ruvrun@{node}, release" in done.stdout, done.stdout + done.stderr


def ask(pc: Computer, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
    """Status and body of the head's answer; 0 where nobody answers."""
    done = pc.run(f"python3 -c {shlex.quote(_ASK)} {shlex.quote(json.dumps([path, key, body]))}")
    if done.returncode:
        assert done.stderr.endswith("nobody answers\n"), done.stderr
        return 0, None
    status, answer = json.loads(done.stdout)
    return status, answer


def said(answer: tuple[int, Any]) -> str:
    assert answer[0] == 200, answer
    return str(answer[1]["choices"][0]["text"])


def await_health(pc: Computer, status: int) -> Any:
    """Ask until /health says so."""
    until = time.monotonic() + WAIT
    while (answer := ask(pc, "/health"))[0] != status:
        assert time.monotonic() < until, (answer, journal(pc, "left"), journal(pc, "right"))
    return answer[1]


def checked(pc: Computer) -> tuple[int, str]:
    """What cron is told."""
    done = pc.run(f"{RUVRUN} status {URL} --check")
    return done.returncode, done.stdout


def shown(pc: Computer, node: str) -> dict[str, str]:
    """What systemd knows of a service."""
    told = pc.run(f"systemctl show ruvrun@{node}").stdout
    return dict(line.split("=", 1) for line in told.splitlines() if "=" in line)


def await_start(pc: Computer, node: str, before: dict[str, str]) -> dict[str, str]:
    """Wait until systemd has started a service once more than ``before``, and it is ready."""
    until = time.monotonic() + WAIT
    while True:
        found = shown(pc, node)
        if found["MainPID"] not in ("0", before["MainPID"]) and found["ActiveState"] == "active":
            return found
        assert time.monotonic() < until, (found, journal(pc, node))


def journal(pc: Computer, node: str, boot: int = 0) -> list[str]:
    """What a service and systemd said of it since this boot, or since so many before."""
    return pc.run(f"journalctl -q -b {boot} -o cat -u ruvrun@{node}").stdout.splitlines()


def stage(pc: Computer, node: str) -> str:
    """The process of a stage, as a number."""
    (found,) = pc.run(f"pgrep -f -- '--node {node} --role [s]tage'").stdout.split()
    return found


def releases(pc: Computer, node: str) -> dict[str, str]:
    """What install.sh says of a service."""
    told = pc.run(f"/opt/ruvrun/{node}/current/node/install.sh --status").stdout
    return dict(word.split("=") for word in told.split())
