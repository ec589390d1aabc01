"""What travels on a link, as nouns; and bytes to messages and back.

A frame is a list of parts, because that is what a ZeroMQ socket sends without gluing anything together::

    part 0    msgpack of [message, [[name, dtype, shape, bytes or nil], ...]]
    part 1..  the raw bytes of each tensor that has nil there, in that order, little-endian, without padding

**Messages** are arrays whose first item is the kind (``step``, ``sampled``, ...), so a step of one sequence is some
twenty bytes. The decoder is generated from the types below: what it returns has the right kinds of values in the
right places, and anything else is a ``FrameError``. A struct may grow by fields with defaults at its end: an older
reader skips them, an older writer leaves them out. Anything more than that is a new ``PROTOCOL``.

**Tensors** are never serialised. Those of a decoding step are a few kilobytes and ride in the header: every part is
encrypted and handed over by itself, which costs more than copying them. Of larger ones ``encode`` hands out views of
the arrays, ``decode`` makes arrays that are views of the parts; both cost a few microseconds whatever the size. Element
types are those of a short list, spelt with their byte order (``<f4``); a name outside the list is refused, so nothing a
peer writes ever becomes an object.

**Trust.** Whoever sends has shown a key of the fleet, but a wrong build, a bug or a flipped bit must end in an error.
A header's claim is held against the part that is there and never against hope: an array is a view or it is refused,
so that a claim of a petabyte allocates nothing.

No I/O happens here, and no state is kept; which message may come when is ``session.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ruvrun.errors import IntegrityError

Array = npt.NDArray[Any]
Buffer = bytes | bytearray | memoryview

LARGEST_HEADER = 1 << 20
LARGEST_INSIDE = 1 << 15  # of all tensors in a header together, however many cross a cut
_MOST_AXES = 16


class FrameError(IntegrityError):
    """What came is not a frame, or what shall go cannot be one."""

    def __init__(self, what: str) -> None:
        super().__init__("frame-wrong", what, hint="all nodes must run the same build and version")

    def __reduce__(self) -> Any:
        return FrameError, (self.message,)


_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


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
    tokens: tuple[tuple[int, tuple[_TokenId, ...]], ...]


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


_CODES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
_DTYPES = {code: np.dtype(code) for code in _CODES}
_Axis = Annotated[int, msgspec.Meta(ge=0)]


class _Header(msgspec.Struct, frozen=True, array_like=True):
    message: Message
    tensors: tuple[tuple[str, str, tuple[_Axis, ...], bytes | None], ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)
NO_TENSORS: Mapping[str, Array] = {}


def encode(message: Message, tensors: Mapping[str, Array] = NO_TENSORS) -> list[Buffer]:
    """The parts of a frame: a header with the small tensors, and the bytes of each large one as a view of the array,
    which must not change until the parts are sent. One that is not contiguous or not little-endian is copied.

    Raises:
        FrameError: an array of a type that does not travel (strings, objects).
    """
    if not tensors:
        return [_encoder.encode((message, ()))]
    described = []
    room = LARGEST_INSIDE
    parts: list[Buffer] = [b""]
    for name, array in tensors.items():
        dtype = array.dtype.str
        if dtype not in _DTYPES or not array.flags.c_contiguous:
            array = _plain(name, array)
            dtype = array.dtype.str
        inside = array.nbytes <= room
        described.append((name, dtype, array.shape, array.tobytes() if inside else None))
        if inside:
            room -= array.nbytes
        else:
            parts.append(array.data)
    parts[0] = _encoder.encode((message, described))
    return parts


def decode(parts: Sequence[Buffer]) -> tuple[Message, dict[str, Array]]:
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
    tensors: dict[str, Array] = {}
    told = 0
    for name, code, shape, inside in header.tensors:
        if inside is not None:
            tensors[name] = _view(name, code, shape, inside)
            continue
        told += 1
        if told < len(parts):
            tensors[name] = _view(name, code, shape, parts[told])
    if told != len(parts) - 1:
        raise FrameError(f"{len(parts) - 1} tensors came where the header tells of {told}")
    if len(tensors) != len(header.tensors):
        raise FrameError("two tensors of one name")
    return header.message, tensors


def size(parts: Sequence[Buffer]) -> int:
    """Bytes of all parts."""
    total = 0
    for part in parts:
        total += part.nbytes if isinstance(part, memoryview) else len(part)
    return total


def _view(name: str, code: str, shape: tuple[int, ...], part: Buffer) -> Array:
    dtype = _DTYPES.get(code)
    if dtype is None or len(shape) > _MOST_AXES:
        raise FrameError(f"tensor {_shown(name)} of type {_shown(code)} with {len(shape)} axes")
    try:
        array: Array = np.ndarray(shape, dtype, part)  # refuses a part that is too short, and allocates nothing
    except (ValueError, TypeError, OverflowError):
        array = _NOTHING
    there = part.nbytes if isinstance(part, memoryview) else len(part)
    if array.nbytes != there or array is _NOTHING:
        raise FrameError(f"tensor {_shown(name)} is said to be {code} {list(shape)}, but {there} bytes came")
    # A part may begin anywhere in a receive buffer; kernels want an element on a multiple of its size.
    return array if array.flags.aligned else array.copy()


def _shown(name: str) -> str:
    """What a peer wrote, for a message that ends in a log."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


def _plain(name: str, array: Array) -> Array:
    """The same values, contiguous and little-endian."""
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    if plain.dtype.str not in _DTYPES:
        raise FrameError(f"tensor {name} is of type {array.dtype}, which does not travel")
    return plain


_NOTHING: Array = np.empty(0, np.uint8)
