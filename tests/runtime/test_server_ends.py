"""Requests that end early or do not begin, over a real socket: clients leave, stages are lost, much is refused."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterable

import openai
import pytest

from ruvrun.engine import Lost, Request, Token
from ruvrun.errors import InputError, UnreachableError
from ruvrun.server import wire as wire_module
from ruvrun.tokenizer import Tokenizer
from tests.runtime.fronts import (
    CONTEXT,
    HELLO,
    SAFETY,
    Answering,
    ScriptedDriver,
    call,
    error_of,
)

# Ends that come early


def first_token_then_nothing(tokenizer: Tokenizer, hold: threading.Event) -> Answering:
    def script(request: Request) -> Iterable[Token]:
        yield Token(request.id, tokenizer.encode("a")[0], None)
        hold.wait(SAFETY)

    return script


def test_a_client_that_leaves_a_stream_ends_the_work(
    driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    hold = threading.Event()
    driver.script = first_token_then_nothing(tokenizer, hold)
    stream = client.completions.create(model="tiny", prompt="x", stream=True)
    assert next(stream).choices[0].text == "a"
    assert driver.cancelled.empty()
    stream.close()
    assert driver.cancelled.get(timeout=SAFETY) == driver.submitted[0].id
    hold.set()


def test_a_client_that_leaves_before_its_plain_answer_ends_the_work(
    driver: ScriptedDriver, url: str, tokenizer: Tokenizer
) -> None:
    hold, begun = threading.Event(), threading.Event()

    def script(request: Request) -> Iterable[Token]:
        begun.set()
        hold.wait(SAFETY)
        return ()

    driver.script = script
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=SAFETY)
    connection.request("POST", "/v1/completions", b'{"prompt": ["x", "y"]}')
    assert begun.wait(SAFETY)
    connection.close()
    cancelled = {driver.cancelled.get(timeout=SAFETY) for _ in range(2)}
    assert cancelled == {request.id for request in driver.submitted}
    hold.set()


def test_a_stage_lost_before_the_first_token(
    driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    driver.script = lambda request: [Lost(request.id, "pi-1 (stage 1) was lost")]
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as lost:
            client.chat.completions.create(model="tiny", messages=HELLO, stream=stream)
        assert lost.value.status_code == 503
        assert lost.value.code == "stage_lost"
        assert "pi-1 (stage 1) was lost" in str(lost.value)


def test_a_stage_lost_in_a_plain_answer(driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    driver.script = lambda request: [Token(request.id, 70, None), Lost(request.id, "pi-1 was lost")]
    with pytest.raises(openai.InternalServerError, match="pi-1 was lost"):
        client.completions.create(model="tiny", prompt="x")


def test_a_stage_lost_in_a_stream(
    driver: ScriptedDriver, url: str, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    first_was_read = threading.Event()

    def script(request: Request) -> Iterable[Token | Lost]:
        yield Token(request.id, tokenizer.encode("a")[0], None)
        first_was_read.wait(SAFETY)
        yield Lost(request.id, "pi-1 was lost")

    driver.script = script
    stream = client.completions.create(model="tiny", prompt="x", stream=True)
    assert next(stream).choices[0].text == "a"
    first_was_read.set()
    with pytest.raises(openai.APIError, match="pi-1 was lost"):
        list(stream)
    raw = call(url, "POST", "/v1/completions", b'{"prompt": "x", "stream": true}')[2].decode()
    last = raw.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stage_lost"
    assert "[DONE]" not in raw


# Refusals


def test_unknown_model(driver: ScriptedDriver, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert refused.value.code == "model_not_found"
    assert "'tiny'" in str(refused.value)
    assert driver.submitted == []


def test_wrong_parameters(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=3)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=HELLO, n=2)
    assert refused.value.code == "unsupported_parameter"


def test_prompt_longer_than_the_context(driver: ScriptedDriver, client: openai.OpenAI) -> None:
    for prompt in ("x" * CONTEXT, "x" * 20_000):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="tiny", prompt=prompt)
        assert refused.value.code == "context_length_exceeded"
        assert str(len(prompt)) in str(refused.value)
    assert driver.submitted == []


def test_malformed_json(url: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        status, error = error_of(call(url, "POST", path, b'{"messages": [', {"content-type": "application/json"}))
        assert (status, error["code"]) == (400, "invalid_json")


def test_a_body_that_is_too_large(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "MAX_BODY", 1000)
    assert error_of(call(url, "POST", "/v1/completions", b" " * 1001))[0] == 413
    assert error_of(call(url, "POST", "/v1/completions", b" " * 1000))[0] == 400


def test_a_body_that_would_be_too_large_is_not_waited_for(url: str) -> None:
    """Not a byte of it comes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=SAFETY) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 413"


def test_paths_and_methods_that_do_not_exist(url: str) -> None:
    status, error = error_of(call(url, "GET", "/v1/embeddings"))
    assert (status, error["message"]) == (404, "There is nothing at /v1/embeddings.")
    answer = call(url, "GET", "/v1/completions")
    assert error_of(answer)[0] == 405
    assert answer[1]["allow"] == "POST"


def test_what_the_driver_refuses(driver: ScriptedDriver, client: openai.OpenAI) -> None:
    driver.refuse = InputError("prompt-too-long", "the prompt is too long", hint=None)
    with pytest.raises(openai.BadRequestError, match="the prompt is too long"):
        client.completions.create(model="tiny", prompt="x")
    driver.refuse = UnreachableError("stage-lost", "the service is stopping", hint=None)
    with pytest.raises(openai.InternalServerError, match="the service is stopping") as refused:
        client.completions.create(model="tiny", prompt="x")
    assert refused.value.status_code == 503


def test_a_bug_of_ours_tells_the_client_nothing(driver: ScriptedDriver, url: str) -> None:
    driver.refuse = KeyError("secret detail")
    status, error = error_of(call(url, "POST", "/v1/completions", b'{"prompt": "x"}'))
    assert (status, error["type"]) == (500, "server_error")
    assert "secret" not in error["message"]
