"""The errors of the compiler: the runtime's tree, and how many problems of one input become one error.

Both distributions report failures in one form with one set of exit codes, so there is one tree; see
``ruvrun.errors``. What the compiler adds is ``raise_all``: a configuration with three mistakes is told about
all three at once, not one per attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from ruvrun.errors import (
    REFUSALS,
    UNREAD,
    FitError,
    InputError,
    IntegrityError,
    MachineError,
    RuvError,
    UnreachableError,
    UsageError,
    did_you_mean,
)


def raise_all(problems: Sequence[RuvError]) -> None:
    """Raise nothing, the one problem, or one error of the first problem's kind that lists them all."""
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    first = problems[0]
    context = [f"{problem.message} ({problem.hint})" if problem.hint else problem.message for problem in problems]
    raise type(first)(first.ref, f"{len(problems)} problems", context=context, hint="correct each of them")


def model_not_finite(path: str) -> InputError:
    """What the model at ``path`` computes is no answer to anything."""
    return InputError(
        "model-not-finite",
        f"what {path} computes on a plain text are no numbers",
        context=["its weights are numbers, and so large that sums of them are none"],
        hint="the training or conversion that wrote it went wrong; get or convert it again",
    )


__all__ = [
    "REFUSALS",
    "UNREAD",
    "FitError",
    "InputError",
    "IntegrityError",
    "MachineError",
    "RuvError",
    "UnreachableError",
    "UsageError",
    "did_you_mean",
    "model_not_finite",
    "raise_all",
]
