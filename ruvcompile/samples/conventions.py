"""What the inputs of exported models usually look like: guesses, to be proved by running the model.

Each open dimension is of a kind, told by its own name (``batch``, ``seq_len``, ``height``), else by the name, type
and rank of the input it is of. A kind has sizes to try, the likeliest first; a size that the user gave for one of
its dimensions comes before those. A dimension name that occurs in several inputs is one size, and one that is a sum
or a product of others (``past + 1``) is computed. Values follow the same conventions: a mask is ones, a state is
zeros, ids stay below the table they look up, lengths are those of what they count.
"""

from __future__ import annotations

import itertools
import math
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
    "latent": (64, 32, 128),
    "channels": (3, 1, 4),
    "features": (80, 64, 128, 40),
    "audio": (576, 512, 16000, 1536, 1024, 256, 160, 80),
    "past": (0, 16, 1),
    "sequence": (16, 128, 64, 32, 8, 4, 1, 512, 3000),
}
"""Sizes to try for an open dimension of each kind."""

RATES = (16000, 8000, 44100)
"""Sampling rates to try for an integer that is named like one."""

INTEGERS = ("random in 0..1", "all 0", "all 1")
"""Values to try for an integer input about which nothing else is known."""

MASKS = (1, 0)
"""What a mask is filled with: of most the ones are looked at, of some (``key_padding_mask``) the noughts."""

_CHANNELS = (1, 3, 4)
_RATE = re.compile(r"(^|_)(sr|sample_?rate|sampling_?rate)$", re.IGNORECASE)
_AUDIO = re.compile(r"audio|wave|speech|sound|signal|pcm|^input_values$", re.IGNORECASE)
_STATE = re.compile(r"state|hidden|cache|past|(^|_)[hc](_?0|_in)?$", re.IGNORECASE)
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_LATENT = re.compile(r"latent|^sample$", re.IGNORECASE)
_FEATURES = re.compile(r"feature|fbank|mel|spec", re.IGNORECASE)
_LENGTH = re.compile(r"(^|_)(len|lens|lengths?|seqlens?|frames)$", re.IGNORECASE)
_BY_DIMENSION = {
    kind: re.compile(words, re.IGNORECASE)
    for kind, words in {
        "past": r"past|cache",
        "batch": r"batch|^bs$",
        "features": r"feature|mel|bins",
        "image": r"height|width|^[hw]$",
        "channels": r"channel|^c$",
        "sequence": r"seq|len|time|frame|token|step|^[stl]$",
    }.items()
}
_RUNNING = ("sequence", "audio")


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
    """One attempt: a size for every open dimension, a sampling rate, what masks hold, and unknown integers.

    ``length`` is the size of the axis along which a sequence or a sound runs; 0 where there is none.
    """

    sizes: Mapping[str, int]
    rate: int
    integers: str
    mask: int = 1
    length: int = 0


def guesses(ports: Sequence[Port], fixed: Mapping[str, int]) -> Iterator[Guess]:
    """All combinations of the tables above that concern ``ports``, the likeliest first.

    Args:
        ports: as declared, also those for which an array or a size was given.
        fixed: sizes of dimension names that are known already.
    """
    kinds = dimension_kinds(ports)
    unknown = {name: kind for name, kind in kinds.items() if name not in fixed and _terms(name) is None}
    open_kinds = sorted(set(unknown.values()))
    tables: list[Sequence[Any]] = []
    for kind in open_kinds:
        given = [size for name, size in fixed.items() if kinds.get(name) == kind]
        tables.append(list(dict.fromkeys((*given, *SIZES[kind]))))
    tables.append(RATES if any(_is_rate(port) for port in ports) else RATES[:1])
    tables.append(INTEGERS if any(_unknown_integer(port) for port in ports) else INTEGERS[:1])
    tables.append(MASKS if any(_is_mask(port) for port in ports) else MASKS[:1])
    indices = itertools.product(*(range(len(table)) for table in tables))
    for chosen in sorted(indices, key=sum):
        *sizes, rate, integers, mask = (table[index] for table, index in zip(tables, chosen, strict=True))
        by_kind = dict(zip(open_kinds, sizes, strict=True))
        known = {**{name: by_kind[kind] for name, kind in unknown.items()}, **fixed}
        every = {name: known.get(name, _computed(name, known)) for name in kinds}
        yield Guess(every, rate, integers, mask, _length(ports, kinds, every))


def dimension_kinds(ports: Sequence[Port]) -> dict[str, str]:
    """The kind of every open dimension, by its name; where inputs disagree, a batch is a batch everywhere."""
    audio = looks_like_audio(ports)
    found: dict[str, str] = {}
    for port in ports:
        for axis, dim in enumerate(port.shape):
            if isinstance(dim, str) and found.get(dim) != "batch":
                kind = _kind(port, axis, dim, audio)
                found[dim] = kind if kind == "batch" else found.get(dim, kind)
    return found


