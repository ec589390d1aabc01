"""Byte-level BPE, the tokenizers of GPT-2's kind: text as bytes, each written as a printable letter, then merges.

What differs from model to model is the rule that splits text before the merges. A GGUF file gives only the *name* of
the rule (``tokenizer.ggml.pre``). A wrong rule does not fail, it quietly gives other tokens than the model was trained
on, so a name that is not known is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Words begin anew at a capital; %s are what may hang on to a word, and how many digits stay together.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CAMEL = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

RULES: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_CASED % "{1,3}",),
    "qwen2": (_CASED % "",),
    "gpt-4o": (_CAMEL % (_SUFFIX, _SUFFIX, "{1,3}"),),
    "tekken": (_CAMEL % ("", "", ""),),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
"""The name of a rule, and the expressions that split text one after another."""

ALIASES = {
    **dict.fromkeys(("llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), "llama-bpe"),
    **dict.fromkeys(("phi-2", "olmo", "mpt"), "gpt-2"),
    **dict.fromkeys(("starcoder", "refact", "codeshell"), "smollm"),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2"), "qwen2"),
    "llama4": "gpt-4o",
}
"""Other names of the same splits."""

# A word that is a token is taken as it is, before any merge.
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")
BEGINS = _WHOLE_WORDS
"""Rules whose models want their texts to begin with a token for it, where the file does not say."""
_COMPOSED = ("qwen2", "deepseek-r1-qwen", "megrez")


def byte_level(rule: str, ids: dict[str, int], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """A tokenizer without special tokens.

    Args:
        rule: the name of the split, of ``RULES`` or ``ALIASES``.
        ids: number of every token.
        merges: pairs, the most important first; each joins two tokens to a third.
    """
    tokenizer = Tokenizer(models.BPE(ids, list(merges), ignore_merges=rule in _WHOLE_WORDS))
    if rule in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in RULES[ALIASES.get(rule, rule)]]
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, plain])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
