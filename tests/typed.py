"""What the texts tell a person to type, and a desk to type it at."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXTS = ("README.md", "runtime/README.md", *(str(path.relative_to(ROOT)) for path in ROOT.glob("examples/*/README.md")))
PROGRAMS = ("./", "python", "pip ", "ruvcompile ", "ruvrun ", "curl ", "sudo ")
ROOMS = ("aipc_fleet", "own_graph", "pi_cluster")
"""The examples with machines."""

SECONDS = 600.0


def blocks(text: str) -> list[list[str]]:
    """The indented blocks of a text in Markdown, line by line, without their indentation."""
    found = re.findall(r"(?:^    .*\n)+", (ROOT / text).read_text("utf-8"), re.MULTILINE)
    return [[line[4:] for line in block.splitlines()] for block in found]


def commands(text: str) -> list[str]:
    """The commands in these blocks, in order; what stands behind one, two spaces away, is said of it."""
    found = []
    for block in blocks(text):
        if not block[0].startswith(PROGRAMS):
            continue
        typed = ""
        for line in block:
            typed = f"{typed}\n{line}" if typed else line.partition("  ")[0]
            try:
                shlex.split(typed)
            except ValueError:  # a quotation goes on in the next line
                continue
            found.append(typed)
            typed = ""
        assert not typed, f"{text}: {typed} does not end"
    return found


class Desk:
    """A folder in which commands are typed as the texts have them; only what listens has another port.

    ``programs`` is where the commands are looked for first.
    """

    def __init__(self, folder: Path, programs: Path, **environment: str) -> None:
        self.folder = folder
        self.programs = programs
        self.environment = {**os.environ, **environment}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def type(self, line: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Type a command and wait for its end; it must be as expected."""
        done = subprocess.run(
            ["bash", "-c", line.replace(":8000", f":{self.port}")],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == code, (line, done.stdout, done.stderr)
        return done

    @contextmanager
    def serving(self, line: str) -> Iterator[None]:
        """Type a command that serves, wait until it is ready, and end it as Ctrl-C does."""
        log = self.folder / "served"
        with log.open("wb") as said:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line} --port {self.port}"],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                process_group=0,
            )
        try:
            until = time.monotonic() + SECONDS
            while f"ready: http://127.0.0.1:{self.port}" not in log.read_text():
                assert process.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(60)

    def _environment(self) -> dict[str, str]:
        return {**self.environment, "PATH": f"{self.programs}:{os.environ['PATH']}"}
