"""What the head needs of a model to turn text into tokens and back: two files, and the tokens that end an answer.

``tokenizer.json`` is in the form of the ``tokenizers`` library, ``chat.json`` is ``ruvrun.tokenizer.Chat``. Each kind
of checkpoint has its own way there (``gguf_tokenizer``, ``directory_tokenizer``); what they have in common is here,
so that the same model from either is the same to the head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

TOKENIZER = "tokenizer.json"
CHAT = "chat.json"

ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|end|>")
"""Tokens that end an answer by their name, where they are special, whatever the model's files say of them."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True)
class HeadFiles:
    """The head's files by name, and the tokens that end an answer."""

    files: Mapping[str, bytes]
    eos: tuple[int, ...]


def head_files(
    tokenizer: bytes, *, template: str | None, chatml: bool, bos: str, eos: str, add_bos: bool, ends: tuple[int, ...]
) -> HeadFiles:
    """Put the two files together.

    Args:
        tokenizer: ``tokenizer.json``.
        template: the chat template; where the model has none, ChatML or a plain one takes its place.
        chatml: whether the vocabulary has ChatML's tokens.
        bos: the token that begins a text, empty for none; ``eos`` the one that ends it.
        eos: see ``bos``.
        add_bos: whether ``bos`` is put before every text.
        ends: the tokens that end an answer.
    """
    if template is None:
        template = CHATML if chatml else PLAIN
    body = {"template": template, "bos_token": bos, "eos_token": eos, "add_bos": add_bos}
    return HeadFiles({TOKENIZER: tokenizer, CHAT: json.dumps(body, indent=1, ensure_ascii=False).encode()}, ends)
