"""One sequence: its tokens, how far they were sent, whether one is awaited, and its slot.

**Computed again.** What a stage holds of a sequence can always be computed again, since its tokens are here. So one
that lost it, with a stage or by being put back, goes on as a new object (``afresh``), here or in another engine, before
all who came later. Each position is then computed in the mode in which it was (law 1): the prompt in chunks, and the
tokens that were generated one at a time, without asking for a token until the last of them is sent. Nothing in these
depends on the step before, but they wait for it all the same, and so keep the pace of the others.

The nouns a caller meets are here too: a ``Request`` goes in, ``Token`` or ``Lost`` come out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from ruvrun import frames
from ruvrun.errors import InputError

Finish = Literal["stop", "length"]
NO_SLOT = -1


class Request(msgspec.Struct, frozen=True):
    """What a client wants continued.

    Args:
        id: unique among the requests that are alive; the caller counts.
        prompt: token ids, at least one.
        max_tokens: the most tokens to generate, at least one.
        sampling: how tokens are picked; the seed is explicit.
        eos: tokens that end the answer. They are returned and counted like any other.
    """

    id: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: frames.Sampling
    eos: frozenset[int]


class Token(msgspec.Struct, frozen=True):
    """The next token of request ``id``; ``finish`` says why it is the last one, None where it is not.

    ``stop``: it is one of the request's eos tokens. ``length``: ``max_tokens`` or the context is used up.
    ``scores`` are its log-probabilities, where the request wants them.
    """

    id: int
    token: int
    finish: Finish | None
    scores: frames.Scores | None = None


class Lost(msgspec.Struct, frozen=True):
    """Request ``id`` ended without an answer; ``why`` is a sentence for the client."""

    id: int
    why: str


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way.

    Position *p* holds ``tokens[p]``. Positions below ``sent`` were sent into the ring, and are computed or on
    their way; as frames keep their order, what follows them will find them computed. ``due`` is set while a
    token was asked for and has not returned: then nothing that depends on it can be sent. (Also while a token that is
    known was sent again; see ``engine``.) ``since`` is when
    the sequence last became ready for its next token, in the engine's own count of events. ``decoding`` tells
    whether its prompt was sent and its first token is known, so that it goes on one token at a time.

    ``tokens`` may begin with more than the prompt: a sequence that lost what was computed is resumed as a new object
    that has all tokens of the old one, and is ``behind`` as long as more than the next of them is to be sent. Whatever
    is still under way for the old one is then nobody's. ``losses`` is how often what stages held of it was lost;
    ``passed``, how often others passed it while it waited.

    Where space is in blocks, it has ``room`` for so many positions, and was given ``blocks`` that stages do not know.

    What every step needs of the request is held here, too: its id as ``name``, ``eos``, with how many tokens it is at
    its ``longest``, and whether they are ``scored``. A step finds caches cold, and each object it touches costs.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    slot: int = NO_SLOT
    sent: int = 0
    due: bool = False
    opened: bool = False
    since: int = 0
    decoding: bool = False
    behind: bool = False
    losses: int = 0
    passed: int = 0
    room: int = 0
    blocks: tuple[int, ...] = ()
    name: int = field(init=False)
    eos: frozenset[int] = field(init=False)
    longest: int = field(init=False)
    scored: bool = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.name, self.eos, self.scored = request.id, request.eos, request.sampling.logprobs >= 0
        self.longest = len(request.prompt) + request.max_tokens
        if not self.tokens:
            self.tokens = list(self.request.prompt)

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that were not sent yet."""
        return max(0, len(self.request.prompt) - self.sent)

    @property
    def resumed(self) -> bool:
        """Whether tokens beyond the prompt are known."""
        return len(self.tokens) > len(self.request.prompt)

    def afresh(self, losses: int = 0) -> Sequence:
        """The same tokens, of which stages hold nothing; after so many more losses."""
        return Sequence(self.request, self.tokens, losses=self.losses + losses)

    def accept(self, token: int, context: int, scores: frames.Scores | None = None) -> Token:
        """Take the token that was due; ``context`` is the number of positions a slot holds."""
        assert self.due, "a token came that was not due"
        self.due = False
        self.decoding = True
        tokens = self.tokens
        tokens.append(token)
        have = len(tokens)
        finish: Finish | None = None
        if token in self.eos:
            finish = "stop"
        elif have >= context or have >= self.longest:
            finish = "length"
        return Token(self.name, token, finish, scores)


def check_request(request: Request, context: int) -> None:
    """Whether a request can be served at all in a context of so many positions.

    Raises:
        InputError: the prompt is empty or leaves no room for a token, or no token is asked for.
    """
    if not request.prompt:
        raise InputError("prompt-empty", "the prompt has no tokens", hint="send at least one token")
    if len(request.prompt) + 1 > context:
        raise InputError(
            "prompt-too-long",
            f"the prompt has {len(request.prompt)} tokens, which leaves no room in a context of {context}",
            hint="shorten the prompt, or serve with a larger --context",
        )
    if request.max_tokens < 1:
        raise InputError("max-tokens-wrong", f"max_tokens is {request.max_tokens}", hint="ask for at least one token")
