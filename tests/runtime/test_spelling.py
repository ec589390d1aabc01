"""The bytes of single tokens, of each kind of tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from ruvrun.spelling import Spelling, byte_alphabet
from tests.runtime.heads import byte_fallback, byte_level, whole_words

LEVEL, FALLBACK = byte_level(), byte_fallback()
BY_LEVEL, BY_FALLBACK = Spelling(LEVEL), Spelling(FALLBACK)


@given(st.text())
def test_the_bytes_of_all_tokens_are_the_text(text: str) -> None:
    ids = LEVEL.encode(text, add_special_tokens=False).ids
    assert b"".join(map(BY_LEVEL, ids)).decode() == text


@given(st.text(st.sampled_from("abcdé世 "), min_size=1))
def test_with_a_space_in_front_where_the_tokenizer_puts_one(text: str) -> None:
    ids = FALLBACK.encode(text, add_special_tokens=False).ids
    assert b"".join(map(BY_FALLBACK, ids)).decode() == f" {text}"


def test_the_alphabet_is_that_of_the_library() -> None:
    assert sorted(byte_alphabet()) == sorted(ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


def token(tokenizer: Tokenizer, name: str) -> int:
    number = tokenizer.token_to_id(name)
    assert number is not None
    return int(number)


@pytest.mark.parametrize(
    ("name", "bytes_"), [("▁", b" "), ("▁a", b" a"), ("a", b"a"), ("<0xE4>", b"\xe4"), ("</s>", b"</s>")]
)
def test_tokens_of_sentencepiece(name: str, bytes_: bytes) -> None:
    assert BY_FALLBACK(token(FALLBACK, name)) == bytes_


def test_names_of_special_and_added_tokens_are_their_own() -> None:
    assert BY_LEVEL(token(LEVEL, "<|im_end|>")) == b"<|im_end|>"
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("é Ġ", normalized=False)])
    assert Spelling(tokenizer)(token(tokenizer, "é Ġ")) == "é Ġ".encode()


def test_what_is_no_byte_token_is_a_text() -> None:
    words = whole_words(["<unk>", "<0xE4>", "b c"])
    assert [Spelling(words)(number) for number in range(3)] == [b"<unk>", b"<0xE4>", b"b c"]


def test_a_token_that_the_tokenizer_does_not_have_has_no_bytes() -> None:
    assert BY_LEVEL(10_000) == b""
