"""What the inputs of exported models usually look like: guesses, to be proved by running the model.

Each open dimension is of a kind, told by the input's name, type and rank and by the dimension's own name. A
kind has sizes to try, the likeliest first. A dimension name that occurs in several inputs is one size. Values
follow the same tables: a mask is ones, a state is zeros, ids stay below the table they look up.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ruvrun.elements import Array, bits_of

SIZES: Mapping[str, tuple[int, ...]] = {
    "batch": (1,),
    "image": (224, 640, 320, 256, 512, 128, 64, 32),
    "channels": (3, 1, 4),
    "audio": (576, 512, 16000, 1536, 1024, 256, 160, 80),
    "past": (0, 16, 1),
    "sequence": (16, 128, 64, 32, 8, 4, 1, 512),
}
"""Sizes to try for an open dimension of each kind."""

RATES = (16000, 8000, 44100)
"""Sampling rates to try for an integer that is named like one."""

INTEGERS = ("random in 0..1", "all 0", "all 1")
"""Values to try for an integer input about which nothing else is known."""

_CHANNELS = (1, 3, 4)
_RATE = re.compile(r"(^|_)(sr|sample_?rate|sampling_?rate)$", re.IGNORECASE)
_AUDIO = re.compile(r"audio|wave|speech|sound|signal|pcm", re.IGNORECASE)
_STATE = re.compile(r"state|hidden|cache|past|(^|_)[hc]_?0$", re.IGNORECASE)
_PAST = re.compile(r"past|cache", re.IGNORECASE)


@dataclass(frozen=True)
class Port:
    """An input of the graph: its shape as declared (an unnamed dimension has a name of its own by now).

    ``array`` is what the user gave for it, ``limit`` the size of the table it looks up, 0 for none.
    """

    name: str
    dtype: ir.DataType
    shape: tuple[int | str, ...]
    array: Array | None = None
    limit: int = 0

    @property
    def integer(self) -> bool:
        """Whether it holds whole numbers."""
        return self.dtype.is_integer()


@dataclass(frozen=True)
class Guess:
    """One attempt: a size for every open dimension, a sampling rate, and the values of unknown integers."""

    sizes: Mapping[str, int]
    rate: int
    integers: str


def guesses(ports: Sequence[Port], fixed: Mapping[str, int]) -> Iterator[Guess]:
    """All combinations of the tables above that concern ``ports``, the likeliest first.

    ``fixed`` are sizes of dimension names that are known already.
    """
    kinds = _kinds(ports)
    open_kinds = sorted({kind for name, kind in kinds.items() if name not in fixed})
    tables: list[Sequence[Any]] = [SIZES[kind] for kind in open_kinds]
    tables.append(RATES if any(_is_rate(port) for port in ports) else RATES[:1])
    tables.append(INTEGERS if any(_unknown_integer(port) for port in ports) else INTEGERS[:1])
    indices = itertools.product(*(range(len(table)) for table in tables))
    for chosen in sorted(indices, key=sum):
        *sizes, rate, integers = (table[index] for table, index in zip(tables, chosen, strict=True))
        by_kind = dict(zip(open_kinds, sizes, strict=True))
        yield Guess({**{name: by_kind.get(kind, 0) for name, kind in kinds.items()}, **fixed}, rate, integers)


def values(port: Port, guess: Guess, audio: bool) -> tuple[Array, str]:
    """The array of ``port`` under ``guess``, and how it was chosen, in a few words."""
    shape = tuple(dim if isinstance(dim, int) else guess.sizes[dim] for dim in port.shape)
    random = np.random.default_rng(zlib.crc32(port.name.encode()))
    low = port.name.lower()
    how = "random, normal"
    if "mask" in low or port.dtype == ir.DataType.BOOL:
        array, how = np.ones(shape), "all 1"
    elif port.integer:
        array, how = _integers(port, guess, shape, random)
    elif _STATE.search(port.name):
        array, how = np.zeros(shape), "all 0"
    elif audio and _audio_axis(port) is not None:
        array, how = 0.1 * random.standard_normal(shape), "noise of amplitude 0.1"
    elif _image_axes(port):
        array, how = random.random(shape), "random in 0..1"
    else:
        array = random.standard_normal(shape)
    if port.dtype == ir.DataType.STRING:
        return np.full(shape, "a", object), "all 'a'"
    return bits_of(np.asarray(array, port.dtype.numpy()), port.dtype.numpy().name), how


def looks_like_audio(ports: Sequence[Port]) -> bool:
    """Whether one of the inputs is a sampling rate or is named like a sound."""
    return any(_is_rate(port) or _AUDIO.search(port.name) for port in ports)


def _integers(port: Port, guess: Guess, shape: tuple[int, ...], random: np.random.Generator) -> tuple[Any, str]:
    low = port.name.lower()
    if _is_rate(port):
        return np.full(shape, guess.rate), f"{guess.rate}"
    if "token_type" in low or "segment" in low:
        return np.zeros(shape), "all 0"
    if "position" in low:
        return np.broadcast_to(np.arange(shape[-1] if shape else 1), shape), "0, 1, 2, ..."
    if port.limit:
        return random.integers(0, port.limit, shape), f"random in 0..{port.limit - 1}"
    if port.dtype == ir.DataType.UINT8 and len(shape) > 2:
        return random.integers(0, 256, shape), "random in 0..255"
    if guess.integers == INTEGERS[0]:
        return random.integers(0, 2, shape), guess.integers
    return np.full(shape, INTEGERS.index(guess.integers) - 1), guess.integers


def _kinds(ports: Sequence[Port]) -> dict[str, str]:
    """The kind of every open dimension, by its name; where inputs disagree, a batch is a batch everywhere."""
    audio = looks_like_audio(ports)
    found: dict[str, str] = {}
    for port in ports:
        for axis, dim in enumerate(port.shape):
            if isinstance(dim, str) and found.get(dim) != "batch":
                kind = _kind(port, axis, dim, audio)
                found[dim] = kind if kind == "batch" else found.get(dim, kind)
    return found


def _kind(port: Port, axis: int, dim: str, audio: bool) -> str:
    if "batch" in dim.lower() or (axis == 0 and len(port.shape) > 1):
        return "batch"
    if _PAST.search(port.name):
        return "past"
    if axis in _image_axes(port):
        return "image"
    if len(port.shape) == 4 and axis == 1 and not port.integer:
        return "channels"
    return "audio" if audio and axis == _audio_axis(port) else "sequence"


def _image_axes(port: Port) -> tuple[int, ...]:
    if len(port.shape) != 4 or _STATE.search(port.name):
        return ()
    return (1, 2) if port.shape[3] in _CHANNELS and port.shape[1] not in _CHANNELS else (2, 3)


def _audio_axis(port: Port) -> int | None:
    """The axis along which a sound runs; None for what cannot be one."""
    whole = len(port.shape) <= 2 or (len(port.shape) == 3 and port.shape[1] == 1)
    return len(port.shape) - 1 if port.shape and whole and not port.integer else None


def _is_rate(port: Port) -> bool:
    return port.integer and _RATE.search(port.name) is not None


def _unknown_integer(port: Port) -> bool:
    return port.integer and not port.limit and not _is_rate(port)
