"""SentencePiece tokenizers, made into the form of the ``tokenizers`` library.

A SentencePiece model is a list of pieces, each with a score and a kind, and a few switches. Spaces are written ``▁``;
what no piece covers is spelt in bytes (``<0xE2>``). There are two algorithms:

* *BPE*: the two neighbours whose join has the best score are joined, until there are none. In ``tokenizers`` a merge
  has a rank instead, so every way of making a piece out of two others is written down, ordered by the piece's score.
* *unigram*: the split whose scores add up to the most.

Only normal pieces take part. A user-defined piece is taken whole wherever it stands in the text; control pieces are
never found in text by SentencePiece itself, but are here: the names of special tokens in a rendered chat template must
become those tokens.

A space is put before the text (``dummy_prefix``), and before each part behind a special token: SentencePiece is given
each part by itself. Models whose ``tokenizer_config.json`` says ``"legacy": false`` were trained with only the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# A score that no split with such a piece wins by, unless the text that spells it has letters that no piece covers.
_NEVER = -1e6


@dataclass(frozen=True)
class Piece:
    """A token: its text, score and kind (``NORMAL`` and so on)."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model.

    Args:
        pieces: by number; no text stands there twice.
        unigram: whether the algorithm is unigram, not BPE.
        byte_fallback: whether what no piece covers is spelt in bytes.
        dummy_prefix: whether a space is put before the text.
        legacy: whether also before each part behind a special token.
        squeeze: whether spaces at the ends go, and several become one.
        charsmap: the compiled map of characters, empty for none.
        apart: whether user-defined pieces are cut out of the normalised text (SentencePiece), or before anything is
            done to it (the programs that read GGUF).
    """

    pieces: Sequence[Piece]
    unigram: bool = False
    byte_fallback: bool = True
    dummy_prefix: bool = True
    legacy: bool = True
    squeeze: bool = False
    charsmap: bytes = b""
    apart: bool = True


def tokenizer_of(model: Pieces) -> Tokenizer:
    """The tokenizer that ``model`` describes; control pieces are special tokens of it."""
    pieces = model.pieces
    unknown = next((number for number, piece in enumerate(pieces) if piece.kind == UNKNOWN), None)
    whole = [piece.text for piece in pieces if piece.kind == USER_DEFINED and (model.apart or SPACE in piece.text)]
    if model.unigram:
        scored = [(piece.text, piece.score if piece.kind in (NORMAL, USER_DEFINED) else _NEVER) for piece in pieces]
        tokenizer = Tokenizer(models.Unigram(scored, unk_id=unknown, byte_fallback=model.byte_fallback))
    else:
        tokenizer = Tokenizer(
            models.BPE(
                {piece.text: number for number, piece in enumerate(pieces)},
                _merges(pieces),
                unk_token=None if unknown is None else pieces[unknown].text,
                fuse_unk=True,
                byte_fallback=model.byte_fallback,
                ignore_merges=bool(whole),
            )
        )
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.squeeze:
        # Spaces only: other white space stays.
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.dummy_prefix and model.legacy:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if model.dummy_prefix and not model.legacy:
        cuts.append(pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False))
    if whole:
        longest_first = "|".join(re.escape(text) for text in sorted(whole, key=len, reverse=True))
        cuts.append(pre_tokenizers.Split(Regex(longest_first), "isolated"))
    if cuts:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    ends = [decoders.Strip(" ", 1, 0)] if model.dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    )
    for piece in pieces:
        if piece.kind == CONTROL and piece.text:
            tokenizer.add_special_tokens([AddedToken(piece.text, special=True, normalized=False)])
        elif piece.kind == USER_DEFINED and piece.text not in whole and piece.text:
            tokenizer.add_tokens([AddedToken(piece.text, normalized=False)])
    return tokenizer


def _merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Every way to make a normal piece out of two others, the best score first, then the lowest number."""
    usable = {piece.text: number for number, piece in enumerate(pieces) if piece.kind in (NORMAL, USER_DEFINED)}
    found: list[tuple[float, int, int, str, str]] = []
    for text, number in usable.items():
        if pieces[number].kind != NORMAL:
            continue
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in usable and right in usable:
                found.append((-pieces[number].score, number, at, left, right))
    return [(left, right) for *_, left, right in sorted(found)]
