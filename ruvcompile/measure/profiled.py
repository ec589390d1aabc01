"""Measure a stage on this machine by `ruvrun profile`, in a process of its own.

The runtime measures, here as on a node that has no compiler: one code writes every table. A process of its own has a
memory of its own, whose growth can be told, its own cores, and no tables of a compiler in its caches. What goes wrong
there is raised here as what it is.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ruvcompile.errors import MachineError, RuvError
from ruvcompile.progress import Progress
from ruvrun.costs import CostTable, load_costs
from ruvrun.errors import how_it_ended, parse_error
from ruvrun.executors.forms import CPU, VARIABLE

_STEP = re.compile(r"[a-z]+ \d+/\d+")
_LAST_WORDS = 12
BRIEF_S = "2"


def profile_stage(
    directory: Path,
    file: Path,
    *,
    threads: int,
    beside: int,
    model: str,
    progress: Progress,
    rows: int = 0,
    brief: bool = False,
    elsewhere: bool = False,
) -> CostTable:
    """The cost rows of the stage in ``directory``.

    Args:
        directory: a bundle with its sheet.
        file: where the table may be written; it goes away again.
        threads: of the stage.
        beside: how many such stages work at the same time, this one included.
        model: name of the program.
        progress: gets what is worth a person's attention.
        rows: of a decoder's largest step, where they are more than are measured anyway.
        brief: as for a second back end (``ruvrun.profile.conditions``): overheads tell the bytes of a process alone.
        elsewhere: it is for another machine, so one for a GPU or an NPU is run on the CPU, whatever is here.

    Raises:
        RuvError: as `ruvrun profile` told it.
    """
    command = [
        *(("env", f"{VARIABLE}={CPU}") if elsewhere else ()),
        *(sys.executable, "-P", "-m", "ruvrun", "profile", str(directory), "--role", "child", "--json", "-q"),
        *("--threads", str(threads), "--beside", str(beside), "--model", model, "-o", str(file)),
        *(("--rows", str(rows)) if rows else ()),
        *(("--brief", "--seconds", BRIEF_S) if brief else ()),
    ]
    file.unlink(missing_ok=True)
    said: deque[str] = deque(maxlen=_LAST_WORDS)
    with progress.step("measure") as bar, _started(command) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stderr:
            if _STEP.fullmatch(line.strip()):
                bar.advance()
            else:
                said.append(line.rstrip())
        told = process.stdout.read()
        code = process.wait()
    if code != 0:
        raise _failed(code, list(said))
    for note in json.loads(told)["notes"]:
        progress.note(note)
    table = load_costs(file)
    file.unlink()
    return table


@contextlib.contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The process, which ends with us: when its standard input does."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def _failed(code: int, said: list[str]) -> RuvError:
    """What the process said of its end, as the error it was."""
    for line in reversed(said):
        if (told := parse_error(line)) is not None:
            return told
    return MachineError(
        "profile-died",
        f"the process that measures ended: {how_it_ended(code)}",
        context=said,
        hint="if nobody did that, the kernel may have, for lack of memory",
    )
