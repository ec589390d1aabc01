"""Every error a user can meet, in one form.

A ``RuvError`` is a sentence for a person plus an exit code for a script::

    error[fleet-memory-short]: stage 1 needs 5.1 GiB on pi-1, which has 3.6 GiB usable
      weights 4.2 GiB, key/value 0.6 GiB (4 streams x 4096 tokens), runtime 0.3 GiB
      hint: add a node, lower --context, or use --quant int2

The tree, and the exit code of each branch::

    RuvError
    ├── UsageError        2  flags, an unknown target or node name
    ├── InputError        3  model, manifest, configuration, a missing file or bundle
    ├── FitError          4  does not fit, or no plan is possible
    ├── IntegrityError    5  verification failed, or a bundle is not what it says it is
    ├── UnreachableError  6  a node or the service cannot be reached
    └── MachineError      7  the machine refuses: permission, disk, port

Anything else that escapes is our own bug: exit code 1, with a traceback. Only ``cli`` prints and exits;
everything below raises. A process of ours tells its error to the one that started it as a line of JSON, and is
raised there as what it was.
"""

from __future__ import annotations

import difflib
import errno
import json
import signal
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

REFUSALS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOTDIR, errno.ELOOP),
    *(errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE),
)
"""What an ``OSError`` says when the machine refuses, and the fault is not ours."""

UNREAD = 128 + signal.SIGPIPE
"""The exit code where whoever read the output has gone: that of a program which SIGPIPE ends, as it does most."""

_CONTROLS = {code: ascii(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0))}


class RuvError(Exception):
    """A failure that is not our bug, told in the one form every command uses.

    Args:
        ref: stable kebab-case name of the kind of failure, for scripts and for searching.
        message: one sentence without a full stop, naming the thing that is wrong.
        context: lines of detail, each printed indented.
        hint: what to do about it; ``None`` only where there is truly nothing to say.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, ref: str, message: str, *, context: Sequence[str] = (), hint: str | None) -> None:
        super().__init__(message)
        self.ref = ref
        self.message = message
        self.context = tuple(context)
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"error[{self.ref}]: {_harmless(self.message)}"]
        lines += [f"  {_harmless(line)}" for each in self.context for line in each.splitlines()]
        if self.hint:
            lines.append(f"  hint: {_harmless(self.hint)}")
        return "\n".join(lines)

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.ref, self.message, self.context, self.hint)

    def to_dict(self) -> dict[str, Any]:
        """The ``--json`` form: ``{"error": {"ref", "message", "context", "hint", "exit_code"}}``."""
        return {
            "error": {
                "ref": self.ref,
                "message": self.message,
                "context": list(self.context),
                "hint": self.hint,
                "exit_code": self.exit_code,
            }
        }


class UsageError(RuvError):
    """The command line or a name on it is wrong."""

    exit_code = 2


class InputError(RuvError):
    """A model, manifest or configuration file is missing or not what it should be."""

    exit_code = 3


class FitError(RuvError):
    """It does not fit, or no plan satisfies what was asked."""

    exit_code = 4


class IntegrityError(RuvError):
    """Something is not what it says it is, or a result is not what it must be."""

    exit_code = 5


class UnreachableError(RuvError):
    """A node or the service does not answer."""

    exit_code = 6


class MachineError(RuvError):
    """This machine refuses: no permission, no space, a port that is taken."""

    exit_code = 7


def kind_of(exit_code: int) -> type[RuvError] | None:
    """The kind of failure that a command of ours tells by its exit code; None of any other."""
    return _KINDS.get(exit_code)


def parse_error(line: str) -> RuvError | None:
    """The error that a process of ours tells in a line of JSON (``to_dict``), or None for any other line."""
    if not line.startswith(_LINE):
        return None
    try:
        body = json.loads(line)["error"]
        kind = _KINDS[body["exit_code"]]
        return kind(body["ref"], body["message"], context=body["context"], hint=body["hint"])
    except (ValueError, KeyError, TypeError):
        return None


def how_it_ended(code: int) -> str:
    """A process's end in words: ``killed by SIGKILL`` or ``exit code 3``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint for an unknown name: the nearest known one, else the list of all."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(choices)}" if choices else "none are known"


_LINE = '{"error": '
_KINDS: dict[int, type[RuvError]] = {
    kind.exit_code: kind for kind in (UsageError, InputError, FitError, IntegrityError, UnreachableError, MachineError)
}


def _harmless(text: str) -> str:
    """A line as it may go to a terminal: names out of a stranger's file may hold what moves its cursor."""
    return text.translate(_CONTROLS)


def _rebuild(kind: type[RuvError], ref: str, message: str, context: Sequence[str], hint: str | None) -> RuvError:
    return kind(ref, message, context=context, hint=hint)
