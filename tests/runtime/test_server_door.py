"""Who is let in, where the front listens, and how it stops."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ruvrun.engine import Request, Token
from ruvrun.errors import InputError, MachineError, UsageError
from ruvrun.server import build_app, listen, load_keys, url_of
from ruvrun.server import http as http_module
from ruvrun.tokenizer import Tokenizer
from tests.runtime.fake_ring import wait_until
from tests.runtime.fronts import (
    CONTEXT,
    SAFETY,
    ScriptedDriver,
    call,
    client_of,
    error_of,
    manifest_of,
    says,
    served,
)

# Keys


def test_keys(tokenizer: Tokenizer) -> None:
    driver = ScriptedDriver()
    driver.script = says(tokenizer, "a")
    keys = {"alice": "key-of-alice", "bob": "key-of-bob"}
    with served(build_app(driver, tokenizer, manifest_of(), api_keys=keys, context=CONTEXT)) as url:
        for key in keys.values():
            assert client_of(url, key).completions.create(model="tiny", prompt="x").choices[0].text == "a"
        for wrong in ("key-of-carol", "key-of-alic", "key-of-alice2"):
            with pytest.raises(openai.AuthenticationError) as refused:
                client_of(url, wrong).completions.create(model="tiny", prompt="x")
            assert refused.value.code == "invalid_api_key"
        for headers in ({}, {"authorization": "key-of-bob"}, {"authorization": "Basic key-of-bob"}):
            for method, path in (
                ("POST", "/v1/completions"),
                ("GET", "/v1/models"),
                ("GET", "/metrics"),
                ("GET", "/x"),
            ):
                answer = call(url, method, path, None, headers)
                assert error_of(answer)[0] == 401
                assert answer[1]["www-authenticate"] == "Bearer"
        assert call(url, "GET", "/health")[0] == 200
    assert len(driver.submitted) == 2


def test_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# clients\nalice  3f6c\n\nbob\t77aa\n")
    assert load_keys(path) == {"alice": "3f6c", "bob": "77aa"}


@pytest.mark.parametrize("text", ["alice", "a b c", "alice 1\nalice 2", "alice 1\nbob 1", "", "# only this", "\xff"])
def test_wrong_key_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError) as refused:
        load_keys(path)
    assert "alice 1" not in str(refused.value)


def test_no_key_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        load_keys(tmp_path / "keys")
    assert refused.value.ref == "file-missing"


# The socket


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as bound, pytest.raises(MachineError) as refused:
        listen("127.0.0.1", bound.getsockname()[1])
    assert (refused.value.ref, refused.value.exit_code) == ("port-taken", 7)


@pytest.mark.parametrize(("host", "ref"), [("192.0.2.1", "host-not-here"), ("a..b", "host-unknown")])
def test_a_host_that_is_not_ours(host: str, ref: str) -> None:
    with pytest.raises(UsageError) as refused:
        listen(host, 0)
    assert refused.value.ref == ref


def test_urls() -> None:
    with listen("127.0.0.1", 0) as bound:
        assert url_of(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("stream", [True, False])
def test_stopping_ends_what_is_under_way(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    monkeypatch.setattr(http_module, "STOP_SECONDS", 0)
    hold, begun, driver = threading.Event(), threading.Event(), ScriptedDriver()

    def script(request: Request) -> Iterable[Token]:
        yield Token(request.id, tokenizer.encode("a")[0], None)
        begun.set()
        hold.wait(SAFETY)

    driver.script = script
    app = build_app(driver, tokenizer, manifest_of(), api_keys={}, context=CONTEXT)

    def ask(url: str) -> str:
        with pytest.raises(openai.APIError) as refused:
            list(client_of(url).completions.create(model="tiny", prompt="x", stream=stream))
        return str(refused.value)

    with ThreadPoolExecutor(1) as pool:
        with served(app) as url:
            asking = pool.submit(ask, url)
            assert begun.wait(SAFETY)
        assert "The server is stopping." in asking.result(SAFETY)
    assert driver.cancelled.get(timeout=SAFETY) == driver.submitted[0].id
    assert not [record for record in caplog.records if record.exc_info]
    hold.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_serve_quietly(number: signal.Signals) -> None:
    program = (
        "from ruvrun.server import HttpServer, listen, url_of\n"
        "from starlette.applications import Starlette\n"
        "bound = listen('127.0.0.1', 0)\n"
        "print(bound.getsockname()[1], flush=True)\n"
        "HttpServer(Starlette(), bound).run()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        port = int(child.stdout.readline())
        # An answer shows that the loop runs, and with it the handlers of signals.
        assert call(f"http://127.0.0.1:{port}", "GET", "/")[0] == 404
        child.send_signal(number)
        assert child.wait(SAFETY) == 0
        assert child.stderr
        assert child.stderr.read() == ""
    finally:
        child.kill()
        child.communicate()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=SAFETY):
        pass


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "HEAD_SECONDS", 0.3)
    with served(Starlette()) as url, connected(url) as slow, connected(url) as silent, connected(url) as second:
        second.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert second.recv(4096).startswith(b"HTTP/1.1 404")
        second.sendall(b"GET ")  # the second request of a connection has no more time than the first
        dropped = False
        until = time.monotonic() + SAFETY
        while not dropped:
            assert time.monotonic() < until
            try:
                slow.sendall(b"G")
                time.sleep(0.02)
            except OSError:
                dropped = True
        for connection in (silent, second):
            assert ends(connection)


@pytest.mark.parametrize(
    "said", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"\x16\x03\x01\x00\xee\r\n\r\n"]
)
def test_what_is_no_http_is_told_in_the_form_of_an_error(said: bytes) -> None:
    with served(Starlette()) as url, connected(url) as client:
        client.sendall(said)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")


def test_what_is_no_http_behind_the_beginning_of_an_answer_ends_the_connection() -> None:
    async def early(request: HttpRequest) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"begun"
            await request.body()

        return StreamingResponse(pieces())

    with served(Starlette(routes=[Route("/", early, methods=["POST"])])) as url, connected(url) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        answer = b""
        while b"begun" not in answer:
            answer += (piece := client.recv(4096))
            assert piece
        client.sendall(b"no size of a chunk\r\n")
        assert ends(client)


def test_who_has_sent_a_head_may_wait_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "HEAD_SECONDS", 0.1)

    async def slow(_: object) -> Response:
        await asyncio.sleep(0.5)
        return Response("late")

    with served(Starlette(routes=[Route("/", slow, methods=["GET", "POST"])])) as url, connected(url) as client:
        for _ in range(2):
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = b""
            while not answer.endswith(b"late"):
                answer += (piece := client.recv(4096))
                assert piece, answer
            time.sleep(0.3)  # between two requests the time of keep-alive counts


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=SAFETY)


def ends(connection: socket.socket) -> bool:
    """Whether the other side ends the connection, once what it has sent is read."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def test_as_long_as_its_loop_runs_it_ticks() -> None:
    server = http_module.HttpServer(Starlette(), listen("127.0.0.1", 0))
    assert server.ticks == 0
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.ticks > 2)
    server.stop()
    thread.join(SAFETY)
    ticks = server.ticks
    assert not thread.is_alive()
    assert server.ticks == ticks