def values(port: Port, guess: Guess, audio: bool) -> tuple[Array, str]:
    """The array of ``port`` under ``guess``, and how it was chosen, in a few words."""
    shape = tuple(dim if isinstance(dim, int) else guess.sizes[dim] for dim in port.shape)
    random = np.random.default_rng(zlib.crc32(port.name.encode()))
    how = "random, normal"
    if _is_mask(port):
        array, how = np.full(shape, guess.mask), f"all {guess.mask}"
    elif port.integer:
        array, how = _integers(port, guess, shape, random)
    elif looks_like_state(port.name):
        array, how = np.zeros(shape), "all 0"
    elif audio and _audio_axis(port) is not None:
        array, how = 0.1 * random.standard_normal(shape), "noise of amplitude 0.1"
    elif _image_axes(port) and not _LATENT.search(port.name):
        array, how = random.random(shape), "random in 0..1"
    else:
        array = random.standard_normal(shape)
    if port.dtype == ir.DataType.STRING:
        return np.full(shape, "1", object), "all '1'"  # which a Cast to a number takes, too
    return bits_of(np.asarray(array, port.dtype.numpy()), port.dtype.numpy().name), how


def looks_like_audio(ports: Sequence[Port]) -> bool:
    """Whether one of the inputs is a sampling rate or is named like a sound."""
    return any(_is_rate(port) or _AUDIO.search(port.name) for port in ports)


def looks_like_state(name: str) -> bool:
    """Whether an input of this name takes what an earlier call left behind."""
    return _STATE.search(name) is not None


def _integers(port: Port, guess: Guess, shape: tuple[int, ...], random: np.random.Generator) -> tuple[Any, str]:
    low = port.name.lower()
    if _is_rate(port):
        return np.full(shape, guess.rate), f"{guess.rate}"
    if "token_type" in low or "segment" in low:
        return np.zeros(shape), "all 0"
    if "position" in low and shape:
        return np.broadcast_to(np.arange(shape[-1]) % (port.limit or shape[-1] or 1), shape), "0, 1, 2, ..."
    if port.limit:
        return random.integers(0, port.limit, shape), f"random in 0..{port.limit - 1}"
    if port.dtype == ir.DataType.UINT8 and len(shape) > 2:
        return random.integers(0, 256, shape), "random in 0..255"
    if guess.integers == INTEGERS[0] and guess.length and _LENGTH.search(low) and len(shape) < 2:
        return np.full(shape, guess.length), f"{guess.length}, the length of the sequence"
    if guess.integers == INTEGERS[0]:
        return random.integers(0, 2, shape), guess.integers
    return np.full(shape, INTEGERS.index(guess.integers) - 1), guess.integers


def _kind(port: Port, axis: int, dim: str, audio: bool) -> str:
    named = "" if dim == f"{port.name}.{axis}" else dim
    by_name = next((kind for kind, words in _BY_DIMENSION.items() if words.search(named)), "")
    if by_name in ("", "image", "sequence") and axis in _image_axes(port):
        return "latent" if _LATENT.search(port.name) else "image"
    if by_name in ("", "sequence") and audio and axis == _audio_axis(port) and (axis or len(port.shape) == 1):
        return "audio"
    if by_name:
        return by_name
    if axis == 0 and len(port.shape) > 1:
        return "batch"
    if _PAST.search(port.name):
        return "past"
    if len(port.shape) == 4 and axis == 1 and not port.integer:
        return "channels"
    return "features" if len(port.shape) == 3 and axis == 1 and _FEATURES.search(port.name) else "sequence"


def _length(ports: Sequence[Port], kinds: Mapping[str, str], sizes: Mapping[str, int]) -> int:
    """The size of the first axis along which something runs; of a tensor without an open one, its last axis."""
    for port in ports:
        if running := [sizes[dim] for dim in port.shape if isinstance(dim, str) and kinds[dim] in _RUNNING]:
            return running[0]
    fixed = [port.shape[-1] for port in ports if len(port.shape) > 1 and isinstance(port.shape[-1], int)]
    return int(fixed[0]) if fixed else 0


def _terms(dim: str) -> list[list[str]] | None:
    """The terms of a sum of products such as ``past + 1`` or ``2*heads``; None for a plain name."""
    terms = [[factor.strip() for factor in term.split("*")] for term in dim.split("+")]
    factors = [factor for term in terms for factor in term]
    plain = len(factors) == 1 or not all(re.fullmatch(r"\w[\w.]*", factor) for factor in factors)
    return None if plain else terms


def _computed(dim: str, known: Mapping[str, int]) -> int:
    """The value of a sum of products; a name in it that is no dimension of an input counts as 1."""
    return sum(
        math.prod(int(factor) if factor.isdigit() else known.get(factor, 1) for factor in term)
        for term in _terms(dim) or []
    )


def _image_axes(port: Port) -> tuple[int, ...]:
    if len(port.shape) != 4 or looks_like_state(port.name):
        return ()
    return (1, 2) if port.shape[3] in _CHANNELS and port.shape[1] not in _CHANNELS else (2, 3)


def _audio_axis(port: Port) -> int | None:
    """The axis along which a sound runs; None for what cannot be one."""
    whole = len(port.shape) <= 2 or (len(port.shape) == 3 and port.shape[1] == 1)
    return len(port.shape) - 1 if port.shape and whole and not port.integer else None


def _is_rate(port: Port) -> bool:
    return port.integer and _RATE.search(port.name) is not None


def _is_mask(port: Port) -> bool:
    return "mask" in port.name.lower() or port.dtype == ir.DataType.BOOL


def _unknown_integer(port: Port) -> bool:
    return port.integer and not port.limit and not _is_rate(port) and not _is_mask(port)
