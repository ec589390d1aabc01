"""What an init system is told of this process: systemd's protocol of datagrams on ``$NOTIFY_SOCKET``.

A service of ``Type=notify`` counts as started when it says ``READY=1``, is shown with the last ``STATUS=`` it gave, and
is killed and started again when ``WATCHDOG=1`` does not come in time. Where nobody asked, nothing is sent, so callers
need not know under what they run.

The variables are taken out of the environment: the children of this process are not who systemd listens to.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

_SOCKET, _MICROSECONDS, _PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_PER_INTERVAL = 3  # one that is late must not be taken for dead
_PATIENCE = 2.0  # seconds for the word that nothing repeats


class Notify:
    """Tells who listens at ``address``; nobody does where it is empty.

    Attributes:
        every: seconds after which to call ``alive`` again; None where nobody watches.
    """

    def __init__(self, address: str = "", every: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.every = every

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notify:
        """As systemd asks for it; its variables are gone from ``environ`` afterwards."""
        address, interval, pid = (environ.pop(name, "") for name in (_SOCKET, _MICROSECONDS, _PID))
        if pid not in ("", str(os.getpid())):
            interval = ""
        watched = bool(address) and interval.isdigit() and int(interval) > 0
        return cls(address, int(interval) / 1e6 / _PER_INTERVAL if watched else None)

    def ready(self) -> None:
        """It is started."""
        self._send("READY=1", _PATIENCE)

    def status(self, line: str) -> None:
        """How it is, in one line."""
        self._send(f"STATUS={line.splitlines()[0] if line else ''}")

    def alive(self) -> None:
        """It still works."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """It was told to end."""
        self._send("STOPPING=1")

    def _send(self, text: str, patience: float = 0.0) -> None:
        if not self._address:
            return
        # Who listens may be gone, or slow: that must not end or hold up what it listens to.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(patience)
            sender.sendto(text.encode(), self._address)
