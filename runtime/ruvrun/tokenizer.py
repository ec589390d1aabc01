"""Text to tokens and back: the head's tokenizer, its chat template, and text that arrives in pieces.

Two files in the head's directory say it all: ``tokenizer.json`` (read by the ``tokenizers`` library) and
``chat.json`` (the chat template and the words for begin and end of a text).

Tokens become text one by one while a client watches, and a character may be spread over several tokens.
``Decoder`` decodes the newest tokens together with the few before them that gave the last text, and holds back
what ends in an incomplete character. The few before matter because some tokenizers treat the first token of a
text differently (a leading space is dropped).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import msgspec
import tokenizers

from ruvrun.errors import InputError
from ruvrun.spelling import Spelling

TOKENIZER = "tokenizer.json"
CHAT = "chat.json"
_INCOMPLETE = "\ufffd"
_ENOUGH = 8  # tokens of a prompt, to decode what follows as it stands in its text
# The template is data: whatever an expression in it can raise is its way to refuse.
_TEMPLATE_REFUSES = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    RecursionError,
)


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """All of ``chat.json``. ``template`` is Jinja, empty for a model that was not made for chats."""

    template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    add_bos: bool = False


class Tokenizer:
    """The tokenizer and chat template of one model. Safe to use from several threads.

    Args:
        directory: holds ``tokenizer.json`` and ``chat.json``.

    Raises:
        InputError: a file is missing or not what it should be.
    """

    def __init__(self, directory: Path) -> None:
        raw, chat = _read(directory / TOKENIZER), _read(directory / CHAT)
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(raw)
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception for whatever it cannot read
            raise _broken(directory / TOKENIZER, error) from None
        try:
            self._chat = msgspec.json.decode(chat, type=Chat)
            self._template = parse_template(self._chat.template)
        except (msgspec.DecodeError, jinja2.TemplateError) as error:
            raise _broken(directory / CHAT, error) from None
        added = self._tokenizer.get_added_tokens_decoder()
        self.special: frozenset[int] = frozenset(number for number, token in added.items() if token.special)
        self.spell = Spelling(self._tokenizer)
        self._bos: int | None = self._tokenizer.token_to_id(self._chat.bos_token) if self._chat.add_bos else None

    @property
    def can_chat(self) -> bool:
        """Whether the model came with a chat template."""
        return bool(self._chat.template)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; names of special tokens in it become those tokens.

        The begin-of-text token is put in front where the model wants it, never twice.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if self._bos is not None and ids[:1] != [self._bos]:
            return [self._bos, *ids]
        return ids

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The chat template applied to ``messages`` (``role``, ``content``), ready for the assistant's turn.

        Raises:
            InputError: there is no template (``chat-template-missing``), or it refuses these messages
                (``chat-template-refused``), as many do with roles they do not know.
        """
        if not self.can_chat:
            raise InputError(
                "chat-template-missing",
                "this model has no chat template",
                hint="send the text itself to /v1/completions",
            )
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                bos_token=self._chat.bos_token,
                eos_token=self._chat.eos_token,
                add_generation_prompt=True,
                tools=None,
                documents=None,
            )
        except _TEMPLATE_REFUSES as error:
            raise InputError(
                "chat-template-refused",
                f"the model's chat template refuses these messages: {error}",
                hint="use the roles and the order of turns that the model knows",
            ) from None

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn. Errors as in ``render``."""
        return self.encode(self.render(messages))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def decoder(self, before: Sequence[int] = ()) -> Decoder:
        """A fresh incremental decoder of what follows the tokens ``before``; without any, a text begins."""
        return Decoder(self, before)


class Decoder:
    """Tokens in, text out, as soon as it is certain.

    The texts that ``push`` and ``flush`` return, joined, are ``Tokenizer.decode`` of all tokens together, less what it
    makes of those before them.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # the tokens that gave the last text
        self._before_text = ""
        self._pending: list[int] = []  # tokens since then
        for known in (before[-_ENOUGH:], before):  # the last ones may begin within a character, and spoil it all
            tokens = [token for token in known if token not in tokenizer.special]
            text = tokenizer.decode(tokens)
            if not text.endswith(_INCOMPLETE):
                self._before, self._before_text = tokens, text
                break

    def push(self, ids: Sequence[int]) -> str:
        """Take more tokens; return the text that became certain, often that of the tokens before."""
        self._pending += [token for token in ids if token not in self._tokenizer.special]
        text = self._new()
        if not text or text.endswith(_INCOMPLETE):
            return ""
        self._before = self._pending
        self._before_text = self._tokenizer.decode(self._before)
        self._pending = []
        return text

    def flush(self) -> str:
        """The text held back, at the end: an incomplete character stays a replacement character."""
        text = self._new()
        self._before, self._before_text, self._pending = [], "", []
        return text

    def _new(self) -> str:
        if not self._pending:
            return ""
        return self._tokenizer.decode(self._before + self._pending)[len(self._before_text) :]


def parse_template(template: str) -> jinja2.Template:
    """A chat template, ready to be rendered.

    Raises:
        jinja2.TemplateError: it is none, or names a filter or a statement that is not known.
    """
    try:
        return _environment().from_string(template)
    except (RecursionError, SyntaxError, ValueError) as error:
        # Jinja makes Python of it, which has limits and rules of its own.
        raise jinja2.TemplateError(f"it cannot be compiled: {error}") from None


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks, for training, what the assistant said; here it only passes through."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja's

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Jinja as chat templates expect it: sandboxed, with the few names that model makers use."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **others: Any) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **others)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            "file-missing", f"no {path.name} at {path}", hint="copy the whole bundle of the head's node"
        ) from None
    except OSError as error:
        raise InputError(
            "file-unreadable", f"cannot read {path}: {error.strerror}", hint="check its permissions"
        ) from None


def _broken(path: Path, error: Exception) -> InputError:
    return InputError("tokenizer-invalid", f"{path} cannot be used", context=[str(error)], hint="copy the bundle again")
