"""Who gets a token of a step on the last stage, and what they get.

It is noted before the back end runs. Behind it caches are cold, and the usual step, all of whose sequences take the
largest logit, touches none of them again: it has ids, looks at the logits, and is done.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from ruvrun.engine.sampling import Room, Sampler, best, pick, score
from ruvrun.frames import Sampled, Scores, Step


class Asked(msgspec.Struct, gc=False):
    """Those with a row in a step, in its order.

    Args:
        ids: of the sequences.
        samplers: their own.
        positions: those that their tokens will have.
        plain: whether all take the largest logit, and want to know no more.
    """

    ids: list[int]
    samplers: list[Sampler]
    positions: list[int]
    plain: bool = True

    def answer(self, message: Step, logits: npt.NDArray[np.float32], room: Room) -> Sampled:
        """A token for each of them.

        Args:
            message: the step.
            logits: ``[rows, vocab]`` float32, a row for each.
            room: the stage's own, where weights are made.

        Raises:
            IntegrityError: a row's largest logit is not a finite number.
        """
        scores: tuple[tuple[int, tuple[Scores]], ...] = ()
        if self.plain:
            tokens = best(logits)
        else:
            tokens = pick(logits, self.samplers, self.positions, room)
            scores = tuple(
                (name, (score(row, token, sampler.sampling.logprobs),))
                for name, row, token, sampler in zip(self.ids, logits, tokens, self.samplers, strict=True)
                if sampler.scores
            )
        return Sampled(message.epoch, message.step, tuple(zip(self.ids, zip(tokens), strict=True)), scores)
