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
from ruvcompile.fleet import HOST
from ruvcompile.measure.terms import Terms
from ruvrun.backends import CPU
from ruvrun.costs import CostTable, load_costs
from ruvrun.errors import how_it_ended, parse_error
from ruvrun.executors.openvino.forms import VARIABLE

_STEP = re.compile(r"[a-z]+ \d+/\d+")
_LAST_WORDS = 12
BRIEF_S = "2"


def profile_stage(directory: Path, terms: Terms, *, model: str) -> CostTable:
    """The cost rows of the stage in ``directory``.

    One for a GPU or an NPU whose rows are no more than what another machine's are scaled from, those of ``host``, is
    run on the CPU, whatever is here.

    Args:
        directory: a bundle with its sheet.
        terms: on which it is measured.
        model: name of the program.

    Raises:
        RuvError: as `ruvrun profile` told it.
    """
    file, progress = terms.scratch / "measured.toml", terms.progress
    command = [
        *(("env", f"{VARIABLE}={CPU}") if terms.target == HOST else ()),
        *(sys.executable, "-P", "-m", "ruvrun", "profile", str(directory), "--role", "child", "--json", "-q"),
        *("--threads", str(terms.threads), "--beside", str(terms.beside), "--model", model, "-o", str(file)),
        *(("--rows", str(terms.rows)) if terms.rows else ()),
        *(("--brief", "--seconds", BRIEF_S) if terms.brief else ()),
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
