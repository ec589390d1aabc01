"""What travels on a link, as nouns; and bytes to messages and back.

PLACEHOLDER ESSAY: written by the owner of this file.
"""

from __future__ import annotations

import msgspec


class SeqStep(msgspec.Struct, frozen=True, array_like=True):
    """One sequence's part of a step: ``count`` tokens from ``position`` on, in key/value ``slot``.

    ``rows`` is 1 where the last stage shall sample after the last of these tokens, else 0.
    """

    id: int
    slot: int
    position: int
    count: int
    rows: int


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How the last stage picks tokens. ``temperature`` 0 is greedy; ``seed`` is always explicit."""

    temperature: float
    top_p: float
    seed: int


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Announces a sequence: what sampling needs, once, before its first step."""

    epoch: int
    step: int
    id: int
    sampling: Sampling


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """Ends a sequence: stages forget what they hold of it."""

    epoch: int
    step: int
    id: int


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """One pass through the ring. Tensors follow: ``input_ids`` to stage 0, the cut tensors after that."""

    epoch: int
    step: int
    seqs: tuple[SeqStep, ...]


class Sampled(msgspec.Struct, frozen=True, array_like=True, tag="sampled"):
    """What a step returns to the head: for each sequence with ``rows``, its accepted token ids."""

    epoch: int
    step: int
    tokens: tuple[tuple[int, tuple[int, ...]], ...]


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """One call of a graph pipeline. Tensors follow; on the way back to the head they are the outputs."""

    epoch: int
    step: int
    id: int


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
    """The answer to ``Hello`` when they do not, or a node that cannot serve; ``why`` is one sentence."""

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
    median ms of a step, peak resident bytes of the process.
    """

    node: str
    busy: float
    wait: float
    steps: int
    wire_bytes: int
    step_ms: float
    peak_rss_bytes: int


Ring = Open | Close | Step | Run
Message = Ring | Sampled | Hello | Welcome | Refused | State | Failed | Ask | Counters
