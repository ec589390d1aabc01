"""Ports of this machine that nobody has."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from ruvrun.errors import MachineError

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on.

    They lie outside the range from which the kernel serves outgoing connections, so that a process that is
    started again finds its port still free.
    """
    low, high = (int(part) for part in _EPHEMERAL.read_text().split())
    below, above = list(range(10000, min(low, 65000))), list(range(high + 1, 65000))
    choices = below if len(below) >= len(above) else above
    found: list[int] = []
    for port in random.SystemRandom().sample(choices, len(choices)):
        if len(found) == count:
            return found
        if port_is_free("127.0.0.1", port):
            found.append(port)
    raise MachineError("no-port", f"no {count} free ports on 127.0.0.1", hint="end what holds them")


def port_is_free(host: str, port: int) -> bool:
    """Whether a listener could be put on ``host:port`` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
