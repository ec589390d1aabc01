"""Host names to addresses without waiting: a name that mDNS does not know keeps the resolver busy for seconds.

ZeroMQ would look names up in the thread that also sends its heartbeats, and so one missing machine would make the
others look dead.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable


def resolve(host: str, done: Callable[[str, str], None]) -> None:
    """Look ``host`` up in a thread; ``done(address, why)`` is called there, one of the two being empty.

    IPv4 comes first: the addresses that mDNS gives for IPv6 are often link-local ones, which need a scope.
    """

    def look() -> None:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, ValueError):  # ValueError: not even the form of a name
            done("", f"the name {host} is not known")
            return
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        done(str(found[0][4][0]), "")

    threading.Thread(target=look, name=f"resolve {host}", daemon=True).start()
