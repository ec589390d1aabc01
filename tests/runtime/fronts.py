"""A scripted driver, and the HTTP front over it on a real socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import openai
from starlette.types import ASGIApp

from ruvrun.engine import Lost, Request, Token
from ruvrun.errors import InputError
from ruvrun.manifest import Head, Manifest, Program
from ruvrun.server import HttpServer, listen, url_of
from ruvrun.tokenizer import Tokenizer

CONTEXT = 200
SAFETY = 20.0  # seconds after which a test that waits for something has failed
EOS = 2
Answering = Callable[[Request], Iterable[Token | Lost]]
HELLO: Any = [{"role": "user", "content": "hello"}]


def node(name: str, stage: int, state: str = "ready", why: str = "") -> dict[str, Any]:
    return {"node": name, "stage": stage, "state": state, "since": "2025-01-01T00:00:00Z", "why": why}


class ScriptedDriver:
    """Answers each request by running ``script`` in a thread of its own, as a driver would call back."""

    def __init__(self) -> None:
        self.script: Answering = lambda _: ()
        self.nodes = [node("pi-0", 0), node("pi-1", 1)]
        self.submitted: list[Request] = []
        self.cancelled: queue.Queue[int] = queue.Queue()
        self.refuse: Exception | None = None
        self._ids = iter(range(1, 10**6))
        self._alive: set[int] = set()

    def next_id(self) -> int:
        return next(self._ids)

    def submit(self, request: Request, on_event: Callable[[Token | Lost], None]) -> None:
        if self.refuse:
            raise self.refuse
        self.submitted.append(request)
        self._alive.add(request.id)
        threading.Thread(target=self._run, args=(request, on_event), daemon=True).start()

    def call(self, tensors: Mapping[str, Any]) -> Future[dict[str, Any]]:  # noqa: ARG002 - the driver's signature
        raise InputError("not-a-graph", "this model is a decoder", hint=None)

    def cancel(self, id: int) -> None:
        if id in self._alive:
            self._alive.discard(id)
            self.cancelled.put(id)

    def health(self) -> dict[str, Any]:
        ready = all(entry["state"] == "ready" for entry in self.nodes)
        return {"status": "ready" if ready else "waiting", "id": "f" * 64, "nodes": self.nodes}

    def load(self) -> tuple[int, int]:
        return len(self._alive), 0

    def put_backs(self) -> int:
        return 3

    def _run(self, request: Request, on_event: Callable[[Token | Lost], None]) -> None:
        for event in self.script(request):
            if request.id not in self._alive:
                return
            if isinstance(event, Lost) or event.finish:
                self._alive.discard(request.id)
            on_event(event)


def manifest_of(kind: Any = "decoder") -> Manifest:
    program = Program(name="tiny", kind=kind, source="tiny.gguf", source_sha256="0" * 64, vocab=263, eos=[EOS])
    return Manifest(id="f" * 64, program=program, stage=[], node=[], pipeline=[], head=Head(node="pi-0"))


@contextlib.contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """The application on a free port of this machine: its URL."""
    bound = listen("127.0.0.1", 0)
    url, server = url_of(bound), HttpServer(app, bound)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield url
    finally:
        server.stop()
        thread.join(SAFETY)
        assert not thread.is_alive()


def client_of(url: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=SAFETY)


def says(tokenizer: Tokenizer, text: str) -> Answering:
    """Generates ``text`` and ends with eos, or with length where max_tokens is reached before."""

    def script(request: Request) -> Iterable[Token]:
        ids = [*tokenizer.encode(text), EOS]
        for count, token in enumerate(ids, 1):
            ends = "stop" if token == EOS else "length" if count == request.max_tokens else None
            yield Token(request.id, token, ends)  # type: ignore[arg-type]  # mypy widens the literals
            if ends:
                return

    return script


def call(
    url: str, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=SAFETY)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def error_of(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, dict[str, Any]]:
    error = json.loads(answer[2])["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer[0], error
