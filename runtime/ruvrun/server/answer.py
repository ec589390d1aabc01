"""The one way every request for text is answered.

Status codes are true as long as nothing was sent, so a stream's header waits for its first text. After that
an error is an event of the stream, and the stream ends without ``[DONE]``.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from ruvrun.engine import Request, Token
from ruvrun.errors import InputError, UnreachableError
from ruvrun.manifest import Manifest
from ruvrun.openai import ApiError, Call, Reply, engine_request, fold
from ruvrun.server.driver import Driver, not_ready
from ruvrun.server.ending import HungUp, counted, stopping
from ruvrun.server.inbox import Gone, Inbox, Inboxes, watch
from ruvrun.server.limits import TIMEOUT, Limits, Queue
from ruvrun.server.meters import Meters
from ruvrun.server.wire import EVENT_STREAM, TOO_LATE, json_response, read_body, send_events, to_json
from ruvrun.tokenizer import Tokenizer

LONG_BODY = 2**14


class Answer:
    """The endpoint that generates text: one instance per path (an ASGI application).

    Args:
        parse: reads the body.
        driver: where requests go.
        tokenizer: of this model.
        manifest: of this model.
        context: tokens of prompt and answer together.
        inboxes: of the application.
        meters: of the application.
        limits: of the service.
        queue: of the application.
    """

    def __init__(
        self,
        parse: Callable[[bytes], Call],
        *,
        driver: Driver,
        tokenizer: Tokenizer,
        manifest: Manifest,
        context: int,
        inboxes: Inboxes,
        meters: Meters,
        limits: Limits,
        queue: Queue,
    ) -> None:
        self._parse = parse
        self._driver = driver
        self._tokenizer = tokenizer
        self._program = manifest.program
        self._eos = frozenset(manifest.program.eos)
        self._context = context
        self._inboxes = inboxes
        self._meters = meters
        self._limits = limits
        self._queue = queue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await counted(
            self._answer, lambda status: self._meters.requests.add(1, scope["path"], status), scope, receive, send
        )

    async def _answer(self, http: HttpRequest, send: Send) -> int:
        body = await read_body(http)
        call = self._parse(body)
        self._check_served(call)
        loop = asyncio.get_running_loop()
        seconds, begun = self._limits.deadline(http.headers.get(TIMEOUT)), loop.time()
        if len(body) > LONG_BODY:  # others' tokens must not wait for this tokenisation
            prompts = await asyncio.to_thread(self._prompts, call)
        else:
            prompts = self._prompts(call)
        inbox = self._inboxes.open()
        requests = [
            engine_request(
                call,
                prompt,
                id=self._driver.next_id(),
                drawn=secrets.randbits(63),
                context=self._context,
                vocab=self._program.vocab,
                eos=self._eos,
            )
            for prompt in prompts
        ]
        reply = Reply(
            call,
            model=self._program.name,
            key=secrets.token_hex(12),
            created=int(time.time()),
            prompt_tokens=sum(map(len, prompts)),
            # What continues a text keeps the space before its first word; what answers in a chat begins a text.
            decoders=[self._tokenizer.decoder(prompt if call.kind == "text" else ()) for prompt in prompts],
            spell=self._tokenizer.spell,
        )
        watching = asyncio.create_task(watch(http.receive, inbox))
        until = None if seconds is None else begun + seconds
        # Also while this waits for a client that does not read.
        ending = None if until is None else loop.call_at(until, self._end, requests)
        try:
            self._queue.check(self._driver.load(), len(requests))
            for request in requests:
                self._submit(request, inbox)
            self._meters.prompt_tokens.add(sum(map(len, prompts)))
            batches = self._batches(reply, [request.id for request in requests], inbox, until)
            if call.stream:
                await self._stream(call, reply, batches, send)
            else:
                chunks = [*reply.start(), *[chunk async for batch in batches for chunk in batch], reply.usage()]
                await json_response(fold(chunks))(http.scope, http.receive, send)
            self._queue.took(loop.time() - begun)
        finally:
            watching.cancel()
            if ending is not None:
                ending.cancel()
            self._end(requests)
            self._meters.completion_tokens.add(sum(choice.tokens for choice in reply.choices))
        return 200

    async def _batches(
        self, reply: Reply, ids: Sequence[int], inbox: Inbox, until: float | None
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Chunks as they become certain, until every choice has ended. Raises ApiError when a stage is lost, or the
        time is up.
        """
        begun, place = time.monotonic(), {number: at for at, number in enumerate(ids)}
        first = True
        while not reply.finished:
            tokens: dict[int, list[Token]] = {}
            try:
                async with asyncio.timeout_at(until):
                    events = await inbox.take()
            except TimeoutError:
                raise ApiError(504, "The time for this request was up.", code=TOO_LATE) from None
            except asyncio.CancelledError:
                raise stopping() from None
            for event in events:
                if isinstance(event, Gone):
                    raise HungUp
                if isinstance(event, Token):
                    tokens.setdefault(place[event.id], []).append(event)
                elif not reply.choices[place[event.id]].ended:
                    self._meters.lost.add(1)
                    raise ApiError(503, f"The request was lost: {event.why}", code="stage_lost")
            if first and tokens:
                first = False
                self._meters.first.add(1)
                self._meters.first_seconds.add(time.monotonic() - begun)
            chunks = []
            for at, new in tokens.items():
                chunks += reply.push(at, new)
                if reply.choices[at].ended and new[-1].finish is None:  # a stop string: the pipeline can stop too
                    self._driver.cancel(ids[at])
            if chunks:
                yield chunks

    async def _stream(self, call: Call, reply: Reply, batches: AsyncIterator[list[dict[str, Any]]], send: Send) -> None:
        begun = False
        try:
            async for batch in batches:
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
                    batch = [*reply.start(), *batch]
                    begun = True
                await send_events(send, [to_json(chunk) for chunk in batch])
        except ApiError as error:
            if not begun:
                raise
            await send_events(send, [to_json(error.body())])
        else:
            await send_events(send, [*([to_json(reply.usage())] if call.include_usage else []), b"[DONE]"])
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _end(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._driver.cancel(request.id)

    def _check_served(self, call: Call) -> None:
        if call.model not in (None, self._program.name):
            raise no_model(call.model or "", self._program.name)
        if refusal := not_ready(self._driver):
            raise refusal

    def _prompts(self, call: Call) -> list[Sequence[int]]:
        if call.kind == "text":
            return [self._tokenizer.encode(one) if isinstance(one, str) else one for one in call.prompts]
        try:
            return [self._tokenizer.chat(call.messages)]
        except InputError as error:
            raise ApiError(400, error.message, param="messages", code=error.ref) from None

    def _submit(self, request: Request, inbox: Inbox) -> None:
        try:
            self._driver.submit(request, inbox.post)
        except InputError as error:
            raise ApiError(400, error.message, code=error.ref) from None
        except UnreachableError as error:
            raise not_ready(self._driver) or ApiError(503, error.message, code="not_ready") from None


def no_model(asked: str, served: str) -> ApiError:
    """The refusal of another model name."""
    return ApiError(
        404, f"The model {asked!r} does not exist; this server has {served!r}.", param="model", code="model_not_found"
    )
