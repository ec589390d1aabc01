"""Bytes to the messages of a link (``messages``) and their tensors (``values``), and back.

A frame is a list of parts, because that is what a ZeroMQ socket sends without gluing anything together::

    part 0    msgpack of [message, [[name, dtype, shape, bytes or nil], ...]]
    part 1..  the raw bytes of each tensor that has nil there, in that order, little-endian, without padding

**Messages** are arrays whose first item is the kind (``step``, ``sampled``, ...), so a step of one sequence is some
twenty bytes. The decoder is generated from their types: what it returns has the right kinds of values in the right
places, and anything else is a ``FrameError``. A struct may grow by fields with defaults at its end: an older reader
skips them, an older writer leaves them out. Nor does another code of a value need a new number: only builds that have
such values send it, and who does not know it refuses it. Anything more is a new ``PROTOCOL``.

**Tensors** of numbers are never serialised. Those of a decoding step are some kilobytes and ride in the header: every
part is encrypted and handed over by itself, which costs more than copying them. Of larger ones ``encode`` hands out
views of the arrays, ``decode`` makes arrays that are views of the parts; both cost a few microseconds whatever the
size.

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
from ruvrun.frames.messages import Ask as Ask
from ruvrun.frames.messages import Close as Close
from ruvrun.frames.messages import Counters as Counters
from ruvrun.frames.messages import Failed as Failed
from ruvrun.frames.messages import Hello as Hello
from ruvrun.frames.messages import Message as Message
from ruvrun.frames.messages import Open as Open
from ruvrun.frames.messages import Refused as Refused
from ruvrun.frames.messages import Ring as Ring
from ruvrun.frames.messages import Run as Run
from ruvrun.frames.messages import Sampled as Sampled
from ruvrun.frames.messages import Sampling as Sampling
from ruvrun.frames.messages import Scores as Scores
from ruvrun.frames.messages import SeqStep as SeqStep
from ruvrun.frames.messages import State as State
from ruvrun.frames.messages import Step as Step
from ruvrun.frames.messages import Welcome as Welcome
from ruvrun.frames.values import CODES, SEQUENCE, describe, length, view
from ruvrun.frames.values import Buffer as Buffer
from ruvrun.frames.values import FrameError as FrameError
from ruvrun.frames.values import size as size

LARGEST_HEADER = 1 << 20
LARGEST_INSIDE = 76 << 10  # of all tensors in a header together, however many cross a cut

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
