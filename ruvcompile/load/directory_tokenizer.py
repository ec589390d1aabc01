"""The tokenizer and the chat template out of a checkpoint directory.

``tokenizer.json`` is the head's own form, and is taken as it is unless something in it would make the head read
another text than it was given: a length that texts are cut or filled to, or tokens beyond those that the model has.
Where there is only a SentencePiece model (``tokenizer.model``), it is made into that form (``sentencepiece``).

What else there is to know lies in files that the years have added: ``tokenizer_config.json`` (special tokens, whether a
text begins with one, the chat template), ``special_tokens_map.json`` and ``added_tokens.json`` before it,
``chat_template.jinja`` after it, and ``generation_config.json`` (what ends an answer).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ruvcompile.errors import InputError
from ruvcompile.load.head import ENDS, TOKENIZER, HeadFiles, head_files, made
from ruvcompile.load.json_file import parse_json_object, read_bytes, read_json_object
from ruvcompile.load.sentencepiece import UNUSED, Piece, Pieces, tokenizer_of
from ruvcompile.load.sentencepiece_model import read_pieces

MODEL = "tokenizer.model"
SAID = "tokenizer_config.json"
MAP = "special_tokens_map.json"
ADDED = "added_tokens.json"
GENERATION = "generation_config.json"
TEMPLATE = "chat_template.jinja"
OLD_TEMPLATE = "chat_template.json"

FILES = (TOKENIZER, MODEL, SAID, MAP, ADDED, GENERATION, TEMPLATE, OLD_TEMPLATE)
"""All that is looked at, for what names a checkpoint."""


def read_tokenizer(directory: Path, named_as: str, config: Mapping[str, Any], vocab: int) -> HeadFiles:
    """Make the head's files out of those in ``directory``, for a model of ``vocab`` tokens.

    Args:
        directory: of the checkpoint.
        named_as: what the user called it.
        config: the decoder's ``config.json``.
        vocab: rows of its embedding.

    Raises:
        InputError: there is no tokenizer, or one that is not understood or does not fit the model.
    """

    def optional(name: str) -> dict[str, Any]:
        return read_json_object(directory / name, f"{named_as}/{name}") if (directory / name).exists() else {}

    said = {**optional(MAP), **optional(SAID)}
    added = _added(said, optional(ADDED), named_as)
    if (directory / TOKENIZER).exists():
        raw = read_bytes(directory / TOKENIZER, f"{named_as}/{TOKENIZER}")
        tokenizer, raw = _from_json(raw, added, f"{named_as}/{TOKENIZER}", vocab)
        begins = made(lambda: _begins(tokenizer), f"{named_as}/{TOKENIZER}")
    elif (directory / MODEL).exists():
        pieces = read_pieces(read_bytes(directory / MODEL, f"{named_as}/{MODEL}"), f"{named_as}/{MODEL}")
        tokenizer = _from_pieces(pieces, said, added, f"{named_as}/{MODEL}", vocab)
        raw, begins = tokenizer.to_str().encode(), True
    else:
        raise InputError(
            "tokenizer-missing",
            f"{named_as} holds neither {TOKENIZER} nor {MODEL}",
            hint="copy the whole checkpoint; a slow tokenizer is saved as tokenizer.json by AutoTokenizer",
        )
    bos, eos = (_special(said, config, tokenizer, name) for name in ("bos", "eos"))
    if isinstance(said.get("add_bos_token"), bool):
        begins = said["add_bos_token"]
    return head_files(
        tokenizer,
        raw,
        named_as,
        template=_template(directory, named_as, said, optional(OLD_TEMPLATE)),
        chatml=tokenizer.token_to_id("<|im_start|>") is not None,
        bos=bos,
        eos=eos,
        add_bos=begins and tokenizer.token_to_id(bos) is not None,
        ends=_ends(tokenizer, eos, {GENERATION: optional(GENERATION), "config.json": config}, named_as, vocab),
    )


def _from_json(raw: bytes, added: Mapping[int, AddedToken], named_as: str, vocab: int) -> tuple[Tokenizer, bytes]:
    """The tokenizer in ``raw``, and ``raw`` itself or, where something had to be changed, what it is then."""
    tokenizer = made(lambda: Tokenizer.from_str(raw.decode("utf-8")), named_as)
    if max(tokenizer.get_vocab(with_added_tokens=False).values(), default=0) >= vocab:
        raise _wrong(named_as, f"its vocabulary goes beyond the {vocab} tokens of the model")
    if any(number >= vocab for number in tokenizer.get_added_tokens_decoder()):
        # A token for pictures, say, that only the whole model has.
        body = parse_json_object(raw, named_as)
        body["added_tokens"] = [token for token in body["added_tokens"] if token["id"] < vocab]
        raw = json.dumps(body, ensure_ascii=False).encode()
        tokenizer = made(lambda: Tokenizer.from_str(raw.decode("utf-8")), named_as)
    missing = {number: token for number, token in added.items() if number < vocab}
    missing = {number: token for number, token in missing.items() if tokenizer.token_to_id(token.content) is None}
    if not missing and tokenizer.truncation is None and tokenizer.padding is None:
        return tokenizer, raw
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add(tokenizer, missing, named_as)
    return tokenizer, tokenizer.to_str().encode()


def _from_pieces(
    model: Pieces, said: Mapping[str, Any], added: Mapping[int, AddedToken], named_as: str, vocab: int
) -> Tokenizer:
    if len(model.pieces) > vocab:
        raise _wrong(named_as, f"it has {len(model.pieces)} tokens, the model has {vocab}")
    pieces = list(model.pieces)
    added = {number: token for number, token in added.items() if number < vocab}
    pieces += [Piece(f"[PAD{number}]", 0.0, UNUSED) for number in range(len(pieces), max(added, default=-1) + 1)]
    for number, token in added.items():
        if pieces[number].text != token.content:
            pieces[number] = Piece(token.content, 0.0, UNUSED)
    if len({piece.text for piece in pieces}) != len(pieces):
        raise _wrong(named_as, "a token stands there twice")
    prefix, legacy = said.get("add_prefix_space"), said.get("legacy")
    model = replace(
        model,
        pieces=pieces,
        dummy_prefix=prefix if isinstance(prefix, bool) else model.dummy_prefix,
        legacy=legacy is not False,
    )
    tokenizer = made(lambda: tokenizer_of(model), named_as)
    _add(tokenizer, added, named_as)
    return tokenizer


def _add(tokenizer: Tokenizer, added: Mapping[int, AddedToken], named_as: str) -> None:
    for number, token in sorted(added.items()):
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != number:
            found = tokenizer.token_to_id(token.content)
            raise _wrong(named_as, f"{SAID} says that {token.content!r} is token {number}, and it is {found}")


def _added(said: Mapping[str, Any], old: Mapping[str, Any], named_as: str) -> dict[int, AddedToken]:
    """Tokens beside the vocabulary, by number, as the two files that may hold them say."""
    found: dict[int, AddedToken] = {}
    for content, number in old.items():
        if type(number) is not int or number < 0:
            raise _wrong(f"{named_as}/{ADDED}", f"{content!r} has the number {number!r}")
        found[number] = AddedToken(content, normalized=False)
    decoder = said.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise _wrong(f"{named_as}/{SAID}", "added_tokens_decoder is no object")
    for key, token in decoder.items():
        text = token.get("content") if isinstance(token, dict) else None
        if not isinstance(text, str) or not text or not (key.isascii() and key.isdigit() and len(key) < 10):
            raise _wrong(f"{named_as}/{SAID}", f"entry {key!r} of added_tokens_decoder is no token")
        flags = {flag: token.get(flag) is True for flag in ("lstrip", "rstrip", "normalized", "single_word", "special")}
        found[int(key)] = AddedToken(text, **flags)
    return found


def _special(said: Mapping[str, Any], config: Mapping[str, Any], tokenizer: Tokenizer, name: str) -> str:
    """The token that begins (``bos``) or ends (``eos``) a text; empty where there is none."""
    token: Any = said.get(f"{name}_token")
    if isinstance(token, dict):
        token = token.get("content")
    if isinstance(token, str):
        return str(token)
    number = config.get(f"{name}_token_id")
    if f"{name}_token" in said or type(number) is not int or not 0 <= number < 1 << 31:
        return ""  # said to be none
    return str(tokenizer.id_to_token(number) or "")


def _begins(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer itself puts a token before every text."""
    with_special, plain = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
    return len(with_special) > len(plain) and with_special[:1] != plain[:1]


