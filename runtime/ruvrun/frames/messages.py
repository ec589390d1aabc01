"""What travels on a link, as nouns: first what goes round the ring, then what links and stages say of themselves.

Which of them may come when is ``session.py``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Block = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class SeqStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sequence's part of a step: ``count`` tokens from ``position`` on, in key/value ``slot``.

    ``rows`` is 1 where the last stage shall sample after the last of these tokens, else 0. ``blocks`` are those that it
    is given beside those it has, where space is in blocks.
    """

    id: int
    slot: int
    position: int
    count: int
    rows: int
    blocks: tuple[_Block, ...] = ()


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How the last stage picks tokens. ``temperature`` 0 is greedy; ``seed`` is always explicit.

    ``top_k`` 0 is all. ``logit_bias`` names a token once. ``logprobs`` -1 is none; otherwise the log-probability of the
    token is wanted, and so many of the most likely ones.
    """

    temperature: float
    top_p: float
    seed: int
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[_TokenId, float], ...] = ()
    logprobs: int = -1


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Announces a sequence: what sampling needs, once, before its first step.

    ``prompt`` and ``generated`` are for penalties: the tokens it has by now (``engine/sampling/history.py``). It begins
    in ``slot`` with the first ``count`` positions of what is in slot ``source``, where that is any; where space is in
    blocks, ``blocks`` are its first, and these positions are in them.
    """

    epoch: int
    step: int
    id: int
    sampling: Sampling
    prompt: bytes = b""
    generated: tuple[tuple[_TokenId, int], ...] = ()
    slot: int = -1
    source: int = -1
    count: int = 0
    blocks: tuple[_Block, ...] = ()


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """Ends a sequence: stages forget what they hold of it."""

    epoch: int
    step: int
    id: int


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="step"):
    """One pass through the ring. Tensors follow: ``input_ids`` to stage 0, the cut tensors after that."""

    epoch: int
    step: int
    seqs: tuple[SeqStep, ...]


class Scores(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities (natural, of the raw logits): of the token that was picked, and of the most likely ones."""

    picked: float
    top: tuple[tuple[_TokenId, float], ...] = ()


class Sampled(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="sampled"):
    """What a step returns to the head: for each sequence with ``rows``, its accepted token ids; and for those that
    want them, in the same order, the log-probabilities of each of these.
    """

    epoch: int
    step: int
    tokens: tuple[tuple[int, tuple[_TokenId, ...]], ...]
    scores: tuple[tuple[int, tuple[Scores, ...]], ...] = ()


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """One call of a graph pipeline. Tensors follow; on the way back to the head they are the outputs. A call whose
    inputs a stage's back end ``refused`` passes the rest of the ring as it is, without tensors, and ends alone.
    """

    epoch: int
    step: int
    id: int
    refused: str = ""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Opens a link: who connects, as what (``head`` or ``stage``), with which build and software."""

    protocol: int
    manifest: str
    node: str
    role: str
    software: str


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The answer to ``Hello`` when protocol and manifest agree."""

    protocol: int
    manifest: str
    node: str
    software: str


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The answer to ``Hello`` when they do not agree, and to whatever may not come on an open link, which ends it;
    ``why`` is one sentence.
    """

    node: str
    why: str


class State(msgspec.Struct, frozen=True, array_like=True, tag="state"):
    """A stage tells the head what it is doing: ``waiting``, ``loading``, ``ready`` or ``refused``, and why."""

    node: str
    state: str
    why: str


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A stage could not run a step; what it held of that epoch is gone. Sent to the head."""

    epoch: int
    step: int
    node: str
    why: str


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """The head asks a stage for its counters (``reset`` starts them anew)."""

    reset: bool


class Counters(msgspec.Struct, frozen=True, array_like=True, tag="counters"):
    """A stage's counters since the last reset: seconds busy, seconds waiting between steps, steps, bytes sent,
    median ms of a step, peak resident bytes of the process, median CPU ms of the thread in a step.
    """

    node: str
    busy: float
    wait: float
    steps: int
    wire_bytes: int
    step_ms: float
    peak_rss_bytes: int
    own_ms: float = 0.0


Ring = Open | Close | Step | Run
Message = Ring | Sampled | Hello | Welcome | Refused | State | Failed | Ask | Counters
