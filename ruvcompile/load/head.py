"""What the head needs of a model to turn text into tokens and back: two files, and the tokens that end an answer.

Both are tried here, once, where the model and its files are at hand: a head that finds out when it serves can say
no more than that its bundle is wrong.

``tokenizer.json`` is in the form of the ``tokenizers`` library, ``chat.json`` is ``ruvrun.tokenizer.Chat``. Each kind
of checkpoint has its own way there (``gguf_tokenizer``, ``directory_tokenizer``); what they have in common is here,
so that the same model from either is the same to the head.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import jinja2
from tokenizers import Tokenizer

from ruvcompile.errors import InputError
from ruvrun.tokenizer import parse_template

TOKENIZER = "tokenizer.json"
CHAT = "chat.json"

ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|end|>")
"""Tokens that end an answer by their name, where they are special, whatever the model's files say of them."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SAMPLE = "The quick brown fox jumps over 13 lazy dogs.\nif x == 1: return [0]\n"
T = TypeVar("T")
PLAIN = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True)
class HeadFiles:
    """The head's files by name, the tokens that end an answer, and what the user should know of both."""

    files: Mapping[str, bytes]
    eos: tuple[int, ...]
    notes: tuple[str, ...] = ()


def head_files(
    tokenizer: Tokenizer,
    raw: bytes,
    named_as: str,
    *,
    template: str | None,
    chatml: bool,
    bos: str,
    eos: str,
    add_bos: bool,
    ends: tuple[int, ...],
) -> HeadFiles:
    """Put the two files together.

    Args:
        tokenizer: as the library has it.
        raw: ``tokenizer.json`` of it.
        named_as: what the user called the model.
        template: the chat template; where the model has none, ChatML or a plain one takes its place.
        chatml: whether the vocabulary has ChatML's tokens.
        bos: the token that begins a text, empty for none; ``eos`` the one that ends it.
        eos: see ``bos``.
        add_bos: whether ``bos`` is put before every text.
        ends: the tokens that end an answer.

    Raises:
        InputError: the tokenizer reads no text, or the template is none.
    """
    if not made(lambda: tokenizer.encode(_SAMPLE, add_special_tokens=False).ids, f"the tokenizer of {named_as}"):
        raise _unusable(f"the tokenizer of {named_as}", "it makes no token of an English text")
    notes = [] if ends else ["nothing in the model's files says which token ends an answer: it ends at --max-tokens"]
    if template is None:
        template = CHATML if chatml else PLAIN
        notes.append(f"the model has no chat template: {'ChatML' if chatml else 'a plain one'} takes its place")
    _check_template(template, named_as)
    body = {"template": template, "bos_token": bos, "eos_token": eos, "add_bos": add_bos}
    chat = json.dumps(body, indent=1, ensure_ascii=False).encode()
    return HeadFiles({TOKENIZER: raw, CHAT: chat}, ends, tuple(notes))


def made(make: Callable[[], T], named_as: str) -> T:
    """What ``make`` gives; whatever the library of tokenizers objects to is an error of the file."""
    try:
        return make()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001 - it raises bare Exception, and what its Rust panics with is not even that
        raise _unusable(named_as, str(error)[:200]) from None


def _unusable(named_as: str, what: str) -> InputError:
    return InputError(
        "tokenizer-invalid",
        f"{named_as} cannot be used",
        context=[what],
        hint="copy it again; if it is sound, it may need a newer version: pip install -U tokenizers",
    )


def _check_template(template: str, named_as: str) -> None:
    try:
        parse_template(template)
    except jinja2.TemplateError as error:
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise InputError(
            "chat-template-invalid",
            f"the chat template of {named_as} cannot be read",
            context=[f"{error}{line}"],
            hint="correct it, or take it out: a plain one takes its place; of a GGUF file, get a newer conversion",
        ) from None
