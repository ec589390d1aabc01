"""OpenAI's JSON as a pure text machine: what is understood, what is refused, and what an answer adds up to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.engine import Request, Token
from ruvrun.frames import Sampling
from ruvrun.openai import ApiError, Call, Reply, engine_request, fold, parse_chat, parse_completion
from ruvrun.tokenizer import Tokenizer
from tests.runtime.heads import byte_level, write_head

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> Call:
    return parse_chat(json.dumps({"messages": HELLO, **fields}).encode())


def text(**fields: Any) -> Call:
    return parse_completion(json.dumps({"prompt": "hello", **fields}).encode())


def refusal(body: bytes | dict[str, Any], parse: Any = parse_chat) -> ApiError:
    with pytest.raises(ApiError) as refused:
        parse(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert refused.value.status == 400
    error = refused.value.body()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return refused.value


def ask(call: Call, prompt: list[int], *, context: int = 100) -> Request:
    return engine_request(call, prompt, id=7, drawn=11, context=context, vocab=50, eos=frozenset({2}))


def test_defaults() -> None:
    call = chat()
    assert (call.kind, call.model, call.max_tokens, call.stop) == ("chat", None, None, ())
    assert (call.asked, call.seed, call.stream, call.include_usage) == (Sampling(1.0, 1.0, 0), None, False, False)
    assert call.messages == ({"role": "user", "content": "hello"},)


def test_null_is_not_given() -> None:
    names = ("model", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "tools", "n")
    assert chat(**dict.fromkeys(names)) == chat()


def test_everything_that_is_understood() -> None:
    call = chat(
        model="m", max_completion_tokens=9, temperature=0.5, top_p=0.25, seed=-4, stop=["a", "b"], stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert (call.model, call.max_tokens, call.stop, call.stream, call.include_usage) == ("m", 9, ("a", "b"), True, True)
    assert call.sampling(0) == Sampling(0.5, 0.25, 2**63 - 4)
    assert chat(max_tokens=3).max_tokens == text(max_tokens=3).max_tokens == 3
    assert chat(stop="x").stop == ("x",)


def test_a_drawn_seed_is_used_only_where_none_is_given() -> None:
    assert chat().sampling(5).seed == 5
    assert chat(seed=0).sampling(5).seed == 0


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1e-9}, {"top_p": 0}])
def test_greedy(fields: dict[str, Any]) -> None:
    assert chat(**fields).sampling(1) == Sampling(0.0, 1.0, 1)


def test_content_in_parts_and_the_new_name_of_the_system_role() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = chat(messages=[{"role": "developer", "content": "s"}, {"role": "user", "content": parts, "name": "x"}])
    assert call.messages == ({"role": "system", "content": "s"}, {"role": "user", "content": "a\nb"})


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("a", ("a",)),
        ([1, 2], ((1, 2),)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [2, 3]], ("a", (2, 3))),
    ],
)
def test_prompts(prompt: Any, wanted: Any) -> None:
    assert text(prompt=prompt).prompts == wanted


@pytest.mark.parametrize("prompt", [[], [[]], [-1], [1, "a"], [True], [1.5], {"a": 1}, None, 3, ["a"] * 129])
def test_what_is_no_prompt(prompt: Any) -> None:
    assert refusal({"prompt": prompt}, parse_completion).param == "prompt"


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "parallel_tool_calls": False},
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": False, "tools": []},
        {"response_format": {"type": "text"}, "tool_choice": "none", "modalities": ["text"], "top_k": -1},
    ],
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("n", True),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("reasoning_effort", "low"),
        ("audio", {"voice": "x"}),
    ],
)
def test_what_we_do_not_have_is_refused_by_name(name: str, value: Any) -> None:
    error = refusal({"messages": HELLO, name: value})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert name in error.message


def test_an_unknown_name_gets_the_nearest_known_one() -> None:
    error = refusal({"messages": HELLO, "temprature": 0})
    assert (error.param, error.code) == ("temprature", "unknown_parameter")
    assert "did you mean 'temperature'?" in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**40}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 33}, "stop"),
        ({"stop": "a" * 1025}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ],
)
def test_wrong_values_name_the_parameter(fields: dict[str, Any], param: str) -> None:
    assert refusal({"messages": HELLO, **fields}).param == param


def test_missing_parameters() -> None:
    for parse, name in ((parse_chat, "messages"), (parse_completion, "prompt")):
        error = refusal({}, parse)
        assert (error.param, error.code) == (name, "missing_required_parameter")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"a"',
        b"null",
        b"{'a': 1}",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b'{"a": 1e999}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_json_object(body: bytes) -> None:
    error = refusal(body)
    assert (error.param, error.code) == (None, "invalid_json")
    assert refusal(body, parse_completion).code == "invalid_json"


@given(st.binary(max_size=60))
def test_no_body_breaks_the_parser(body: bytes) -> None:
    with pytest.raises(ApiError):
        parse_chat(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("messages", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "tools", "n")


@given(st.dictionaries(st.sampled_from(NAMES), json_values, max_size=4))
def test_no_value_breaks_the_parser(fields: dict[str, Any]) -> None:
    try:
        call = parse_chat(json.dumps({"messages": HELLO, **fields}).encode())
    except ApiError:
        return
    sampling = call.sampling(0)
    assert 0 <= sampling.temperature <= 2
    assert 0 < sampling.top_p <= 1
    assert 0 <= sampling.seed < 2**63


def test_the_engine_is_asked_for_what_fits() -> None:
    request = ask(chat(max_tokens=5, seed=3), [4, 5])
    assert request == Request(7, (4, 5), 5, Sampling(1.0, 1.0, 3), frozenset({2}))
    assert ask(chat(), [4, 5], context=10).max_tokens == 8
    assert ask(chat(max_tokens=5), [4] * 9, context=10).max_tokens == 1


def test_prompts_the_engine_cannot_take() -> None:
    with pytest.raises(ApiError) as refused:
        ask(chat(), [4] * 10, context=10)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert "10 tokens" in refused.value.message
    with pytest.raises(ApiError, match="empty"):
        ask(text(), [])
    with pytest.raises(ApiError, match="50"):
        ask(text(), [3, 50])


# Answers


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_head(tmp_path_factory.mktemp("head"), byte_level()))


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
