"""A few HTTP requests to a running head, with the standard library only: a node needs no HTTP client for them.

Every way in which it can fail is an ``UnreachableError`` that names the address, or the error that the head
itself answered with.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import msgspec

from ruvrun.elements import Value
from ruvrun.errors import InputError, RuvError, UnreachableError, UsageError
from ruvrun.openinference import JSON_BYTES, read_reply, write_call

HTTP_PORT = 8000


class _Node(msgspec.Struct):
    node: str
    stage: int
    state: str
    since: str
    why: str
    pipeline: int = 0


class _Health(msgspec.Struct):
    """What the body of GET /health holds at least."""

    status: str
    id: str
    nodes: list[_Node]


@dataclass(frozen=True)
class Graph:
    """A graph that a head serves: its name, and the protocol's names of its inputs' types."""

    name: str
    datatypes: Mapping[str, str]


def base_url(text: str) -> str:
    """``host:port`` or a URL, without a path."""
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urllib.parse.urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0  # .port may raise
    except ValueError:
        sound = False
    if not sound:
        raise UsageError("url-wrong", f"{text!r} is not an address of HTTP", hint="give http://HOST:PORT")
    return url.removesuffix("/v1").removesuffix("/health")


def health(url: str, timeout: float = 5.0) -> dict[str, Any]:
    """GET /health, whatever its status code says.

    Raises:
        UnreachableError: nobody answers there, or not in our form.
    """
    with _answered(url):
        try:
            with _open(url, "/health", timeout=timeout) as response:
                body = response.read()
        except urllib.error.HTTPError as error:
            body = error.read()
    found = _object(url, body)
    try:
        msgspec.convert(found, _Health)
    except msgspec.ValidationError:
        raise _no_head(url) from None
    return found


def complete(url: str, path: str, body: dict[str, Any], key: str | None = None) -> Iterator[dict[str, Any]]:
    """POST a completion with ``stream`` and yield its chunks as they come.

    Raises:
        RuvError: nobody answers, or the head refused; then with its own words.
    """
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with _answered(url), _open(url, path, json.dumps(request).encode(), key, timeout=600.0) as response:
        for line in response:
            text = line.decode("utf-8", "replace").strip()
            if text.startswith("data:") and text != "data: [DONE]":
                chunk = _object(url, text.removeprefix("data:").encode())
                if "error" in chunk:
                    raise _refused(url, chunk, 500)
                yield chunk


def models(url: str, key: str | None = None) -> list[str]:
    """The names of GET /v1/models.

    Raises:
        RuvError: nobody answers, not in our form, or the head refused.
    """
    body = _get(url, "/v1/models", key)
    try:
        return [str(entry["id"]) for entry in body["data"]]
    except (KeyError, TypeError):
        raise _no_head(url) from None


def graph(url: str, key: str | None = None) -> Graph:
    """What is served, of GET /v2 and GET /v2/models/NAME.

    Raises:
        RuvError: nobody answers, not in our form, or the head refused: it serves a decoder.
    """
    try:
        name = str(_get(url, "/v2", key)["models"][0])
        model = _get(url, _model(name), key)
        return Graph(name, {str(one["name"]): str(one["datatype"]) for one in model["inputs"]})
    except (KeyError, TypeError, IndexError):
        raise _no_head(url) from None


def infer(url: str, graph: Graph, values: Mapping[str, Value], key: str | None = None) -> dict[str, Value]:
    """POST a call of a graph and return its outputs, which travel as they are and not as text.

    Raises:
        RuvError: nobody answers, or the head refused; then with its own words.
    """
    body, header = write_call(values, graph.datatypes)
    headers = {JSON_BYTES: str(header), "Content-Type": "application/octet-stream"}
    with _answered(url), _open(url, f"{_model(graph.name)}/infer", body, key, headers, timeout=600.0) as response:
        told = response.headers.get(JSON_BYTES)
        answer = response.read()
    try:
        return read_reply(answer, None if told is None else int(told))
    except (ValueError, InputError):
        raise _no_head(url) from None


def _model(name: str) -> str:
    return f"/v2/models/{urllib.parse.quote(name, safe='')}"


def _get(url: str, path: str, key: str | None) -> dict[str, Any]:
    with _answered(url), _open(url, path, key=key) as response:
        return _object(url, response.read())


@contextmanager
def _answered(url: str) -> Iterator[None]:
    """Whatever ends a request before its time, as our errors."""
    try:
        yield
    except urllib.error.HTTPError as error:
        with _answered(url):
            body = error.read()
        raise _refused(url, _object(url, body), error.code) from None
    except (OSError, HTTPException, ValueError) as error:
        raise _unreachable(url, error) from None


def _open(
    url: str,
    path: str,
    data: bytes | None = None,
    key: str | None = None,
    headers: Mapping[str, str] = {},
    *,
    timeout: float = 10.0,
) -> Any:
    headers = {"Content-Type": "application/json", **headers} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url + path, data=data, headers=headers)
    # A proxy of the environment is for the internet; the fleet is not there.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=timeout)


def _object(url: str, body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _no_head(url)
    return value


def _no_head(url: str) -> UnreachableError:
    return UnreachableError("not-a-head", f"{url} answers, but is not a ruvrun head", hint="check the address")


def _refused(url: str, body: dict[str, Any], code: int) -> RuvError:
    error = body.get("error")
    message = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    kind = InputError if code < 500 else UnreachableError
    hint = "give the key with --api-key" if code == 401 else "see `ruvrun status`" if code >= 500 else None
    return kind("head-refused", f"{url} answered {code}: {message}", hint=hint)


def _unreachable(url: str, error: Exception) -> UnreachableError:
    reason = getattr(error, "reason", error)
    return UnreachableError(
        "head-unreachable",
        f"the head at {url} does not answer",
        context=[str(reason) or type(reason).__name__],
        hint="start it with `ruvrun serve MANIFEST`, or correct the address",
    )
