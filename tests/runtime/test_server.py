"""The HTTP front over a real socket, with the official client; only the driver is a double."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from ruvrun.engine import Lost, Request, Token
from ruvrun.frames import Scores
from ruvrun.server import build_app
from ruvrun.tokenizer import Tokenizer
from tests.runtime.fronts import (
    CONTEXT,
    EOS,
    HELLO,
    SAFETY,
    ScriptedDriver,
    call,
    client_of,
    error_of,
    manifest_of,
    node,
    says,
    served,
)

# Answers


def test_chat(driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    driver.script = says(tokenizer, "wörld 世界")
    answer = client.chat.completions.create(model="tiny", messages=HELLO, temperature=0.5, top_p=0.9, seed=3)
    assert answer.choices[0].message.content == "wörld 世界"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "tiny"
    prompt = tokenizer.chat(HELLO)
    assert answer.usage
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(tokenizer.encode("wörld 世界")) + 1
    (request,) = driver.submitted
    assert request.prompt == tuple(prompt)
    assert request.eos == {EOS}
    assert request.max_tokens == CONTEXT - len(prompt)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.5, 0.9, 3)


def test_streaming_chat(driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    driver.script = says(tokenizer, "a世b")
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "a世b"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 6
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_as_the_client_reads_them(
    driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer, stream: bool
) -> None:
    ids = tokenizer.encode("ab")
    scores = [Scores(-0.25, ((ids[0], -0.25), (ids[1], -1.5))), Scores(-0.5, ((ids[1], -0.5), (ids[0], -2.0)))]
    driver.script = lambda request: [
        Token(request.id, ids[0], None, scores[0]),
        Token(request.id, ids[1], "length", scores[1]),
    ]
    asked: dict[str, Any] = {"model": "tiny", "stream": stream}
    chat: Any = client.chat.completions.create(messages=HELLO, logprobs=True, top_logprobs=2, **asked)
    told = [part.choices[0].logprobs for part in chat] if stream else [chat.choices[0].logprobs]
    content = [entry for part in told if part and part.content for entry in part.content]
    assert [(entry.token, entry.logprob, entry.bytes) for entry in content] == [("a", -0.25, [97]), ("b", -0.5, [98])]
    assert [(best.token, best.logprob) for best in content[0].top_logprobs] == [("a", -0.25), ("b", -1.5)]
    text: Any = client.completions.create(prompt="x", logprobs=2, **asked)
    parts = [part.choices[0].logprobs for part in text] if stream else [text.choices[0].logprobs]
    assert [token for part in parts for token in part.tokens] == ["a", "b"]
    assert [best for part in parts for best in part.top_logprobs] == [{"a": -0.25, "b": -1.5}, {"b": -0.5, "a": -2.0}]
    assert [offset for part in parts for offset in part.text_offset] == [0, 1]
    assert [request.sampling.logprobs for request in driver.submitted] == [2, 2]


def test_a_stream_arrives_while_it_is_made(driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    first_was_read = threading.Event()

    def script(request: Request) -> Iterable[Token]:
        yield Token(request.id, tokenizer.encode("a")[0], None)
        if first_was_read.wait(SAFETY):
            yield Token(request.id, tokenizer.encode("b")[0], "length")

    driver.script = script
    stream = client.completions.create(model="tiny", prompt="x", stream=True)
    assert next(stream).choices[0].text == "a"
    first_was_read.set()
    assert [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in stream] == [("b", "length")]


def test_the_wire_form_of_a_stream(driver: ScriptedDriver, url: str, tokenizer: Tokenizer) -> None:
    driver.script = says(tokenizer, "ab")
    status, headers, body = call(url, "POST", "/v1/completions", b'{"prompt": "x", "stream": true}')
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["object"] == "text_completion" for event in events[:-2])


def test_completion(driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    driver.script = says(tokenizer, "and so on")
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=3)
    assert answer.choices[0].text == "and"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 3
    assert driver.submitted[0].prompt == tuple(tokenizer.encode("hello"))


def test_completion_of_token_ids_and_of_several_prompts(
    driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    driver.script = lambda request: [
        Token(request.id, request.prompt[0], None),
        Token(request.id, request.prompt[-1], "length"),
    ]
    a, b, c, d = (tokenizer.encode(letter)[0] for letter in "abcd")
    answer = client.completions.create(model="tiny", prompt=[[a, b], [c, d]])
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "ab"), (1, "cd")]
    assert answer.usage
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 4)
    assert client.completions.create(model="tiny", prompt=[b, a]).choices[0].text == "ba"


def test_a_stop_string_across_tokens_ends_the_work(
    driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    def script(request: Request) -> Iterable[Token]:
        for token in tokenizer.encode("one END"):
            yield Token(request.id, token, None)
        cancelled.wait(SAFETY)

    cancelled = threading.Event()
    driver.script = script
    answer = client.completions.create(model="tiny", prompt="x", stop=[" END", "never"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("one", "stop")
    assert answer.usage
    assert answer.usage.completion_tokens == len(tokenizer.encode("one END"))
    assert driver.cancelled.get(timeout=SAFETY) == driver.submitted[0].id
    cancelled.set()


def test_a_text_that_has_stopped_does_not_work_on_while_another_does(
    driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    first_is_over = threading.Event()

    def script(request: Request) -> Iterable[Token]:
        if request.prompt == tuple(tokenizer.encode("first")):
            for token in tokenizer.encode("one."):
                yield Token(request.id, token, None)
        elif first_is_over.wait(SAFETY):
            yield from says(tokenizer, "two")(request)  # type: ignore[misc]  # this script is never lost

    driver.script = script
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.completions.create, model="tiny", prompt=["first", "second"], stop=".")
        assert driver.cancelled.get(timeout=SAFETY) == driver.submitted[0].id
        first_is_over.set()
        answer = asking.result(SAFETY)
    assert [choice.text for choice in answer.choices] == ["one", "two"]


def test_many_at_once(driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    together = threading.Barrier(8)

    def script(request: Request) -> Iterable[Token | Lost]:
        together.wait(SAFETY)  # no answer begins before the last request was taken
        yield from says(tokenizer, tokenizer.decode(request.prompt) * 3)(request)

    driver.script = script
    prompts = [f"prompt {number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: client.completions.create(model="tiny", prompt=prompt), prompts))
    assert [answer.choices[0].text for answer in answers] == [prompt * 3 for prompt in prompts]


def test_seeds_are_drawn_anew(driver: ScriptedDriver, client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    driver.script = says(tokenizer, "a")
    for _ in range(2):
        client.completions.create(model="tiny", prompt=["x", "y"])
    assert len({request.sampling.seed for request in driver.submitted}) == 4


# State


def test_health_and_requests_while_a_node_is_missing(
    driver: ScriptedDriver, url: str, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    status, _, body = call(url, "GET", "/health")
    assert (status, json.loads(body)) == (200, driver.health())
    driver.nodes[1] = node("pi-1", 1, "waiting", "no answer for 40 s")
    status, _, body = call(url, "GET", "/health")
    assert (status, json.loads(body)) == (503, driver.health())
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model="tiny", messages=HELLO)
    assert refused.value.status_code == 503
    assert "node pi-1 (stage 1) is waiting: no answer for 40 s" in str(refused.value)
    assert driver.submitted == []
    driver.nodes[1] = node("pi-1", 1)
    driver.script = says(tokenizer, "a")
    assert client.completions.create(model="tiny", prompt="x").choices[0].text == "a"


def test_requests_are_served_while_one_pipeline_is_whole(
    driver: ScriptedDriver, url: str, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    driver.script = says(tokenizer, "a")
    driver.nodes = [node("pi-0", 0), {**node("pi-1", 0, "lost", "gone"), "pipeline": 1}]
    assert call(url, "GET", "/health")[0] == 503
    assert call(url, "GET", "/v2/health/ready")[0] == 200
    assert client.completions.create(model="tiny", prompt="x").choices[0].text == "a"
    driver.nodes[0]["state"] = "loading"
    assert call(url, "GET", "/v2/health/ready")[0] == 503
    with pytest.raises(openai.InternalServerError, match=r"pi-0 \(stage 0\) is loading; node pi-1"):
        client.completions.create(model="tiny", prompt="x")


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_metrics_count_what_happened(tokenizer: Tokenizer) -> None:
    driver = ScriptedDriver()
    driver.script = says(tokenizer, "ab")
    driver.nodes[1] = node("pi-1", 1)
    with (
        served(build_app(driver, tokenizer, manifest_of(), api_keys={}, context=CONTEXT)) as url,
        client_of(url) as client,
    ):
        client.completions.create(model="tiny", prompt="hello")
        call(url, "POST", "/v1/completions", b"{}")
        driver.nodes[1] = node("pi-1", 1, "lost")
        status, headers, body = call(url, "GET", "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = body.decode().splitlines()
    for line in (
        'ruvrun_requests_total{path="/v1/completions",status="200"} 1',
        'ruvrun_requests_total{path="/v1/completions",status="400"} 1',
        f"ruvrun_prompt_tokens_total {len(tokenizer.encode('hello'))}",
        "ruvrun_completion_tokens_total 3",
        "ruvrun_first_token_total 1",
        "ruvrun_requests_running 0",
        "ruvrun_put_backs_total 3",
        'ruvrun_node_ready{node="pi-0",stage="0"} 1',
        'ruvrun_node_ready{node="pi-1",stage="1"} 0',
    ):
        assert line in lines


def test_a_graph_takes_no_text() -> None:
    with served(build_app(ScriptedDriver(), None, manifest_of("graph"), api_keys={}, context=0)) as url:
        assert call(url, "GET", "/health")[0] == 200
        assert call(url, "GET", "/metrics")[0] == 200
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models")):
            status, error = error_of(call(url, method, path))
            assert status == 404
            assert "tensors" in error["message"]
