"""What an answer adds up to, as a stream and as one: chunks, stop strings, ends, and what they say was used."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.engine import Token
from ruvrun.openai import Call, Reply, fold
from ruvrun.tokenizer import Tokenizer
from tests.runtime.texts import chat, text


def tokens_of(tokenizer: Tokenizer, said: str, finish: str = "stop") -> list[Token]:
    """What the engine reports for this text: ended by the eos token (2), or at its last token."""
    ids = tokenizer.encode(said)
    if finish == "stop":
        return [*(Token(0, token, None) for token in ids), Token(0, 2, "stop")]
    return [*(Token(0, token, None) for token in ids[:-1]), Token(0, ids[-1], "length")]


def reply_to(call: Call, tokenizer: Tokenizer, choices: int = 1) -> Reply:
    decoders = [tokenizer.decoder() for _ in range(choices)]
    return Reply(call, model="m", key="k", created=5, prompt_tokens=3, decoders=decoders, spell=tokenizer.spell)


def stream(reply: Reply, tokens: list[Token], at: int = 0) -> list[dict[str, Any]]:
    return [*reply.start(), *[chunk for token in tokens for chunk in reply.push(at, [token])]]


def test_a_chat_as_a_stream(tokenizer: Tokenizer) -> None:
    reply = reply_to(chat(), tokenizer)
    chunks = stream(reply, tokens_of(tokenizer, "a世"))
    head = {"id": "chatcmpl-k", "object": "chat.completion.chunk", "created": 5, "model": "m"}
    rest = {"index": 0, "logprobs": None}
    assert chunks == [
        {**head, "choices": [{**rest, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {**head, "choices": [{**rest, "delta": {"content": "a"}, "finish_reason": None}]},
        {**head, "choices": [{**rest, "delta": {"content": "世"}, "finish_reason": None}]},
        {**head, "choices": [{**rest, "delta": {}, "finish_reason": "stop"}]},
    ]
    assert reply.finished


def test_the_plain_chat_is_the_sum_of_the_stream(tokenizer: Tokenizer) -> None:
    reply = reply_to(chat(), tokenizer)
    answer = fold([*stream(reply, tokens_of(tokenizer, "hello wörld")), reply.usage()])
    assert answer == {
        "id": "chatcmpl-k",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello wörld", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": len(tokenizer.encode("hello wörld")) + 1,
            "total_tokens": 3 + len(tokenizer.encode("hello wörld")) + 1,
        },
    }


def test_completions_of_several_prompts(tokenizer: Tokenizer) -> None:
    reply = reply_to(text(prompt=["x", "y"]), tokenizer, choices=2)
    second = stream(reply, tokens_of(tokenizer, "two", "length"), at=1)
    assert not reply.finished
    answer = fold([*second, *stream(reply, tokens_of(tokenizer, "one")), reply.usage()])
    assert (answer["id"], answer["object"]) == ("cmpl-k", "text_completion")
    assert answer["choices"] == [
        {"index": 0, "text": "one", "logprobs": None, "finish_reason": "stop"},
        {"index": 1, "text": "two", "logprobs": None, "finish_reason": "length"},
    ]
    assert answer["usage"]["completion_tokens"] == 4 + 3


def test_usage_is_announced_in_every_chunk_of_a_stream_that_asks_for_it(tokenizer: Tokenizer) -> None:
    reply = reply_to(chat(stream=True, stream_options={"include_usage": True}), tokenizer)
    assert all(chunk["usage"] is None for chunk in stream(reply, tokens_of(tokenizer, "a")))
    assert reply.usage()["choices"] == []
    assert reply.usage()["usage"]["completion_tokens"] == 2


def test_an_answer_cut_by_length_keeps_its_last_text(tokenizer: Tokenizer) -> None:
    reply = reply_to(chat(), tokenizer)
    unfinished = tokens_of(tokenizer, "a世", "length")[:-1]
    tokens = [*unfinished[:-1], Token(0, unfinished[-1].token, "length")]
    answer = fold([*stream(reply, tokens), reply.usage()])
    assert answer["choices"][0]["message"]["content"] == "a\ufffd"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


def test_an_eos_token_with_a_text_of_its_own_has_none_here(tokenizer: Tokenizer) -> None:
    reply = reply_to(chat(), tokenizer)
    letter = tokenizer.encode("x")[0]
    answer = fold([*stream(reply, [Token(0, letter, "stop")]), reply.usage()])
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("grouping", [1, 2, 100])
def test_a_stop_string_across_tokens_ends_the_text_before_it(tokenizer: Tokenizer, grouping: int) -> None:
    reply = reply_to(chat(stop=["世界", "never"]), tokenizer)
    tokens = tokens_of(tokenizer, "hi 世世界 more")
    chunks = reply.start()
    for at in range(0, len(tokens), grouping):
        chunks += reply.push(0, tokens[at : at + grouping])
    answer = fold([*chunks, reply.usage()])
    assert answer["choices"][0]["message"]["content"] == "hi 世"
    assert answer["choices"][0]["finish_reason"] == "stop"
    # Every token up to the one that completed the stop string counts, those behind it do not.
    assert answer["usage"]["completion_tokens"] == len(tokenizer.encode("hi 世世界"))
    assert reply.push(0, tokens_of(tokenizer, "late")) == []


def test_a_stop_string_that_never_completes_is_text(tokenizer: Tokenizer) -> None:
    reply = reply_to(text(stop="hello!"), tokenizer)
    answer = fold([*stream(reply, tokens_of(tokenizer, "say hello")), reply.usage()])
    assert answer["choices"][0]["text"] == "say hello"


def test_a_stop_string_on_the_last_token_wins_over_length(tokenizer: Tokenizer) -> None:
    reply = reply_to(text(stop="o"), tokenizer)
    answer = fold([*stream(reply, tokens_of(tokenizer, "hello", "length")), reply.usage()])
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("hell", "stop")


@given(said=st.text(max_size=30), stop=st.lists(st.text("ab ", min_size=1, max_size=3), max_size=2), sizes=st.data())
def test_stream_and_plain_say_the_same(tokenizer: Tokenizer, said: str, stop: list[str], sizes: st.DataObject) -> None:
    tokens = tokens_of(tokenizer, said)
    one, many = (reply_to(text(stop=stop), tokenizer) for _ in range(2))
    chunks, at = many.start(), 0
    while at < len(tokens):
        size = sizes.draw(st.integers(1, 5))
        chunks += many.push(0, tokens[at : at + size])
        at += size
    assert fold([*stream(one, tokens), one.usage()]) == fold([*chunks, many.usage()])
    assert one.finished
    assert many.finished
