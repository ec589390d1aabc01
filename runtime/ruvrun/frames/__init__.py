"""What travels on a link, as nouns; and bytes to messages and back.

A frame is a list of parts, because that is what a ZeroMQ socket sends without gluing anything together::

    part 0    msgpack of [message, [[name, dtype, shape, bytes or nil], ...]]
    part 1..  the raw bytes of each tensor that has nil there, in that order, little-endian, without padding

**Messages** are arrays whose first item is the kind (``step``, ``sampled``, ...), so a step of one sequence is some
twenty bytes. The decoder is generated from the types below: what it returns has the right kinds of values in the
right places, and anything else is a ``FrameError``. A struct may grow by fields with defaults at its end: an older
reader skips them, an older writer leaves them out. Nor does another code of a value (``values.py``) need a new number:
only builds that have such values send it, and who does not know it refuses it. Anything more is a new ``PROTOCOL``.

**Tensors** (``values.py``) of numbers are never serialised. Those of a decoding step are some kilobytes and ride in
the header: every part is encrypted and handed over by itself, which costs more than copying them. Of larger ones
``encode`` hands out views of the arrays, ``decode`` makes arrays that are views of the parts; both cost a few
microseconds whatever the size.

**Trust.** Whoever sends has shown a key of the fleet, but a wrong build, a bug or a flipped bit must end in an error.
A header's claim is held against the part that is there and never against hope: an array is a view or it is refused,
so that a claim of a petabyte allocates nothing.

No I/O happens here, and no state is kept; which message may come when is ``session.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np

from ruvrun.elements import Array as Array
from ruvrun.elements import Value
from ruvrun.frames.values import CODES, SEQUENCE, describe, length, view
from ruvrun.frames.values import Buffer as Buffer
from ruvrun.frames.values import FrameError as FrameError
from ruvrun.frames.values import size as size

LARGEST_HEADER = 1 << 20
LARGEST_INSIDE = 76 << 10  # of all tensors in a header together, however many cross a cut

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


_Axis = Annotated[int, msgspec.Meta(ge=0)]


class _Header(msgspec.Struct, frozen=True, array_like=True):
    message: Message
    tensors: tuple[tuple[str, str, tuple[_Axis, ...], bytes | None], ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)
NO_TENSORS: Mapping[str, Value] = {}


def encode(message: Message, tensors: Mapping[str, Value] = NO_TENSORS) -> list[Buffer]:
    """The parts of a frame: a header with the small tensors, and the bytes of each large one as a view of the array,
    which must not change until the parts are sent. One that is not contiguous or not little-endian is copied.

    Raises:
        FrameError: a value of a type that does not travel (objects other than texts, maps).
    """
    if not tensors:
        return [_encoder.encode((message, ()))]
    described: list[tuple[str, str, tuple[int, ...], bytes | None]] = []
    room = LARGEST_INSIDE
    parts: list[Buffer] = [b""]
    for name, value in tensors.items():
        if isinstance(value, np.ndarray) and (code := CODES.get(value.dtype)) and value.nbytes <= room:  # as usual
            described.append((name, code, value.shape, value.tobytes()))
            room -= value.nbytes
            continue
        for entry, code, shape, data in describe(name, value):
            inside = data.nbytes <= room
            described.append((entry, code, shape, data.tobytes() if inside else None))
            if inside:
                room -= data.nbytes
            else:
                parts.append(data.data)
    parts[0] = _encoder.encode((message, described))
    return parts


def decode(parts: Sequence[Buffer]) -> tuple[Message, dict[str, Value]]:
    """The message of a frame, and its tensors by name, as views of ``parts``.

    Raises:
        FrameError: the parts are not what ``encode`` makes.
    """
    if not parts:
        raise FrameError("a frame without a header")
    if len(parts[0]) > LARGEST_HEADER:
        raise FrameError(f"a header of {len(parts[0])} bytes")
    try:
        header = _decoder.decode(parts[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a header that cannot be read: {error}") from None
    tensors: dict[str, Value] = {}
    if not header.tensors and len(parts) == 1:
        return header.message, tensors
    told = 0
    for entry in header.tensors:
        told += entry[3] is None
    if told != len(parts) - 1:
        raise FrameError(f"{len(parts) - 1} tensors came where the header tells of {told}")
    rest = iter(parts[1:])
    sequence: list[Value] = []
    missing = 0
    for name, code, shape, inside in header.tensors:
        data = next(rest) if inside is None else inside
        if missing:
            sequence.append(view(name, code, shape, data))
            missing -= 1
            continue
        if name in tensors:
            raise FrameError("two tensors of one name")
        if code == SEQUENCE:
            sequence, missing = [], length(name, shape, data)
            tensors[name] = sequence
        else:
            tensors[name] = view(name, code, shape, data)
    if missing:
        raise FrameError(f"a sequence that lacks {missing} of its tensors")
    return header.message, tensors
