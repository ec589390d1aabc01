"""What one token is by itself: its bytes.

A tokenizer turns tokens into text all at once, and the text of one token alone is not its part of that: a byte of a
character becomes a replacement character, and some tokenizers drop the first space. So:

* a special or added token is its own name;
* a byte-level tokenizer (GPT-2's kind) writes each byte as a character of its alphabet, which is read back;
* a byte token (``<0xE4>``, where the tokenizer falls back to bytes) is that byte;
* any other token is what it adds to a text that ends with itself.
"""

from __future__ import annotations

import json
import re
from typing import Any

_BYTE = re.compile("<0x([0-9A-F]{2})>")


class Spelling:
    """The bytes of each token of a tokenizer.

    Args:
        tokenizer: of the ``tokenizers`` library.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
        kinds = _kinds(json.loads(tokenizer.decoder.__getstate__())) if tokenizer.decoder is not None else set()
        self._alphabet = byte_alphabet() if "ByteLevel" in kinds else {}
        self._byte_tokens = "ByteFallback" in kinds
        self._known: dict[int, bytes] = {}

    def __call__(self, token: int) -> bytes:
        """The bytes of ``token``; none where the tokenizer does not have it."""
        if token not in self._known:
            self._known[token] = self._spell(token)
        return self._known[token]

    def _spell(self, token: int) -> bytes:
        name: str | None = self._added.get(token) or self._tokenizer.id_to_token(token)
        if name is None or token in self._added:
            return (name or "").encode()
        if self._alphabet and all(character in self._alphabet for character in name):
            return bytes(self._alphabet[character] for character in name)
        if self._byte_tokens and (found := _BYTE.fullmatch(name)):
            return bytes.fromhex(found[1])
        once, twice = (self._tokenizer.decode([token] * times, skip_special_tokens=False) for times in (1, 2))
        return str(twice[len(once) :]).encode()


def byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level tokenizer stands for.

    Bytes that are visible characters of Latin-1 stand for themselves; the others, in order, are U+0100 and on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + at): byte for at, byte in enumerate(hidden)}


def _kinds(decoder: Any) -> set[str]:
    """The types of a decoder and of those it consists of."""
    found = {decoder["type"]}
    for part in decoder.get("decoders", []):
        found |= _kinds(part)
    return found
