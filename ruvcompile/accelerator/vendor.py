"""The vendor's compiler: whether it is installed here, and its commands, run one after the other."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ruvcompile.errors import FitError
from ruvcompile.targets import Accelerator
from ruvrun.scratch import scratch_folder, write_whole

_LAST = 12
"""Lines of what a command said that are told when it fails."""


def installed(accelerator: Accelerator) -> bool:
    """Whether the vendor's command is here."""
    return shutil.which(accelerator.command) is not None


def compile_parts(
    folder: Path,
    commands: Mapping[str, Sequence[str]],
    accelerator: Accelerator,
    done: Callable[[], object] = lambda: None,
) -> list[str]:
    """Run the commands of every part; the names of the files that they made, which appear in ``folder`` at the end.

    They run beside copies of the parts, and get no terminal: one that asks a question gets no answer, and fails.

    Raises:
        FitError: ``accelerator-refuses``: a command failed, with the last that it said, or made nothing.
    """
    made = []
    with scratch_folder("ruvcompile") as work:
        for part, lines in commands.items():
            shutil.copyfile(folder / f"{part}.onnx", work / f"{part}.onnx")
            for line in lines:
                _run(line, work, f"{accelerator.compiler} does not take {part}")
            result = accelerator.result.replace("{part}", part)
            if not (work / result).is_file():
                raise _refused(f"{accelerator.compiler} made no {result}", lines[-1], [])
            made.append(result)
            done()
        for result in made:
            write_whole(folder / result, (work / result).read_bytes())
    return made


def _run(line: str, work: Path, failed: str) -> None:
    try:
        ran = subprocess.run(
            shlex.split(line),
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:  # a step may name another command than the one that was looked for
        raise _refused(failed, line, [str(error)]) from None
    if ran.returncode:
        told = [text for text in ran.stdout.splitlines() if text.strip()][-_LAST:]
        raise _refused(failed, line, told)


def _refused(what: str, line: str, told: Sequence[str]) -> FitError:
    hint = "its documentation tells what it takes; or build for a target without the accelerator"
    return FitError("accelerator-refuses", what, context=[line, *told], hint=hint)
