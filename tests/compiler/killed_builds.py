"""A process that builds in children and lets each die, by SIGKILL, just before a given change of the file system.

One line of standard input is one child: JSON with ``flags`` (of ``builds.options``), ``model``, ``output``, ``at`` (the
number of the change to die at; null to live). One line of standard output answers: JSON with the child's exit status
(negative: the signal) and ``changes``, how many there were in a child that lived. A change is what Python's audit
hooks tell of: a file opened for writing, a rename, a link, a removed or new directory, a call into the C library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.compiler.builds import build

CHANGES = ("os.rename", "os.link", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "shutil.rmtree")


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            _build(order, writer)
        os.close(writer)
        with os.fdopen(reader) as told:
            changes = told.read()
        _, status = os.waitpid(child, 0)
        answer = {"status": os.waitstatus_to_exitcode(status), "changes": int(changes or 0)}
        print(json.dumps(answer), flush=True)


def _build(order: dict[str, Any], writer: int) -> None:
    """The child: never returns."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        wrote = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        exchanged = event == "ctypes.dlsym" and "renameat2" in arguments
        if wrote or exchanged or event in CHANGES:
            if count == order["at"]:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.addaudithook(hook)
    status = 1
    try:
        build(Path(order["model"]), Path(order["output"]), **order["flags"])
        status = 0
    finally:
        os.write(writer, str(count).encode())
        os._exit(status)


if __name__ == "__main__":
    main()
