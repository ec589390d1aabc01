"""The body of a request, read strictly: JSON to fields, or an error that names the parameter.

What is understood is in the structs below. Parameters that cannot change the answer are ignored
(``IGNORED``); parameters we do not have are accepted only with the value that means "off" (``INERT``);
everything else is refused by name. A parameter that is silently dropped would be a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ruvrun.errors import RuvError, did_you_mean

IGNORED = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "parallel_tool_calls",
        "cache_prompt",
    ]
)
"""Parameters that cannot change which answer is right."""

INERT: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Parameters we do not have (in this kind of request), and the values besides null with which that makes no
difference."""

MOST_LOGPROBS = 20


class ApiError(RuvError):
    """A request that is answered with an error, in OpenAI's form.

    Args:
        status: HTTP status.
        message: the sentence for a person.
        param: the parameter that is wrong, where it is one.
        code: OpenAI's word for it, for programs.
    """

    exit_code = 3

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(code or f"http-{status}", message, hint=None)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """``{"error": {"message", "type", "param", "code"}}``."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class Part(msgspec.Struct):
    """A piece of a message's content; only text is understood."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """A turn of a conversation. Other fields of it (names, refusals) do not reach the model."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part] | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class StreamOptions(msgspec.Struct):
    """What a stream holds besides text."""

    include_usage: bool | None = None


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both kinds of request have in common. Null means: not given."""

    model: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ChatBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MOST_LOGPROBS)] | None = None


class TextBody(Body, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/completions``."""

    prompt: str | list[Any]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MOST_LOGPROBS)] | None = None


_B = TypeVar("_B", bound=Body)


def read(body: bytes, kind: type[_B]) -> _B:
    """Read a body into the fields of ``kind``.

    Raises:
        ApiError: 400, naming the parameter where it is one.
    """
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    known = set(kind.__struct_fields__)
    for name in sorted(fields.keys() - known - IGNORED - INERT.keys()):
        hint = did_you_mean(name, known)
        raise ApiError(
            400, f"Unrecognized request argument supplied: {name}; {hint}", param=name, code="unknown_parameter"
        )
    for name in fields.keys() & (INERT.keys() - known):
        value = fields[name]
        # 1 == True in Python, not in JSON
        if value is not None and not any(
            value == off and isinstance(value, bool) == isinstance(off, bool) for off in INERT[name]
        ):
            raise ApiError(
                400,
                f"{name} = {_short(value)} is not supported by this server.",
                param=name,
                code="unsupported_parameter",
            )
    try:
        return msgspec.convert({name: value for name, value in fields.items() if name in known}, kind)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: msgspec.ValidationError) -> ApiError:
    """The library says ``Expected `int`, got `str` - at `$.max_tokens` ``; the place becomes ``param``."""
    sentence, _, place = str(error).partition(" - at `$.")
    param: str | None = place.rstrip("`").removesuffix("[...]") or None
    missing = re.search(r"missing required field `(\w+)`", sentence)
    if missing:
        name = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return ApiError(400, f"Missing required parameter: {name}", param=name, code="missing_required_parameter")
    return ApiError(400, f"Invalid value for {param or 'the body'}: {sentence}", param=param, code="invalid_value")


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else text[:37] + "..."
