"""The tokenizer out of a GGUF file's metadata, in the form of the ``tokenizers`` library.

GGUF keeps a byte-level BPE tokenizer as three lists (tokens, their types, merges) and the *name* of the rule that
splits text before the merges (``tokenizer.ggml.pre``); the rules themselves are not in the file. A wrong rule does
not fail, it quietly gives other tokens than the model was trained on, so an unknown name is an error.

The head gets ``tokenizer.json`` and ``chat.json`` and needs nothing else of the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ruvcompile.errors import InputError, did_you_mean
from ruvcompile.load.gguf_file import GgufFile

TOKENIZER = "tokenizer.json"
CHAT = "chat.json"
CONTROL = 3
USER_DEFINED = 4

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The name of a rule, and the expressions that split text one after another.
RULES: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_CASED % "{1,3}",),
    "qwen2": (_CASED % "",),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}

# Tokens that end an answer by their name, whatever the file's metadata says of them.
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>")

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True)
class HeadFiles:
    """What the head needs to turn text into tokens and back, by file name; and the tokens that end an answer."""

    files: Mapping[str, bytes]
    eos: tuple[int, ...]


def read_tokenizer(file: GgufFile, vocab: int) -> HeadFiles:
    """Make ``tokenizer.json`` and ``chat.json`` out of the metadata of ``file``, for a model of ``vocab`` tokens.

    Raises:
        InputError: a kind of tokenizer or a splitting rule that is not known, or lists that do not fit.
    """
    kind = file.text("tokenizer.ggml.model")
    if kind != "gpt2":
        raise InputError(
            "tokenizer-unsupported",
            f"{file.named_as} has a tokenizer of kind {kind!r}, which is not supported",
            context=["supported: gpt2 (byte-level BPE)"],
            hint="use a model with a byte-level BPE tokenizer",
        )
    tokens = _strings(file, "tokenizer.ggml.tokens")
    if len(tokens) != vocab:
        raise _wrong(file, f"it has {len(tokens)} tokens, the model has {vocab}")
    tokenizer = _tokenizer(file, tokens)
    return HeadFiles({TOKENIZER: tokenizer.to_str().encode(), CHAT: _chat(file, tokens)}, _ends(file, tokens))


def _tokenizer(file: GgufFile, tokens: list[str]) -> Tokenizer:
    rule = _rule(file)
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if ids[token] != number)
        raise _wrong(file, f"the token {twice!r} stands there twice")
    merges = [tuple(merge.split(" ")) for merge in _strings(file, "tokenizer.ggml.merges")]
    for merge in merges:
        if len(merge) != 2 or not all(part in ids for part in (*merge, "".join(merge))):
            raise _wrong(file, f"the merge {' '.join(merge)!r} does not join two tokens to a third")
    # Llama 3 takes a word that is a token as it is, before any merge.
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=rule == "llama-bpe"))  # type: ignore[arg-type]  # pairs, checked
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in RULES[rule]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    types = file.metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise _wrong(file, "it has another number of token types than tokens")
    of_type = {
        wanted: [token for token, kind in zip(tokens, types, strict=True) if kind == wanted and token]
        for wanted in (CONTROL, USER_DEFINED)
    }
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in of_type[CONTROL]])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in of_type[USER_DEFINED]])
    return tokenizer


def _rule(file: GgufFile) -> str:
    rule = file.metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(rule, str) or rule not in RULES:
        raise InputError(
            "tokenizer-unsupported",
            f"{file.named_as} splits text by the rule {rule!r}, which is not known",
            context=[f"known: {', '.join(sorted(RULES))}"],
            hint=did_you_mean(str(rule), RULES),
        )
    return rule


def _chat(file: GgufFile, tokens: list[str]) -> bytes:
    template = file.metadata.get("tokenizer.chat_template")
    if not isinstance(template, str):
        template = CHATML if "<|im_start|>" in tokens else PLAIN
    body: dict[str, Any] = {
        "template": template,
        "bos_token": _token(file, tokens, "bos"),
        "eos_token": _token(file, tokens, "eos"),
        "add_bos": bool(file.metadata.get("tokenizer.ggml.add_bos_token", _rule(file) == "llama-bpe")),
    }
    return json.dumps(body, indent=1, ensure_ascii=False).encode()


def _ends(file: GgufFile, tokens: list[str]) -> tuple[int, ...]:
    types = file.metadata.get("tokenizer.ggml.token_type", [])
    found = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = {number for number in found if isinstance(number, int) and 0 <= number < len(tokens)}
    ends |= {number for number, token in enumerate(tokens) if token in _ENDS and types and types[number] == CONTROL}
    return tuple(sorted(ends))


def _token(file: GgufFile, tokens: list[str], name: str) -> str:
    number = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
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
