"""OpenAI's JSON as a pure text machine: what is understood, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.engine import Request
from ruvrun.frames import Sampling
from ruvrun.openai import ApiError, Call, engine_request, parse_chat, parse_completion
from tests.runtime.texts import HELLO, chat, text


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
