"""Small head directories (tokenizer.json, chat.json), made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level() -> Tokenizer:
    """One token per byte and a few merges, as GPT-2's kind: a character of n bytes is up to n tokens.

    Ids 0 to 2 are special, 3 to 258 the bytes in the order of ByteLevel's alphabet.
    """
    alphabet = sorted(ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w")]
    vocab = {token: at for at, token in enumerate([*SPECIAL, *alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """SentencePiece's kind: a word mark for spaces, dropped at the start, and byte tokens for rare characters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefgh", "▁a", "▁b"]
    merges = [("▁", "a"), ("▁", "b")]
    vocab = {token: at for at, token in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in pieces[:3]])
    return tokenizer


def whole_words(words: list[str]) -> Tokenizer:
    """Each of ``words`` is a token, in this order; decoding joins them as they are."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("|", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def write_head(directory: Path, tokenizer: Tokenizer, **chat: Any) -> Path:
    """A head directory with this tokenizer; ``chat`` overrides what chat.json says."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    said = {"template": TEMPLATE, "bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "add_bos": False, **chat}
    (directory / "chat.json").write_text(json.dumps(said), "utf-8")
    return directory
