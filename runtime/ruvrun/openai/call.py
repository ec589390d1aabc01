"""From the body of a request to what the engine is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ruvrun.engine import Request
from ruvrun.engine.sampling import GREEDY_BELOW
from ruvrun.frames import Sampling
from ruvrun.openai.body import ApiError, Body, ChatBody, Message, TextBody, read

Kind = Literal["chat", "text"]

MAX_STOPS = 32
MAX_STOP_LENGTH = 1024
MAX_PROMPTS = 128
MAX_BIASES = 1024


@dataclass(frozen=True)
class Call:
    """A request as it was understood.

    ``messages`` is set for a chat, ``prompts`` (each a text or token ids) for a completion. ``max_tokens`` None
    means up to the context. ``asked`` is how to pick tokens, as it was asked; ``seed`` None means the caller draws one.
    """

    kind: Kind
    model: str | None
    messages: tuple[Mapping[str, str], ...]
    prompts: tuple[str | tuple[int, ...], ...]
    max_tokens: int | None
    asked: Sampling
    seed: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool

    @property
    def scored(self) -> bool:
        """Whether log-probabilities are wanted."""
        return self.asked.logprobs >= 0

    def sampling(self, drawn: int) -> Sampling:
        """How to pick tokens; ``drawn`` is the seed where the request gives none."""
        seed = (drawn if self.seed is None else self.seed) % 2**63
        if self.asked.temperature < GREEDY_BELOW or self.asked.top_p == 0:
            return msgspec.structs.replace(self.asked, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=seed)
        return msgspec.structs.replace(self.asked, seed=seed)


def parse_chat(body: bytes) -> Call:
    """Read the body of ``POST /v1/chat/completions``.

    Raises:
        ApiError: 400, naming the parameter.
    """
    fields = read(body, ChatBody)
    if fields.max_tokens is not None and fields.max_completion_tokens is not None:
        raise ApiError(400, "Give max_tokens or max_completion_tokens, not both.", param="max_tokens")
    if fields.top_logprobs and not fields.logprobs:
        raise ApiError(400, "top_logprobs is only allowed when logprobs is true.", param="top_logprobs")
    messages = tuple(_message(message, f"messages[{at}]") for at, message in enumerate(fields.messages))
    return _call(
        "chat",
        fields,
        messages=messages,
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
    )


def parse_completion(body: bytes) -> Call:
    """Read the body of ``POST /v1/completions``: one text, one list of token ids, or a list of either.

    Raises:
        ApiError: 400, naming the parameter.
    """
    fields = read(body, TextBody)
    prompts = _prompts(fields.prompt)
    return _call("text", fields, prompts=prompts, max_tokens=fields.max_tokens, logprobs=fields.logprobs)


def engine_request(
    call: Call, prompt: Sequence[int], *, id: int, drawn: int, context: int, vocab: int, eos: frozenset[int]
) -> Request:
    """One prompt of a call as a request to the engine; generation ends at the context at the latest.

    Args:
        call: what was asked.
        prompt: token ids.
        id: the engine's number for it.
        drawn: the seed where the request gives none.
        context: tokens of prompt and answer together.
        vocab: token ids lie below it (0: not known).
        eos: token ids that end a text.

    Raises:
        ApiError: 400, where the prompt is empty or too long, or it or ``logit_bias`` names what is no token.
    """
    param = "messages" if call.kind == "chat" else "prompt"
    if not prompt:
        raise ApiError(400, "The prompt is empty: it has no tokens.", param=param)
    if len(prompt) + 1 > context:
        raise ApiError(
            400,
            f"This model's maximum context length is {context} tokens. Your {param} resulted in {len(prompt)} tokens. "
            f"Shorten the {param}: at most {context - 1} tokens leave room for one of the answer.",
            param=param,
            code="context_length_exceeded",
        )
    if vocab and max(prompt) >= vocab:
        raise _no_token(max(prompt), vocab, param)
    biased = max((token for token, _ in call.asked.logit_bias), default=0)
    if vocab and biased >= vocab:
        raise _no_token(biased, vocab, "logit_bias")
    room = context - len(prompt)
    limit = room if call.max_tokens is None else min(call.max_tokens, room)
    return Request(id=id, prompt=tuple(prompt), max_tokens=limit, sampling=call.sampling(drawn), eos=eos)


def _call(
    kind: Kind,
    fields: Body,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    messages: tuple[Mapping[str, str], ...] = (),
    prompts: tuple[str | tuple[int, ...], ...] = (),
) -> Call:
    if fields.stream_options is not None and not fields.stream:
        raise ApiError(400, "stream_options is only allowed when stream is true.", param="stream_options")
    return Call(
        kind=kind,
        model=fields.model,
        messages=messages,
        prompts=prompts,
        max_tokens=max_tokens,
        asked=_sampling(fields, -1 if logprobs is None else logprobs),
        seed=fields.seed,
        stop=_stop(fields.stop),
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
    )


def _sampling(fields: Body, logprobs: int) -> Sampling:
    return Sampling(
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        seed=0,
        top_k=max(0, fields.top_k or 0),
        min_p=fields.min_p or 0.0,
        repetition_penalty=fields.repetition_penalty or 1.0,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=_bias(fields.logit_bias or {}),
        logprobs=logprobs,
    )


def _bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    if len(given) > MAX_BIASES or not all(re.fullmatch(r"0|[1-9][0-9]{0,8}", token) for token in given):
        raise ApiError(
            400,
            f"logit_bias takes at most {MAX_BIASES} token ids, each with a number from -100 to 100.",
            param="logit_bias",
            code="invalid_value",
        )
    return tuple((int(token), bias) for token, bias in given.items())


def _no_token(token: int, vocab: int, param: str) -> ApiError:
    what = f"Token id {token} is not below {vocab}, the size of the vocabulary."
    return ApiError(400, what, param=param, code="invalid_value")


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOPS or any(not 0 < len(string) <= MAX_STOP_LENGTH for string in strings):
        raise ApiError(
            400,
            f"stop takes at most {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters.",
            param="stop",
            code="invalid_value",
        )
    return strings


def _message(message: Message, where: str) -> Mapping[str, str]:
    for name in ("tool_calls", "function_call", "audio"):
        if getattr(message, name):
            raise ApiError(
                400, f"{name} is not supported by this server.", param=f"{where}.{name}", code="unsupported_parameter"
            )
    content = message.content
    if content is None:
        raise ApiError(400, "A message needs content.", param=f"{where}.content", code="missing_required_parameter")
    if not isinstance(content, str):
        for at, part in enumerate(content):
            if part.type != "text" or part.text is None:
                raise ApiError(
                    400,
                    f"Content of type {part.type!r} is not supported by this server, only text.",
                    param=f"{where}.content[{at}]",
                    code="unsupported_content",
                )
        content = "\n".join(part.text or "" for part in content)
    # OpenAI renamed the role; templates know the old name.
    return {"role": "system" if message.role == "developer" else message.role, "content": content}


def _prompts(prompt: str | list[Any]) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if _is_tokens(prompt):
        return (tuple(prompt),)
    if not prompt or len(prompt) > MAX_PROMPTS or not all(isinstance(one, str) or _is_tokens(one) for one in prompt):
        raise ApiError(
            400,
            f"prompt must be a string, a list of token ids, or a list of 1 to {MAX_PROMPTS} of these.",
            param="prompt",
            code="invalid_value",
        )
    return tuple(one if isinstance(one, str) else tuple(one) for one in prompt)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int and one >= 0 for one in value)
