#!/usr/bin/env python3
"""A service manager for a machine of the tests: of ``systemctl`` the few words that install.sh says.

It starts what ExecStart says and waits until that says READY, as systemd does. It does not supervise, and everything
runs as root. Where /run/starts-nothing exists a service is active and does nothing, so that its fleet never gets ready;
where /run/starts-slowly exists it takes some seconds more; where /run/loses-its-line exists the machine's network goes
away at the next start, with all that came by it.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import time

UNITS = pathlib.Path("/etc/systemd/system")
STATE = pathlib.Path("/run/services")
SECONDS = 60.0
LOSES = pathlib.Path("/run/loses-its-line")


def main() -> int:
    """One command; its exit code."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if words[0] == "daemon-reload":
        return 0
    action, unit = words[0], words[1].removesuffix(".service")
    STATE.mkdir(exist_ok=True)
    if action == "is-active":
        return 0 if running(unit) else 3
    if action in ("disable", "stop", "restart"):
        stop(unit)
    if action in ("start", "restart"):
        return start(unit)
    return 0


def running(unit: str) -> int:
    """Its process; 0 for none."""
    path = STATE / unit
    number = int(path.read_text()) if path.is_file() else 0
    try:
        state = pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return 0
    return 0 if state == "Z" else number


def stop(unit: str) -> None:
    """End it, and wait for that."""
    number = running(unit)
    if number:
        os.killpg(number, signal.SIGTERM)
        until = time.monotonic() + SECONDS
        while running(unit) and time.monotonic() < until:
            time.sleep(0.05)
    (STATE / unit).unlink(missing_ok=True)


def lose_line() -> None:
    """Whoever came by ssh is gone, and cannot come back."""
    LOSES.unlink()
    session = "sshd(-session)?: (pi|root)"
    subprocess.run(["pkill", "-KILL", "-f", session], check=False)
    while subprocess.run(["pgrep", "-f", session], check=False, stdout=subprocess.DEVNULL).returncode == 0:
        time.sleep(0.05)
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)


def start(unit: str) -> int:
    """Start it and wait for READY; 1 if it ends before."""
    if LOSES.exists():
        lose_line()
    keys: dict[str, list[str]] = {}
    instance = unit.partition("@")[2]
    for line in (UNITS / f"{unit}.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            keys.setdefault(name, []).append(value.replace("%i", instance))
    environment = {**os.environ}
    for path in keys.get("EnvironmentFile", []):
        for line in pathlib.Path(path).read_text().splitlines():
            if "=" in line and not line.startswith("#"):
                environment.update([line.split("=", 1)])
    secrets = STATE / f"{unit}.credentials"
    secrets.mkdir(mode=0o700, exist_ok=True)
    for entry in keys.get("LoadCredential", []):
        name, _, path = entry.partition(":")
        (secrets / name).write_bytes(pathlib.Path(path).read_bytes())
    environment["CREDENTIALS_DIRECTORY"] = str(secrets)
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = STATE / f"{unit}.notify"
    address.unlink(missing_ok=True)
    heard.bind(str(address))
    heard.settimeout(0.2)
    environment["NOTIFY_SOCKET"] = str(address)
    words: list[str] = []
    for word in shlex.split(keys["ExecStart"][0]):
        words += environment.get(word[1:], "").split() if word.startswith("$") else [word]
    idle = pathlib.Path("/run/starts-nothing").exists()
    time.sleep(5 if pathlib.Path("/run/starts-slowly").exists() else 0)
    with (STATE / f"{unit}.log").open("ab") as log:
        process = subprocess.Popen(
            ["sleep", "1000"] if idle else words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (STATE / unit).write_text(str(process.pid))
    until = time.monotonic() + SECONDS
    while not idle and time.monotonic() < until:
        if process.poll() is not None:
            return 1
        try:
            if b"READY=1" in heard.recv(4096):
                return 0
        except TimeoutError:
            continue
    return 0 if idle else 1


sys.exit(main())
