"""Whether a port can be reached over TCP, and if not, in which of the ways that need different cures."""

from __future__ import annotations

import socket
from typing import Literal

import msgspec

Trouble = Literal["name unknown", "timed out", "refused", "no route"]


class Unreached(msgspec.Struct, frozen=True):
    """Why a port was not reached; ``detail`` is what the system says, where that says more."""

    trouble: Trouble
    detail: str = ""


def try_port(host: str, port: int, timeout: float = 3.0) -> Unreached | None:
    """Connect to ``host:port`` and let go again; None when that worked."""
    try:
        info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: not even the form of a name
        return Unreached("name unknown")
    try:
        with socket.create_connection((str(info[0][4][0]), port), timeout=timeout):
            return None
    except TimeoutError:
        return Unreached("timed out")
    except ConnectionRefusedError:
        return Unreached("refused")
    except OSError as error:
        return Unreached("no route", error.strerror or str(error))
