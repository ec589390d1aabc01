"""What a child of the supervisor does for it: it says how far it is, and ends when the supervisor has."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time

LOADED = '{"loaded": true}'
_STATUS = '{"status": "'
PATIENCE = 4.5
"""Seconds from being asked to end to being ended."""


def status_line(text: str) -> str:
    """What a child writes to its standard error to say how the service is, but not to a person."""
    return json.dumps({"status": text})


def status_of(line: str) -> str | None:
    """What such a line says; None where it is another, or was cut off."""
    if not line.startswith(_STATUS):
        return None
    try:
        return str(json.loads(line)["status"])
    except ValueError:
        return None


def end_with_parent() -> None:
    """In a child: end this process when the supervisor is gone, that is, when standard input ends.

    It is asked to end first, as if by SIGTERM, and ended 4.5 s later whatever it does.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 64):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
