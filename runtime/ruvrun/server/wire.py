"""Bodies that come in, within bounds; JSON and events that go out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Send

from ruvrun.openai import ApiError
from ruvrun.server.room import BusyError

TOO_LATE = "deadline_exceeded"
MAX_BODY = 4 * 2**20
BODY_SECONDS = 60.0
EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

to_json = msgspec.json.Encoder().encode


def json_response(body: Any, status: int = 200) -> Response:
    """A body as JSON."""
    return Response(to_json(body), status, media_type="application/json")


async def send_events(send: Send, events: Sequence[bytes]) -> None:
    """Send events of a stream whose header was sent."""
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    await send({"type": "http.response.body", "body": body, "more_body": True})


def error_response(path: str, error: ApiError) -> Response:
    """An error in the form of the API that ``path`` belongs to: ``{"error": "..."}`` under /v2, else OpenAI's."""
    body = {"error": error.message} if f"{path}/".startswith("/v2/") else error.body()
    response = json_response(body, error.status)
    if isinstance(error, BusyError):
        response.headers["retry-after"] = str(error.retry_after)
    if error.code == TOO_LATE:  # a client that tries again by itself would only be late again
        response.headers["x-should-retry"] = "false"
    return response


async def read_body(http: HttpRequest, most: int | None = None) -> bytes:
    """The whole body. Raises ApiError where it is or would be too large (``most`` bytes), or is too slow."""
    pieces, size = [], 0
    most = MAX_BODY if most is None else most
    if int(http.headers.get("content-length", 0)) > most:  # a number: the protocol's reader has seen to that
        raise _too_large(most)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in http.stream():
                size += len(piece)
                if size > most:
                    raise _too_large(most)
                pieces.append(piece)
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {BODY_SECONDS:.0f} s.", code="request_timeout") from None
    return b"".join(pieces)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"The body is larger than {most} bytes.", code="request_too_large")
