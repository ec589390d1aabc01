"""Clients that ask and do not read: that holds nothing of the pipeline, and not even their connection for ever."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from ruvrun.engine import Request, Token
from ruvrun.frames import Scores
from ruvrun.server import build_app
from ruvrun.server import http as http_module
from ruvrun.tokenizer import Tokenizer
from tests.runtime.fronts import CONTEXT, HELLO, SAFETY, ScriptedDriver, client_of, manifest_of, says, served

MUCH = 6000
"""Tokens whose log-probabilities are more than a kernel keeps for a connection."""


@contextmanager
def unread(url: str, request: bytes) -> Iterator[None]:
    """Somebody asks, and reads nothing of the answer."""
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(SAFETY)
        client.connect((host, int(port)))
        client.sendall(request)
        yield


def test_a_deadline_frees_what_an_unread_answer_holds(tokenizer: Tokenizer) -> None:
    """And others are answered meanwhile."""
    hold, scores = threading.Event(), Scores(-1.0, tuple((token, -1.0) for token in range(3, 23)))

    def script(request: Request) -> Iterable[Token]:
        if len(request.prompt) == 1:
            yield from says(tokenizer, "b")(request)  # type: ignore[misc]  # this script is never lost
            return
        for _ in range(MUCH):
            yield Token(request.id, 70, None, scores)
        hold.wait(SAFETY)

    driver = ScriptedDriver()
    driver.script = script
    body = json.dumps({"messages": HELLO, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Timeout: 3\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    app = build_app(driver, tokenizer, manifest_of(), api_keys={}, context=CONTEXT)
    with served(app) as url, unread(url, head.encode() + body):
        assert client_of(url).completions.create(model="tiny", prompt="x").choices[0].text == "b"
        much = next(one for one in driver.submitted if len(one.prompt) > 1)
        assert driver.cancelled.get(timeout=SAFETY) == much.id
        hold.set()


def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "READ_SECONDS", 0.1)
    ended = threading.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.done():
            await send({"type": "http.response.body", "body": bytes(2**16), "more_body": True})
        ended.set()

    with served(endless) as url, unread(url, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
        assert ended.wait(SAFETY)


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that is never asked."""


class Watched:
    """A connection of which a test says how much of it waits for the client, and when time has passed."""

    def __init__(self) -> None:
        self.waiting = 0
        self.aborted = False
        self.later: list[Callable[[], None]] = []
        config = uvicorn.Config(nothing, log_config=None)
        self.protocol = http_module._Impatient(config, ServerState(), {}, _loop=self)  # type: ignore[arg-type]  # a double
        self.protocol.transport = self  # type: ignore[assignment]  # a double
        self.protocol.flow = FlowControl(self)  # type: ignore[arg-type]  # a double
        self.protocol.cycle = SimpleNamespace(response_complete=False)  # type: ignore[assignment]  # a double

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.aborted = True

    def call_later(self, seconds: float, act: Callable[..., None], *what: Any) -> SimpleNamespace:
        assert seconds == http_module.READ_SECONDS
        self.later = [lambda: act(*what)]
        return SimpleNamespace(cancel=self.later.clear)

    def passes(self, waiting: int) -> None:
        """So much waits when it is looked at again."""
        self.waiting = waiting
        (act,) = self.later
        self.later = []
        act()


def test_who_takes_some_of_it_is_waited_for() -> None:
    slow = Watched()
    slow.waiting = 100_000
    slow.protocol.pause_writing()
    for left in (90_000, 70_000, 69_999):
        slow.passes(left)
        assert not slow.aborted
    slow.protocol.resume_writing()
    slow.passes(69_999)
    assert not slow.aborted, "more is added to it, so nobody knows"
    slow.passes(0)
    assert not slow.later, "nothing waits any more"


@pytest.mark.parametrize("complete", [False, True])
def test_who_takes_nothing_of_it_is_not(complete: bool) -> None:
    """Neither in the midst of an answer nor behind its end, of which it may be no more than a rest."""
    slow = Watched()
    slow.waiting = 500
    slow.protocol.cycle.response_complete = complete
    if complete:
        slow.protocol._look()
    else:
        slow.protocol.pause_writing()
    slow.passes(400)
    assert not slow.aborted
    slow.passes(400)
    assert slow.aborted
    assert not slow.later
