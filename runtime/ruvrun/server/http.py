"""The socket and the loop: uvicorn, started on a socket that is already ours, and stopped in bounded time."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ruvrun.errors import MachineError, UsageError
from ruvrun.openai import ApiError
from ruvrun.server.wire import to_json

STOP_SECONDS = 3
"""Answers under way get this long when the server is told to stop."""

HEAD_SECONDS = 15.0
"""A request's head must be there this long after its first byte, or after the connection was made."""

READ_SECONDS = 300.0
"""A client that takes nothing of what waits for it for so long is given up."""


def listen(host: str, port: int) -> socket.socket:
    """Take the port now, before anything slow begins; 0 takes a free one. Connections wait until they are served.

    Raises:
        MachineError: the port is taken (``port-taken``) or not for us (``port-refused``).
        UsageError: no such address on this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise UsageError("host-unknown", f"{host!r} is no address", hint="use 127.0.0.1 or 0.0.0.0") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        bound.bind(address)
        bound.listen(1024)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise MachineError(
                "port-taken",
                f"port {port} on {host} is taken by another program",
                hint="stop it, or use another --port",
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(
                "host-not-here", f"{host} is no address of this machine", hint="use 127.0.0.1 or 0.0.0.0"
            ) from None
        raise MachineError(
            "port-refused", f"cannot listen on {host} port {port}: {error.strerror}", hint="use a --port above 1023"
        ) from None
    bound.setblocking(False)
    return bound


def url_of(bound: socket.socket) -> str:
    """``http://HOST:PORT`` of a listening socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer:
    """Serves an application on a listening socket until ``stop``, SIGINT or SIGTERM.

    Args:
        app: the ASGI application.
        bound: from ``listen``; closed at the end.
    """

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        self._bound = bound
        self._server = _Quiet(
            uvicorn.Config(
                app,
                http=_Impatient,
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )

    def run(self) -> None:
        """Serve in this thread; in the main thread the signals end it. Returns when it has stopped."""
        self._server.run(sockets=[self._bound])

    @property
    def ticks(self) -> int:
        """A number that changes several times a second, as long as the loop runs."""
        return self._server.ticks

    def stop(self) -> None:
        """Make ``run`` finish what is under way (at most ``STOP_SECONDS``) and return. Safe in any thread."""
        self._server.should_exit = True


class _Impatient(H11Protocol):
    """A connection that is dropped when the head of a request does not arrive in time, however slowly it comes, or when
    its answer is not read.

    uvicorn bounds only the silence between two requests: a client that sends a byte now and then, or takes none, would
    hold its connection, and the memory and the descriptor that go with it, for ever. (A body has its own limit,
    ``read_body``.) Of an answer no more waits here than uvicorn's high-water mark and one batch of tokens; what comes
    meanwhile is bounded by the request's own ``max_tokens``.
    """

    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._rest()
        self._look_no_more()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is told in the form of the OpenAI API, for it does not say what it was meant for; behind the
        beginning of an answer there is nothing left to tell.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = to_json(ApiError(400, msg, code="invalid_http").body())
            told = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
            for event in (
                h11.Response(status_code=400, reason=b"Bad Request", headers=told),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _look(self, before: int = 0) -> None:
        """See again and again how much waits for the client, until it is nothing, or nothing of it has gone."""
        self._look_no_more()
        waits = self.transport.get_write_buffer_size()
        whole = self.flow.write_paused or self.cycle.response_complete  # and nothing is added to it meanwhile
        if waits and waits == before and whole:
            self.transport.abort()
        elif waits:
            self._unread = self.loop.call_later(READ_SECONDS, self._look, waits)

    def _look_no_more(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self) -> None:
        """Begin to count where a head is awaited, and end it where one is there."""
        if not getattr(self.cycle, "response_complete", True):
            self._rest()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _rest(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class _Quiet(uvicorn.Server):
    """A server that ends by returning: uvicorn's own would raise the signal again and kill the process.

    ``ticks`` is how often its loop came round, every tenth of a second.
    """

    ticks = 0

    async def on_tick(self, counter: int) -> bool:
        self.ticks += 1
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        self.force_exit = self.should_exit  # the second signal does not wait for answers under way
        self.should_exit = True
