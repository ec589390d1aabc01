"""What an init system hears, over a real socket of datagrams."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ruvrun.notify import Notify


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address as systemd writes it, and who listens there."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@ruvrun-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address.replace("@", "\0", 1))
        listening.settimeout(10)
        yield address, listening


def test_each_word_is_a_datagram(listener: tuple[str, socket.socket]) -> None:
    address, listening = listener
    notify = Notify.from_environment({"NOTIFY_SOCKET": address})
    notify.status("waiting: pi-3, no answer for 40 s")
    notify.ready()
    notify.alive()
    notify.stopping()
    heard = [listening.recv(200).decode() for _ in range(4)]
    assert heard == ["STATUS=waiting: pi-3, no answer for 40 s", "READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_status_is_one_line(listener: tuple[str, socket.socket]) -> None:
    """More lines would be read as more assignments."""
    address, listening = listener
    Notify(address).status("error[x]: no\nREADY=1\n")
    assert listening.recv(200) == b"STATUS=error[x]: no"


def test_where_nobody_listens_nothing_happens(tmp_path: Path) -> None:
    for notify in (Notify.from_environment({}), Notify(str(tmp_path / "gone"))):
        notify.ready()
        notify.alive()
        assert notify.every is None


def test_ready_waits_for_a_listener_that_is_busy(listener: tuple[str, socket.socket]) -> None:
    """Nothing repeats it, so it must not be lost among words that are."""
    address, listening = listener
    for _ in range(1000):
        Notify(address).alive()
    telling = threading.Thread(target=Notify(address).ready)
    telling.start()
    while listening.recv(200) != b"READY=1":
        pass
    telling.join()


def test_a_listener_that_does_not_listen_holds_nobody_up(listener: tuple[str, socket.socket]) -> None:
    address, listening = listener
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    for _ in range(1000):
        Notify(address).alive()


@pytest.mark.parametrize(
    ("environ", "every"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 20.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 20.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_hears_of_us_well_before_its_time(environ: dict[str, str], every: float | None) -> None:
    assert Notify.from_environment({"NOTIFY_SOCKET": "/x", **environ}).every == every


def test_children_do_not_inherit_the_line() -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "PATH": "/bin"}
    Notify.from_environment(environ)
    assert environ == {"PATH": "/bin"}
