"""Tensors over HTTP: the server on a real socket, the real driver, and stages that are called in its poll."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ruvrun.frames import State
from ruvrun.openinference import read_reply, write_call
from ruvrun.server import build_app
from ruvrun.server import infer as infer_module
from ruvrun.tokenizer import Tokenizer
from tests.runtime.fake_ring import WAIT, wait_until
from tests.runtime.fronts import CONTEXT, SAFETY, ScriptedDriver, call, manifest_of, served
from tests.runtime.graph_heads import INFER, serving
from tests.runtime.heads import byte_level, write_head


@pytest.fixture
def url() -> Iterator[str]:
    with serving() as (found, _, _):
        yield found


def body_of(*values: int, **more: Any) -> bytes:
    data = {"name": "x", "shape": [len(values)], "datatype": "INT64", "data": values}
    return json.dumps({"inputs": [data], **more}).encode()


def ask(url: str, *values: int, **more: Any) -> list[int]:
    status, _, body = call(url, "POST", INFER, body_of(*values, **more))
    assert status == 200, body
    found: list[int] = json.loads(body)["outputs"][0]["data"]
    return found


def error_of(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    body = json.loads(answer[2])
    assert body.keys() == {"error"}
    return answer[0], body["error"]


# What it says of itself


def test_what_the_server_and_the_model_are(url: str) -> None:
    status, _, body = call(url, "GET", "/v2")
    assert (status, json.loads(body)["extensions"]) == (200, ["binary_tensor_data"])
    assert json.loads(body)["models"] == ["fake"]
    for path in ("/v2/models/fake", f"/v2/models/fake/versions/{'a' * 12}"):
        status, _, body = call(url, "GET", path)
        assert (status, json.loads(body)["inputs"]) == (200, [{"name": "x", "datatype": "INT64", "shape": [-1]}])


def test_ready_is_said_of_head_and_model() -> None:
    with serving() as (url, ring, driver):
        paths = ("/v2/health/ready", "/v2/models/fake/ready")
        assert [call(url, "GET", path)[0] for path in paths] == [200, 200]
        ring.inject(State("b", "lost", "gone"))
        wait_until(lambda: driver.health()["status"] == "lost")
        assert [json.loads(call(url, "GET", path)[2])["ready"] for path in paths] == [False, False]
        assert [call(url, "GET", path)[0] for path in paths] == [503, 503]
        status, _, body = call(url, "GET", "/v2/health/live")
        assert (status, json.loads(body)) == (200, {"live": True})
        status, message = error_of(call(url, "POST", INFER, body_of(1)))
        assert status == 503
        assert "node b (stage 1) is lost: gone" in message


# Calls


def test_a_call(url: str) -> None:
    status, headers, body = call(url, "POST", INFER, body_of(1, 2, 3, id="mine"))
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == {
        "model_name": "fake",
        "model_version": "a" * 12,
        "id": "mine",
        "outputs": [{"name": "x", "datatype": "INT64", "shape": [3], "data": [4, 8, 12]}],
    }
    assert call(url, "POST", f"/v2/models/fake/versions/{'a' * 12}/infer", body_of(1))[0] == 200


def test_a_call_in_bytes(url: str) -> None:
    text, header = write_call({"x": np.arange(20000)})
    headers = {"Inference-Header-Content-Length": str(header)}
    status, headers, body = call(url, "POST", INFER, text, headers)
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    found = read_reply(body, int(headers["inference-header-content-length"]))
    assert found["x"].tolist() == [4 * n for n in range(20000)]


def test_a_long_call_is_read_beside_the_loop(url: str) -> None:
    values = list(range(20000))
    assert ask(url, *values) == [4 * n for n in values]


def test_several_calls_are_in_the_pipeline_and_the_server_answers_meanwhile() -> None:
    with serving() as (url, ring, driver), ThreadPoolExecutor(9) as pool:
        ring.hold = True
        answers = [pool.submit(ask, url, n) for n in range(9)]
        wait_until(lambda: driver.load() == (4, 5))
        assert call(url, "GET", "/health")[0] == 200
        lines = call(url, "GET", "/metrics")[2].decode().splitlines()
        assert "ruvrun_requests_running 4" in lines
        assert "ruvrun_requests_waiting 5" in lines
        ring.release()
        assert [answer.result(SAFETY) for answer in answers] == [[4 * n] for n in range(9)]


def test_a_call_whose_client_left_is_not_computed() -> None:
    with serving() as (url, ring, driver), ThreadPoolExecutor(4) as pool:
        ring.hold = True
        answers = [pool.submit(ask, url, n) for n in range(4)]
        wait_until(lambda: driver.load() == (4, 0))
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=SAFETY) as leaving:
            body = body_of(7)
            leaving.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), len(body)))
            leaving.sendall(body)
            wait_until(lambda: driver.load() == (4, 1))
        metric = f'ruvrun_requests_total{{path="{INFER}",status="499"}} 1'
        wait_until(lambda: metric in call(url, "GET", "/metrics")[2].decode())
        call(url, "GET", "/metrics")  # a turn of the server's loop later the call itself is cancelled, too
        ring.release()
        assert [answer.result(SAFETY) for answer in answers] == [[4 * n] for n in range(4)]
        assert ask(url, 9) == [36]
        assert len(ring.sent) == 5


# Refusals


def test_wrong_inputs_are_400_and_named(url: str) -> None:
    status, message = error_of(call(url, "POST", INFER, body_of(1).replace(b"INT64", b"INT32")))
    assert (status, message) == (400, "'x' is INT32, the model takes INT64; send it as INT64")
    status, message = error_of(call(url, "POST", INFER, body_of(1, outputs=[{"name": "z"}])))
    assert (status, message) == (400, "the model has no output 'z'; known: x")
    for wrong in ("x", "-1", "1" * 30, "9"):
        status, _ = error_of(call(url, "POST", INFER, b"{}", {"Inference-Header-Content-Length": wrong}))
        assert status == 400
    assert error_of(call(url, "POST", INFER, b"{}", {"Content-Encoding": "gzip"}))[0] == 415


def test_what_the_graph_refuses_is_422_with_its_reason(url: str) -> None:
    status, message = error_of(call(url, "POST", INFER, body_of(-1)))
    assert status == 422
    assert "x is negative" in message
    assert ask(url, 1) == [4]


def test_names_and_methods_that_do_not_exist(url: str) -> None:
    for method, path in (("GET", "/v2/models/other"), ("GET", "/v2/models/other/ready")):
        status, message = error_of(call(url, method, path))
        assert (status, message) == (404, "There is no model 'other' here; this server has 'fake'.")
    assert error_of(call(url, "POST", "/v2/models/other/infer", body_of(1)))[0] == 404
    assert "has no version '7'" in error_of(call(url, "GET", "/v2/models/fake/versions/7"))[1]
    assert error_of(call(url, "GET", "/v2/nothing")) == (404, "There is nothing at /v2/nothing.")
    assert error_of(call(url, "GET", INFER))[0] == 405
    status, _, body = call(url, "POST", "/v1/chat/completions", b"{}")
    assert status == 404
    assert INFER in json.loads(body)["error"]["message"]
    lines = call(url, "GET", "/metrics")[2].decode()
    assert "other" not in lines


def test_a_decoder_takes_no_tensors(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_head(tmp_path, byte_level()))
    with served(build_app(ScriptedDriver(), tokenizer, manifest_of(), api_keys={}, context=CONTEXT)) as url:
        for method, path in (("POST", "/v2/models/tiny/infer"), ("GET", "/v2"), ("GET", "/v2/models/tiny")):
            status, message = error_of(call(url, method, path))
            assert status == 404
            assert "/v1/chat/completions" in message
        assert call(url, "GET", "/v2/health/ready")[0] == 200


def test_keys_are_asked_for() -> None:
    with serving({"alice": "secret"}) as (url, _, _):
        answer = call(url, "POST", INFER, body_of(1))
        assert error_of(answer)[0] == 401
        assert answer[1]["www-authenticate"] == "Bearer"
        assert call(url, "GET", "/v2/health/ready")[0] == 200
        assert call(url, "POST", INFER, body_of(1), {"authorization": "Bearer secret"})[0] == 200


def test_bodies_are_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_module, "MAX_TENSORS", 200)
    assert error_of(call(url, "POST", INFER, b" " * 201))[0] == 413
    monkeypatch.setattr(infer_module, "MAX_JSON", 100)
    status, message = error_of(call(url, "POST", INFER, b" " * 101))
    assert status == 413
    assert "binary" in message


def test_a_crowd_is_turned_away_and_those_inside_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_module, "MAX_CALLS", 3)
    with serving() as (url, ring, driver), ThreadPoolExecutor(3) as pool:
        ring.hold = True
        answers = [pool.submit(ask, url, n) for n in range(3)]
        wait_until(lambda: driver.load() == (3, 0))
        answer = call(url, "POST", INFER, body_of(1))
        assert error_of(answer)[0] == 503
        assert answer[1]["retry-after"] == "1"
        ring.release()
        assert [answer.result(SAFETY) for answer in answers] == [[4 * n] for n in range(3)]
        assert ask(url, 5) == [20]


def test_large_bodies_together_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_module, "MAX_HELD", 300)
    with serving() as (url, ring, driver), ThreadPoolExecutor(1) as pool:
        ring.hold = True
        first = pool.submit(ask, url, *range(100))  # alone it is let in, whatever its size
        wait_until(lambda: driver.load() == (1, 0))
        assert error_of(call(url, "POST", INFER, body_of(1)))[0] == 503
        ring.release()
        assert first.result(SAFETY)[1] == 4
        assert ask(url, 5) == [20]


def test_a_lost_stage_ends_the_calls_and_the_next_ones_work() -> None:
    with serving() as (url, ring, driver), ThreadPoolExecutor(2) as pool:
        ring.hold = True
        answers = [pool.submit(call, url, "POST", INFER, body_of(n)) for n in range(2)]
        wait_until(lambda: driver.load() == (2, 0))
        ring.inject(State("b", "lost", "gone"))
        for answer in answers:
            status, message = error_of(answer.result(SAFETY))
            assert status == 503
            assert "b (stage 1) was lost: gone" in message
        ring.lose_ring()
        ring.release()
        ring.ready()
        assert driver.wait_ready(WAIT)
        assert ask(url, 3) == [12]
        assert "ruvrun_lost_total 2" in call(url, "GET", "/metrics")[2].decode()


def test_stopping_ends_a_call_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from ruvrun.server import http as http_module

    monkeypatch.setattr(http_module, "STOP_SECONDS", 0)
    with ThreadPoolExecutor(1) as pool:
        with serving() as (url, ring, driver):
            ring.hold = True
            answer = pool.submit(call, url, "POST", INFER, body_of(1))
            wait_until(lambda: driver.load() == (1, 0))
        assert error_of(answer.result(SAFETY)) == (503, "The server is stopping.")
