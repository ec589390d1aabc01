"""The tokenizer out of a GGUF file's metadata.

Two kinds are in use. ``gpt2``: byte-level BPE as lists of tokens, their types and merges, and the name of the rule
that splits text (``byte_level``). ``llama``: the pieces of a SentencePiece model with their scores (``sentencepiece``);
of its switches the file keeps only whether a space is put before the text.
"""

from __future__ import annotations

import math

from tokenizers import AddedToken, Tokenizer

from ruvcompile.errors import InputError, did_you_mean
from ruvcompile.load.byte_level import ALIASES, BEGINS, RULES, byte_level
from ruvcompile.load.gguf_file import GgufFile
from ruvcompile.load.head import ENDS, HeadFiles, head_files
from ruvcompile.load.sentencepiece import BYTE, CONTROL, NORMAL, USER_DEFINED, Piece, Pieces, tokenizer_of

KINDS = {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE"}
# What is meant where a file of kind llama does not say.
_LLAMA_TOKENS = {"bos": 1, "eos": 2}


def read_tokenizer(file: GgufFile, vocab: int) -> HeadFiles:
    """Make the head's files out of the metadata of ``file``, for a model of ``vocab`` tokens.

    Raises:
        InputError: a kind of tokenizer or a splitting rule that is not known, or lists that do not fit.
    """
    kind = file.text("tokenizer.ggml.model")
    if kind not in KINDS:
        raise InputError(
            "tokenizer-unsupported",
            f"{file.named_as} has a tokenizer of kind {kind!r}, which is not supported",
            context=[f"supported: {', '.join(f'{name} ({what})' for name, what in KINDS.items())}"],
            hint="use a model with such a tokenizer, or its safetensors with tokenizer.json",
        )
    tokens = _strings(file, "tokenizer.ggml.tokens")
    if len(tokens) != vocab:
        raise _wrong(file, f"it has {len(tokens)} tokens, the model has {vocab}")
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if ids[token] != number)
        raise _wrong(file, f"the token {twice!r} stands there twice")
    types = _types(file, len(tokens))
    tokenizer = _byte_level(file, tokens, ids, types) if kind == "gpt2" else _sentencepiece(file, tokens, types)
    template = file.metadata.get("tokenizer.chat_template")
    begins = kind == "llama" or _rule(file) in BEGINS
    return head_files(
        tokenizer,
        tokenizer.to_str().encode(),
        file.named_as,
        template=template if isinstance(template, str) else None,
        chatml="<|im_start|>" in ids,
        bos=_token(file, tokens, "bos"),
        eos=_token(file, tokens, "eos"),
        add_bos=file.flag("tokenizer.ggml.add_bos_token", begins),
        ends=_ends(file, tokens, types),
    )


def _byte_level(file: GgufFile, tokens: list[str], ids: dict[str, int], types: list[int]) -> Tokenizer:
    rule = _rule(file)
    merges: list[tuple[str, str]] = []
    for merge in _strings(file, "tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if not all(part in ids for part in (left, right, left + right)):
            raise _wrong(file, f"the merge {merge!r} does not join two tokens to a third")
        merges.append((left, right))
    tokenizer = byte_level(rule, ids, merges)
    of_type = {
        wanted: [token for token, kind in zip(tokens, types, strict=True) if kind == wanted and token]
        for wanted in (CONTROL, USER_DEFINED)
    }
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in of_type[CONTROL]])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in of_type[USER_DEFINED]])
    return tokenizer


def _sentencepiece(file: GgufFile, tokens: list[str], types: list[int]) -> Tokenizer:
    scores = file.metadata.get("tokenizer.ggml.scores")
    if (
        not isinstance(scores, list)
        or len(scores) != len(tokens)
        or not all(isinstance(score, int | float) and math.isfinite(score) for score in scores)
    ):
        raise _wrong(file, "it has no score for every token")
    pieces = [Piece(*piece) for piece in zip(tokens, map(float, scores), types, strict=True)]
    return tokenizer_of(
        Pieces(
            pieces,
            byte_fallback=BYTE in types,
            dummy_prefix=file.flag("tokenizer.ggml.add_space_prefix", True),
            apart=False,
        )
    )


def _rule(file: GgufFile) -> str:
    rule = file.metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(rule, str) or rule not in RULES | ALIASES:
        raise InputError(
            "tokenizer-unsupported",
            f"{file.named_as} splits text by the rule {rule!r}, which is not known",
            context=[f"known: {', '.join(sorted(RULES | ALIASES))}"],
            hint=did_you_mean(str(rule), [*RULES, *ALIASES]),
        )
    return rule


def _types(file: GgufFile, count: int) -> list[int]:
    types = file.metadata.get("tokenizer.ggml.token_type", [NORMAL] * count)
    if not isinstance(types, list) or len(types) != count:
        raise _wrong(file, "it has another number of token types than tokens")
    return types


def _ends(file: GgufFile, tokens: list[str], types: list[int]) -> tuple[int, ...]:
    found = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = {number for number in found if isinstance(number, int) and 0 <= number < len(tokens)}
    ends |= {number for number, token in enumerate(tokens) if token in ENDS and types[number] == CONTROL}
    return tuple(sorted(ends))


def _token(file: GgufFile, tokens: list[str], name: str) -> str:
    number = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if number is None:
        number = _LLAMA_TOKENS[name] if file.metadata.get("tokenizer.ggml.model") == "llama" else None
    if number is None:
        return ""
    if not isinstance(number, int) or not 0 <= number < len(tokens):
        raise _wrong(file, f"its {name} token is number {number}, of {len(tokens)}")
    return tokens[number]


def _strings(file: GgufFile, key: str) -> list[str]:
    value = file.metadata.get(key)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise InputError(
        "gguf-key-missing",
        f"{file.named_as} has no list of strings under {key!r}",
        hint="convert the checkpoint again with its tokenizer",
    )


def _wrong(file: GgufFile, what: str) -> InputError:
    return InputError(
        "tokenizer-wrong",
        f"the tokenizer in {file.named_as} does not fit: {what}",
        hint="convert the checkpoint again with a current converter",
    )
