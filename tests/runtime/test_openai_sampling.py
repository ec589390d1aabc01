"""How to pick tokens as OpenAI's JSON says it, and log-probabilities in its two forms."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.engine import Token
from ruvrun.frames import Sampling, Scores
from ruvrun.openai import ApiError, Call, Reply, engine_request, fold, parse_chat, parse_completion
from ruvrun.openai.scores import shown
from ruvrun.tokenizer import Tokenizer

Parse = Callable[[bytes], Call]
KINDS = {parse_chat: {"messages": [{"role": "user", "content": "hello"}]}, parse_completion: {"prompt": "hello"}}
BOTH = pytest.mark.parametrize("parse", KINDS)


def understood(parse: Parse, **fields: Any) -> Call:
    return parse(json.dumps({**KINDS[parse], **fields}).encode())


def refused(parse: Parse, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        understood(parse, **fields)
    assert error.value.status == 400
    return error.value


@BOTH
def test_everything_that_shapes_a_choice(parse: Parse) -> None:
    call = understood(
        parse, temperature=0.5, top_p=0.25, top_k=40, min_p=0.05, repetition_penalty=1.1, presence_penalty=-2,
        frequency_penalty=2, logit_bias={"7": -100, "0": 1.5}, seed=3,
    )  # fmt: skip
    wanted = Sampling(0.5, 0.25, 3, 40, 0.05, 1.1, -2.0, 2.0, ((7, -100.0), (0, 1.5)))
    assert call.sampling(0) == wanted
    greedy = Sampling(0.0, 1.0, 3, 0, 0.0, 1.1, -2.0, 2.0, ((7, -100.0), (0, 1.5)))
    assert understood(
        parse, temperature=0, top_k=40, min_p=0.05, repetition_penalty=1.1, presence_penalty=-2,
        frequency_penalty=2, logit_bias={"7": -100, "0": 1.5}, seed=3,
    ).sampling(0) == greedy  # fmt: skip


@BOTH
def test_null_and_off_are_as_if_not_given(parse: Parse) -> None:
    names = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs")
    plain = understood(parse)
    assert understood(parse, **dict.fromkeys(names)) == plain
    off: dict[str, Any] = {"top_k": -1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0}
    assert understood(parse, **off, frequency_penalty=0, logit_bias={}, top_logprobs=0) == plain
    assert understood(parse, top_k=0) == plain
    assert plain.sampling(9) == Sampling(1.0, 1.0, 9)


WRONG: list[tuple[str, Any]] = [
    *(("top_k", value) for value in (-2, 1.5, "40", True, 2**31)),
    *(("min_p", value) for value in (-0.1, 1.1, "0", [])),
    *(("repetition_penalty", value) for value in (0, -1, 100.5, "1")),
    *(("presence_penalty", value) for value in (-2.1, 2.1, "0", {})),
    *(("frequency_penalty", value) for value in (-2.1, 2.1, True)),
    *(("logit_bias", value) for value in ({"1": 100.5}, {"1": -101}, {"1": "5"}, {"1": None}, [1], "x", 5)),
    *(
        ("logit_bias", value)
        for value in ({"": 1}, {"a": 1}, {"-1": 1}, {"01": 1}, {"1.0": 1}, {"٣": 1}, {"9" * 10: 1})
    ),
    ("logit_bias", {str(token): 1 for token in range(1025)}),
]


@BOTH
@pytest.mark.parametrize(("name", "value"), WRONG)
def test_what_is_out_of_range_is_refused_by_name(parse: Parse, name: str, value: Any) -> None:
    error = refused(parse, **{name: value})
    assert error.param == name
    assert error.code == "invalid_value"
    assert name in error.message


@BOTH
def test_a_bias_for_what_is_no_token_of_the_model(parse: Parse) -> None:
    asked = understood(parse, logit_bias={"49": 1, "50": 1})
    with pytest.raises(ApiError, match="50 is not below 50") as error:
        engine_request(asked, [1], id=1, drawn=0, context=9, vocab=50, eos=frozenset())
    assert error.value.param == "logit_bias"
    assert engine_request(asked, [1], id=1, drawn=0, context=9, vocab=51, eos=frozenset()).sampling.logit_bias


def test_log_probabilities_are_asked_for_in_two_ways() -> None:
    assert understood(parse_chat, logprobs=True).sampling(0).logprobs == 0
    assert understood(parse_chat, logprobs=True, top_logprobs=20).sampling(0).logprobs == 20
    assert not understood(parse_chat, logprobs=False).scored
    assert understood(parse_completion, logprobs=0).sampling(0).logprobs == 0
    assert understood(parse_completion, logprobs=5).scored


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (parse_chat, {"logprobs": 3}, "logprobs"),
        (parse_chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (parse_chat, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (parse_chat, {"top_logprobs": 1}, "top_logprobs"),
        (parse_chat, {"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        (parse_completion, {"logprobs": 21}, "logprobs"),
        (parse_completion, {"logprobs": -1}, "logprobs"),
        (parse_completion, {"logprobs": True}, "logprobs"),
        (parse_completion, {"top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_log_probabilities_that_do_not_exist(parse: Parse, fields: dict[str, Any], param: str) -> None:
    assert refused(parse, **fields).param == param


# Answers


def said(tokenizer: Tokenizer, text: str) -> list[Token]:
    """Tokens with made-up log-probabilities, the second best always ``!``; ended by eos."""
    ids = [*tokenizer.encode(text), 2]
    return [
        Token(0, token, "stop" if token == 2 else None, Scores(-0.5 * at, ((token, -0.5 * at), (3, -7.0))))
        for at, token in enumerate(ids)
    ]


def answers(call: Call, tokenizer: Tokenizer, groups: list[list[Token]]) -> list[dict[str, Any]]:
    reply = Reply(
        call, model="m", key="k", created=5, prompt_tokens=3, decoders=[tokenizer.decoder()], spell=tokenizer.spell
    )
    return [*reply.start(), *(chunk for group in groups for chunk in reply.push(0, group)), reply.usage()]


def test_a_chat_with_log_probabilities(tokenizer: Tokenizer) -> None:
    tokens = said(tokenizer, "a世")
    chunks = answers(understood(parse_chat, logprobs=True, top_logprobs=2), tokenizer, [[token] for token in tokens])
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    assert found[0] is None
    assert [len(each["content"]) for each in found[1:]] == [1, 3, 0]
    content = fold(chunks)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["a", "bytes:\\xe4", "bytes:\\xb8", "bytes:\\x96"]
    assert content[0] == {
        "token": "a",
        "logprob": 0.0,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": 0.0, "bytes": [97]},
            {"token": "!", "logprob": -7.0, "bytes": [33]},
        ],
    }
    assert [entry["bytes"] for entry in content[1:]] == [[0xE4], [0xB8], [0x96]]


def test_a_completion_with_log_probabilities(tokenizer: Tokenizer) -> None:
    chunks = answers(understood(parse_completion, logprobs=2), tokenizer, [said(tokenizer, "a世!")])
    assert fold(chunks)["choices"][0]["logprobs"] == {
        "tokens": ["a", "bytes:\\xe4", "bytes:\\xb8", "bytes:\\x96", "!"],
        "token_logprobs": [0.0, -0.5, -1.0, -1.5, -2.0],
        "text_offset": [0, 1, 2, 2, 2],
        "top_logprobs": [
            {"a": 0.0, "!": -7.0},
            {"bytes:\\xe4": -0.5, "!": -7.0},
            {"bytes:\\xb8": -1.0, "!": -7.0},
            {"bytes:\\x96": -1.5, "!": -7.0},
            {"!": -2.0},
        ],
    }


def test_the_picked_token_is_among_the_best_of_a_completion(tokenizer: Tokenizer) -> None:
    token = Token(0, tokenizer.encode("x")[0], "length", Scores(-9.0, ((3, -0.1),)))
    found = fold(answers(understood(parse_completion, logprobs=1), tokenizer, [[token]]))["choices"][0]["logprobs"]
    assert found["top_logprobs"] == [{"!": -0.1, "x": -9.0}]


def test_what_cannot_be_is_very_unlikely_in_json(tokenizer: Tokenizer) -> None:
    token = Token(0, tokenizer.encode("x")[0], "length", Scores(-math.inf, ((3, -math.inf),)))
    (entry,) = fold(answers(understood(parse_chat, logprobs=True, top_logprobs=1), tokenizer, [[token]]))["choices"][0][
        "logprobs"
    ]["content"]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)


def test_an_empty_answer_has_an_empty_list(tokenizer: Tokenizer) -> None:
    chunks = answers(understood(parse_chat, logprobs=True), tokenizer, [said(tokenizer, "")])
    assert fold(chunks)["choices"][0]["logprobs"] == {"content": [], "refusal": None}


@given(text=st.text(max_size=20), stop=st.sampled_from([None, "a", "世"]), sizes=st.data())
def test_stream_and_plain_say_the_same_and_nothing_is_lost(
    tokenizer: Tokenizer, text: str, stop: str | None, sizes: st.DataObject
) -> None:
    tokens = said(tokenizer, text)
    groups, rest = [], tokens
    while rest:
        size = sizes.draw(st.integers(1, 5))
        groups.append(rest[:size])
        rest = rest[size:]
    for parse, asks in ((parse_chat, {"logprobs": True}), (parse_completion, {"logprobs": 1})):
        call = understood(parse, stop=stop, **asks)
        once = fold(answers(call, tokenizer, [tokens]))
        assert fold(answers(call, tokenizer, groups)) == once
        told = once["choices"][0]["logprobs"]
        if stop is None:
            spelled = [tokenizer.spell(token.token) for token in tokens[:-1]]
            assert b"".join(spelled).decode() == text
            names = [entry["token"] for entry in told["content"]] if "content" in told else told["tokens"]
            assert names == [shown(each) for each in spelled]
        else:
            made = once["usage"]["completion_tokens"] - (once["usage"]["completion_tokens"] == len(tokens))
            assert len(told["content"] if "content" in told else told["tokens"]) == made
