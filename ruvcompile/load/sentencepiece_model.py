"""Reads ``tokenizer.model``, the file of a SentencePiece tokenizer.

It is a protocol buffer of which a dozen fields matter here, and walking over its wire format takes less than to ship
the compiled schema of it: a field is a number and a kind, then a variable-length integer, four or eight bytes, or a
length and so many bytes. Every length is held against what is left. Numbers of fields are from the published schema
(``sentencepiece_model.proto``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from ruvcompile.errors import InputError
from ruvcompile.load.sentencepiece import BYTE, NORMAL, Piece, Pieces

MODEL_PIECES, MODEL_TRAINER, MODEL_NORMALIZER = 1, 2, 3
PIECE_TEXT, PIECE_SCORE, PIECE_KIND = 1, 2, 3
TRAINER_ALGORITHM, TRAINER_SUFFIX, TRAINER_BYTES = 3, 24, 35
CHARSMAP, DUMMY_PREFIX, SQUEEZE, ESCAPE = 2, 3, 4, 5
UNIGRAM, BPE = 1, 2

Value = int | float | bytes


def read_pieces(raw: bytes, named_as: str) -> Pieces:
    """The model in ``raw``.

    Raises:
        InputError: it is no SentencePiece model, or of an algorithm that is not supported.
    """
    try:
        return _pieces(raw, named_as)
    except (ValueError, struct.error, IndexError) as error:
        raise InputError(
            "tokenizer-invalid",
            f"{named_as} is no SentencePiece model",
            context=[str(error)],
            hint="copy it again; some models call another kind of file tokenizer.model",
        ) from None


def _pieces(raw: bytes, named_as: str) -> Pieces:
    pieces: list[Piece] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(raw):
        if number == MODEL_PIECES:
            pieces.append(_piece(dict(_fields(_bytes(value)))))
        elif number == MODEL_TRAINER:
            trainer |= dict(_fields(_bytes(value)))
        elif number == MODEL_NORMALIZER:
            normalizer |= dict(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("it holds no pieces")
    algorithm = trainer.get(TRAINER_ALGORITHM, UNIGRAM)
    if algorithm not in (UNIGRAM, BPE) or trainer.get(TRAINER_SUFFIX) or not normalizer.get(ESCAPE, 1):
        what = "splits into words or characters" if algorithm not in (UNIGRAM, BPE) else "writes spaces in another way"
        raise InputError(
            "tokenizer-unsupported",
            f"{named_as} {what}, which is not supported",
            hint="use a model whose tokenizer is saved as tokenizer.json",
        )
    charsmap = _bytes(normalizer.get(CHARSMAP, b""))
    if charsmap and not 4 < 4 + int.from_bytes(charsmap[:4], "little") <= len(charsmap):
        raise ValueError("its map of characters is cut off")
    return Pieces(
        pieces,
        unigram=algorithm == UNIGRAM,
        byte_fallback=bool(trainer.get(TRAINER_BYTES, 0)) and any(piece.kind == BYTE for piece in pieces),
        dummy_prefix=bool(normalizer.get(DUMMY_PREFIX, 1)),
        squeeze=bool(normalizer.get(SQUEEZE, 1)),
        charsmap=charsmap,
    )


def _piece(said: dict[int, Value]) -> Piece:
    score, kind = said.get(PIECE_SCORE, 0.0), said.get(PIECE_KIND, NORMAL)
    if not isinstance(score, float) or not math.isfinite(score) or not isinstance(kind, int):
        raise ValueError("a piece has no score or no kind")
    return Piece(_bytes(said.get(PIECE_TEXT, b"")).decode("utf-8"), score, kind)


def _fields(raw: bytes) -> Iterator[tuple[int, Value]]:
    """Numbers and values of the fields of one message, in order."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(raw, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(raw, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind} at byte {at}")
        if size > len(raw) - at:
            raise ValueError(f"it ends within a field of {size} bytes")
        part = raw[at : at + size]
        at += size
        yield key >> 3, part if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", part)[0]


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = raw[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError(f"a number without an end at byte {at}")


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where text should be")
    return value
