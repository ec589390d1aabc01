"""The Open Inference Protocol over a graph: one call in, its outputs out.

The life of a call here:

1. ``room`` lets it in, or it is refused at once; its body is read up to a limit.
2. ``ruvrun.openinference`` makes tensors of it. A long body is read beside the event loop, one at a time: as Python's
   numbers it takes several times its bytes.
3. The driver takes the tensors and gives a future. Nothing waits in a thread, so as many calls as the window of the
   pipeline allows are under way, and the others wait their turn in the driver.
4. Whatever ends it early (the client gone, a stage lost, the server stopping), the future is cancelled; what has not
   been sent by then is never computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ruvrun import __version__
from ruvrun.elements import Value
from ruvrun.errors import InputError, RuvError, UnreachableError
from ruvrun.manifest import Manifest
from ruvrun.openai import ApiError
from ruvrun.openinference import JSON_BYTES, LARGEST_BODY, describe_model, read_call, write_reply
from ruvrun.openinference.datatypes import version_of
from ruvrun.server.driver import Driver, not_ready, serves
from ruvrun.server.ending import HungUp, counted, hung_up
from ruvrun.server.meters import Meters
from ruvrun.server.room import Room
from ruvrun.server.wire import json_response, read_body

MAX_TENSORS = LARGEST_BODY
MAX_JSON = 32 * 2**20
"""Bytes of JSON in a body."""
MAX_HELD = 4 * MAX_TENSORS
MAX_CALLS = 512
_LONG = 2**14
_T = TypeVar("_T")


def health_routes(driver: Driver) -> list[Route]:
    """What every served model answers of the protocol: whether the head lives, and whether it takes requests."""

    async def live(_: HttpRequest) -> Response:
        return json_response({"live": True})

    async def ready(_: HttpRequest) -> Response:
        there = serves(driver)
        return json_response({"ready": there}, 200 if there else 503)

    return [Route("/v2/health/live", live), Route("/v2/health/ready", ready)]


def graph_routes(driver: Driver, manifest: Manifest, meters: Meters) -> list[Route]:
    """The rest of the protocol, for a graph."""
    name = manifest.program.name

    async def server(_: HttpRequest) -> Response:
        return json_response(
            {"name": "ruvrun", "version": __version__, "extensions": ["binary_tensor_data"], "models": [name]}
        )

    async def model(http: HttpRequest) -> Response:
        _require_model(http, manifest)
        return json_response(describe_model(manifest))

    async def ready(http: HttpRequest) -> Response:
        _require_model(http, manifest)
        there = serves(driver)
        return json_response({"name": name, "ready": there}, 200 if there else 503)

    infer = Infer(driver, manifest, meters)
    paths = ("/v2/models/{name}/versions/{version}", "/v2/models/{name}")
    return [
        Route("/v2", server),
        *(Route(f"{path}/infer", infer, methods=["POST"]) for path in paths),
        *(Route(f"{path}/ready", ready) for path in paths),
        *(Route(path, model) for path in paths),
    ]


class Infer:
    """The endpoint that runs the graph (an ASGI application).

    Args:
        driver: where calls go.
        manifest: of this model.
        meters: of the application.
    """

    def __init__(self, driver: Driver, manifest: Manifest, meters: Meters) -> None:
        self._driver = driver
        self._manifest = manifest
        self._meters = meters
        self._room = Room(MAX_HELD, MAX_CALLS)
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="tensors")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await counted(self._answer, self._count, scope, receive, send)

    def _count(self, status: str) -> None:
        # Not the path as it came: whoever asks for a thousand names would leave a thousand series.
        self._meters.requests.add(1, f"/v2/models/{self._manifest.program.name}/infer", status)

    async def _answer(self, http: HttpRequest, send: Send) -> int:
        _require_model(http, self._manifest)
        if refusal := not_ready(self._driver):
            raise refusal
        json_bytes = _json_bytes(http.headers)
        with self._room.taken(_announced(http.headers)):
            body = await read_body(http, MAX_TENSORS)
            if (len(body) if json_bytes is None else json_bytes) > MAX_JSON:
                raise ApiError(
                    413, f"The JSON is larger than {MAX_JSON} bytes; send the tensors as binary data.", code="too_large"
                )
            response = await self._respond(body, json_bytes, http.receive)
        await response(http.scope, http.receive, send)
        return 200

    async def _respond(self, body: bytes, json_bytes: int | None, receive: Receive) -> Response:
        program = self._manifest.program
        try:
            call = await self._run(len(body), lambda: read_call(body, json_bytes, program.inputs, program.outputs))
        except InputError as error:
            raise ApiError(400, _said(error), code=error.ref) from None
        values = await self._result(self._submit(call.tensors), receive)
        size = sum(map(_bytes_of, values.values()))
        model, version = program.name, version_of(self._manifest)
        try:
            text, header = await self._run(size, lambda: write_reply(call, values, model=model, version=version))
        except InputError as error:
            raise ApiError(422, _said(error), code=error.ref) from None
        if header is None:
            return Response(text, media_type="application/json")
        return Response(text, headers={JSON_BYTES: str(header)}, media_type="application/octet-stream")

    async def _run(self, size: int, act: Callable[[], _T]) -> _T:
        """Do this here, or beside the event loop where it takes long."""
        if size <= _LONG:
            return act()
        return await asyncio.get_running_loop().run_in_executor(self._aside, act)

    def _submit(self, tensors: Any) -> Future[dict[str, Value]]:
        try:
            return self._driver.call(tensors)
        except UnreachableError as error:
            raise not_ready(self._driver) or ApiError(503, f"{error.message}.", code="not_ready") from None

    async def _result(self, future: Future[dict[str, Value]], receive: Receive) -> dict[str, Value]:
        """The outputs, unless the client goes first."""
        coming = asyncio.wrap_future(future)
        going = asyncio.create_task(hung_up(receive))
        try:
            either: set[asyncio.Future[Any]] = {coming, going}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise HungUp
            return coming.result()
        except UnreachableError as error:
            self._meters.lost.add(1)
            raise ApiError(503, f"The call was lost: {error.message}", code="stage_lost") from None
        except InputError as error:
            raise ApiError(422, _said(error), code=error.ref) from None
        finally:
            going.cancel()
            coming.cancel()


def _require_model(http: HttpRequest, manifest: Manifest) -> None:
    served, version = manifest.program.name, version_of(manifest)
    asked = http.path_params["name"]
    if asked != served:
        raise ApiError(
            404, f"There is no model {asked[:80]!r} here; this server has {served!r}.", code="model_not_found"
        )
    wanted = http.path_params.get("version", version)
    if wanted != version:
        raise ApiError(404, f"{served!r} has no version {wanted[:80]!r}; it has {version!r}.", code="model_not_found")


def _json_bytes(headers: Headers) -> int | None:
    """How much of the body is JSON, where raw tensors follow."""
    if headers.get("content-encoding", "identity") != "identity":
        raise ApiError(415, "Compressed bodies are not read here; send it as it is.", code="content_encoding")
    text = headers.get(JSON_BYTES)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ApiError(400, f"{JSON_BYTES} must be a number of bytes.", code="call-wrong")
    return int(text)


def _announced(headers: Headers) -> int:
    """Bytes of the body, at most."""
    text = headers.get("content-length", "")
    return min(int(text), MAX_TENSORS) if text.isascii() and text.isdigit() and len(text) < 19 else MAX_TENSORS


def _bytes_of(value: Value) -> int:
    if isinstance(value, list):
        return sum(map(_bytes_of, value))
    return 0 if value is None else int(value.nbytes)


def _said(error: RuvError) -> str:
    """An error as one text: the sentence, its details, and what to do about it."""
    return "; ".join([error.message, *error.context, *([error.hint] if error.hint else [])])
