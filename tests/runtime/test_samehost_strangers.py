"""Links between processes of one machine, against real sockets of others: who is let in, and who is not believed."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time

import pytest

from ruvrun.errors import MachineError
from ruvrun.transport import Down, Peer, Up
from ruvrun.transport.connection import address_of
from tests.runtime.samehosts import first_frame, process
from tests.runtime.transports import LONG, is_down, wait_for


def test_a_node_nobody_knows_gets_nothing() -> None:
    with process("b") as second, process("stranger", ["a", "b", "stranger"]) as stranger, process("a") as first:
        number = second.bind("local", secrets.randbits(62))
        stranger.connect("b", "local", number)
        assert stranger.receive(LONG) == [Up("b")]
        stranger.send(Peer("b"), [b"evil"])
        first.connect("b", "local", number)
        first.send(Peer("b"), [b"good"])
        assert first_frame(second) == [b"good"]
        assert wait_for(stranger, is_down) == Down("b", "the connection was lost")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_gets_nothing_and_is_not_believed() -> None:
    number = secrets.randbits(62)
    with process("b") as second, process("a") as first:
        second.bind("local", number)
        code = (
            "import os, socket, sys; os.setuid(65534);"
            "made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); made.connect('\\0' + sys.argv[1]);"
            "made.settimeout(20); sys.exit(made.recv(1) != b'')"
        )
        evil = subprocess.Popen([sys.executable, "-c", code, address_of(number)[1:]])
        until = time.monotonic() + LONG
        while evil.poll() is None and time.monotonic() < until:
            assert second.receive(0.1) == []
        assert evil.returncode == 0, "it was not hung up on"
        taken = secrets.randbits(62)
        code = (
            "import os, socket, sys; os.setuid(65534);"
            "made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); made.bind('\\0' + sys.argv[1]);"
            "made.listen(); print('there', flush=True); made.accept()[0].recv(1)"
        )
        argv = [sys.executable, "-c", code, address_of(taken)[1:]]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as squatter:
            assert squatter.stdout is not None
            assert squatter.stdout.readline() == b"there\n"
            first.connect("b", "local", taken)
            assert first.receive(LONG) == [Down("b", "another user's process listens there", refused=True)]


def test_two_processes_cannot_listen_in_one_place() -> None:
    with process("a") as first, process("b") as second:
        number = first.bind("local", secrets.randbits(62))
        with pytest.raises(MachineError, match="another process"):
            second.bind("local", number)
