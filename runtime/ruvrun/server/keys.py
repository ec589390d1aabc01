"""API keys: a file of ``name key`` lines, and the door that asks for one of them."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ruvrun.errors import InputError
from ruvrun.openai import ApiError
from ruvrun.server.wire import error_response

OPEN = frozenset({"/health", "/v2/health/live", "/v2/health/ready"})
"""Paths that need no key: load balancers and `ruvrun status` ask there, and nothing of a request is in it."""


def load_keys(path: Path) -> dict[str, str]:
    """Read an API key file: one ``name key`` per line; empty lines and lines that begin with ``#`` do not count.

    Returns:
        Key of each name; at least one.

    Raises:
        InputError: the file cannot be read, or a line (named by number, never shown) is not of that form.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        raise InputError("file-missing", f"no key file at {path}", hint="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("file-unreadable", f"cannot read {path}: {error}", hint="check the file") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] in keys or words[1] in keys.values():
            raise InputError(
                "key-file-wrong",
                f"line {number} of {path} is not `name key` with a name and a key of its own",
                hint="write one line per client, for example: alice 3f6c0e...",
            )
        keys[words[0]] = words[1]
    if not keys:
        raise InputError("key-file-empty", f"{path} holds no key", hint="write one line per client: name key")
    return keys


class Keys:
    """Middleware that answers 401 where the request brings none of the keys.

    Args:
        app: what lies behind the door.
        keys: key of each name; empty means that the door is open.
    """

    def __init__(self, app: ASGIApp, keys: Mapping[str, str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys.values()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and scope["path"] not in OPEN:
            refusal = self._refusal(Headers(scope=scope).get("authorization", ""))
            if refusal:
                response = error_response(scope["path"], refusal)
                response.headers["www-authenticate"] = "Bearer"
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, authorization: str) -> ApiError | None:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            return ApiError(
                401, "You didn't provide an API key. Send it as `Authorization: Bearer KEY`.", code="invalid_api_key"
            )
        # Every key is compared, whole: the time taken tells nothing about which, or how far.
        known = [hmac.compare_digest(key, given.strip().encode()) for key in self._keys]
        return None if any(known) else ApiError(401, "Incorrect API key provided.", code="invalid_api_key")
