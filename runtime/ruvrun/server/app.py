"""The routes, and every error in the form of the API that was asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from ruvrun.errors import RuvError
from ruvrun.manifest import Manifest
from ruvrun.metrics import CONTENT_TYPE
from ruvrun.openai import ApiError, parse_chat, parse_completion
from ruvrun.pipeline.health import READY
from ruvrun.server.answer import Answer, no_model
from ruvrun.server.driver import Driver
from ruvrun.server.inbox import Inboxes
from ruvrun.server.infer import graph_routes, health_routes
from ruvrun.server.keys import Keys
from ruvrun.server.limits import Limits, Queue
from ruvrun.server.meters import Meters
from ruvrun.server.wire import error_response, json_response
from ruvrun.tokenizer import Tokenizer


def build_app(
    driver: Driver,
    tokenizer: Tokenizer | None,
    manifest: Manifest,
    *,
    api_keys: Mapping[str, str],
    context: int,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Starlette:
    """The whole front as an ASGI application.

    Args:
        driver: where requests go.
        tokenizer: of the model; None for a graph, which takes tensors.
        manifest: of the model.
        api_keys: key of each client's name; empty means that no key is asked for.
        context: tokens of prompt and answer together.
        limits: how many requests for text may wait, and how long they may take.
    """
    meters = Meters()

    async def health(_: HttpRequest) -> Response:
        body = driver.health()
        return json_response(body, 200 if all(node["state"] == READY for node in body["nodes"]) else 503)

    async def metrics(_: HttpRequest) -> Response:
        return Response(meters.render(driver), media_type=CONTENT_TYPE)

    routes = [Route("/health", health), Route("/metrics", metrics), *health_routes(driver)]
    if tokenizer is None:
        routes += [*graph_routes(driver, manifest, meters), _no_text(manifest.program.name)]
    else:
        shared: dict[str, Any] = {
            "driver": driver,
            "tokenizer": tokenizer,
            "manifest": manifest,
            "context": context,
            "inboxes": Inboxes(),
            "meters": meters,
            "limits": limits,
            "queue": Queue(limits.queue),
        }
        routes += [
            Route("/v1/chat/completions", Answer(parse_chat, **shared), methods=["POST"]),
            Route("/v1/completions", Answer(parse_completion, **shared), methods=["POST"]),
            *_model_routes(manifest.program.name, context),
            *_no_tensors(manifest.program.name),
        ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Keys, keys=api_keys)],
        exception_handlers={ApiError: _refused, HTTPException: _no_route, Exception: _our_bug},
    )


def _model_routes(name: str, context: int) -> list[Route]:
    """What OpenAI's API says of models: there is one."""
    entry = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "ruvrun", "max_model_len": context}

    async def models(_: HttpRequest) -> Response:
        return json_response({"object": "list", "data": [entry]})

    async def model(http: HttpRequest) -> Response:
        if http.path_params["name"] != name:
            raise no_model(http.path_params["name"], name)
        return json_response(entry)

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]


def _no_text(name: str) -> Route:
    """Where text would go, of a graph."""

    async def elsewhere(_: HttpRequest) -> Response:
        raise ApiError(
            404,
            f"{name} is a graph: it takes tensors, not text. POST them to /v2/models/{name}/infer, "
            "or use `ruvrun run --input`.",
            code="not_a_decoder",
        )

    return Route("/v1/{path:path}", elsewhere, methods=["GET", "POST"])


def _no_tensors(name: str) -> list[Route]:
    """Where tensors would go, of a decoder."""

    async def elsewhere(_: HttpRequest) -> Response:
        raise ApiError(
            404,
            f"{name} is a decoder: it takes text, not tensors. POST it to /v1/chat/completions or /v1/completions.",
            code="not_a_graph",
        )

    return [Route("/v2", elsewhere), Route("/v2/{path:path}", elsewhere, methods=["GET", "POST"])]


async def _refused(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(http.url.path, error)


async def _no_route(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = "There is nothing at" if error.status_code == 404 else f"{http.method} is not possible at"
    response = error_response(http.url.path, ApiError(error.status_code, f"{what} {http.url.path}."))
    response.headers.update(error.headers or {})
    return response


async def _our_bug(http: HttpRequest, error: Exception) -> Response:
    # The traceback goes to the log; the client learns only that it is not their fault.
    kind = error.ref if isinstance(error, RuvError) else type(error).__name__
    refusal = ApiError(500, f"An internal error occurred ({kind}).", code="internal_error")
    return error_response(http.url.path, refusal)