def _template(directory: Path, named_as: str, said: Mapping[str, Any], old: Mapping[str, Any]) -> str | None:
    if (directory / TEMPLATE).exists():
        try:
            return read_bytes(directory / TEMPLATE, f"{named_as}/{TEMPLATE}").decode("utf-8")
        except UnicodeDecodeError:
            raise _wrong(f"{named_as}/{TEMPLATE}", "it is not UTF-8 text") from None
    template = said.get("chat_template") or old.get("chat_template")
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
        # Several by name: for chats, with tools, for retrieval.
        named = {str(entry.get("name")): entry.get("template") for entry in template}
        template = named.get("default", next(iter(named.values()), None))
    if template and not isinstance(template, str):
        raise _wrong(named_as, "its chat_template is neither a text nor a list of texts by name")
    return template or None


def _ends(
    tokenizer: Tokenizer, eos: str, files: Mapping[str, Mapping[str, Any]], named_as: str, vocab: int
) -> tuple[int, ...]:
    named = tokenizer.token_to_id(eos)
    ends: set[int] = set() if named is None else {named}
    for file, said in files.items():
        found = said.get("eos_token_id")
        for number in found if isinstance(found, list) else [] if found is None else [found]:
            if type(number) is not int or not 0 <= number < vocab:
                raise _wrong(f"{named_as}/{file}", f"eos_token_id is {found!r}, of {vocab} tokens")
            ends.add(number)
    special = (number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    return tuple(sorted(ends | {number for number in special if tokenizer.id_to_token(number) in ENDS}))


def _wrong(named_as: str, what: str) -> InputError:
    return InputError(
        "tokenizer-wrong", f"{named_as} does not fit: {what}", hint="copy or download the whole checkpoint again"
    )
