"""However a request ends: counted once, with the status that the client saw, or would have seen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Message, Receive, Scope, Send

from ruvrun.openai import ApiError

HUNG_UP = 499  # as nginx counts a client that left before its answer


class HungUp(Exception):  # noqa: N818 - not an error of ours, and nobody is left to read it
    """The client left before its answer was complete."""


async def counted(
    act: Callable[[HttpRequest, Send], Awaitable[int]],
    count: Callable[[str], None],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer a request with ``act``, which returns its status or raises; ``count`` gets the status in any case."""
    status, begun = 500, False

    async def sending(message: Message) -> None:
        nonlocal begun
        begun = True
        await send(message)

    try:
        status = await act(HttpRequest(scope, receive, sending), sending)
    except ApiError as error:
        status = error.status
        raise
    except asyncio.CancelledError:
        # The server stops and has waited long enough. This task is its own: to end it is all that is asked.
        status = 503
        if not begun:
            raise stopping() from None
    except (ClientDisconnect, HungUp):
        status = HUNG_UP
    finally:
        count(str(status))


async def hung_up(receive: Receive) -> None:
    """Return when the client hangs up (ASGI ``receive``, after the body was read)."""
    while (await receive())["type"] != "http.disconnect":
        pass


def stopping() -> ApiError:
    """The refusal of whatever is under way when the server ends."""
    return ApiError(503, "The server is stopping.", code="stopping")
