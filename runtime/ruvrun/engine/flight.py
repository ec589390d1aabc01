"""A Step in the ring, and what of it may come back."""

from __future__ import annotations

import msgspec

from ruvrun import frames
from ruvrun.engine.sequence import Sequence
from ruvrun.errors import IntegrityError


class Flight(msgspec.Struct, frozen=True):
    """A Step in the ring: its number, the sequences it will bring tokens for, in order, and whether it decodes; then
    those whose next tokens are known, so that it brings none for them.
    """

    step: int
    due: tuple[Sequence, ...]
    decode: bool
    known: tuple[Sequence, ...] = ()


def check_result(message: frames.Sampled, epoch: int, flight: Flight | None) -> dict[int, frames.Scores]:
    """Whether ``message`` is the result of ``flight``, the oldest Step in the ring; the scores in it, by sequence.

    Raises:
        IntegrityError: it is the result of another step, or names other sequences than the step did.
    """
    if flight is None or message.step != flight.step or message.epoch != epoch:
        raise _not_expected(message, f"{epoch}/{flight.step}" if flight else "none")
    due = flight.due
    scores = {name: each[0] for name, each in message.scores if len(each) == 1} if message.scores else {}
    fits = len(message.tokens) == len(due)
    for sequence, (name, tokens) in zip(due, message.tokens, strict=False):
        if name != sequence.name or len(tokens) != 1 or tokens[0] < 0 or (name in scores) is not sequence.scored:
            fits = False
    if not fits:
        raise _not_expected(message, f"one token for each of {[sequence.name for sequence in due]}")
    return scores


def _not_expected(message: frames.Sampled, expected: str) -> IntegrityError:
    return IntegrityError(
        "ring-out-of-step",
        f"the last stage returned step {message.epoch}/{message.step}, which does not fit what was sent",
        context=[f"it names {[name for name, _ in message.tokens]}; expected: {expected}"],
        hint="all nodes must run the same build; restart the stage",
    )
