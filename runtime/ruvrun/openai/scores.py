r"""Log-probabilities in the two forms of OpenAI's API.

A token is shown as its text; where its bytes are a part of a character only, as ``bytes:\xe4\xb8``, as OpenAI does.
Every token of the answer is there, also those of a stop string, but not the one that means the end: it has no text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ruvrun.engine import Token

Json = dict[str, Any]
Spell = Callable[[int], bytes]

LEAST = -9999.0
"""For what cannot be: JSON has no infinity."""


class Scored:
    """The log-probabilities of one text in the making.

    Args:
        kind: of the request.
        spell: the bytes of a token.
    """

    def __init__(self, kind: Literal["chat", "text"], spell: Spell) -> None:
        self._kind = kind
        self._spell = spell
        self._tokens: list[Token] = []
        self._offset = 0

    def push(self, token: Token) -> None:
        """The next token of the text."""
        if token.finish != "stop":
            self._tokens.append(token)

    def take(self) -> Json:
        """What is there since the last time, in the form of this kind of request."""
        tokens, self._tokens = self._tokens, []
        return self._of_chat(tokens) if self._kind == "chat" else self._of_text(tokens)

    def _of_chat(self, tokens: list[Token]) -> Json:
        content = []
        for token in tokens:
            assert token.scores is not None, "a token came without what was asked for"
            top = [self._entry(*each) for each in token.scores.top]
            content.append({**self._entry(token.token, token.scores.picked), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, probability: float) -> Json:
        spelled = self._spell(token)
        return {"token": shown(spelled), "logprob": max(LEAST, probability), "bytes": list(spelled)}

    def _of_text(self, tokens: list[Token]) -> Json:
        found: Json = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token in tokens:
            assert token.scores is not None, "a token came without what was asked for"
            spelled = self._spell(token.token)
            best: dict[str, float] = {}
            for each, probability in (*token.scores.top, (token.token, token.scores.picked)):
                best.setdefault(shown(self._spell(each)), max(LEAST, probability))
            found["text_offset"].append(self._offset)
            found["token_logprobs"].append(max(LEAST, token.scores.picked))
            found["tokens"].append(shown(spelled))
            found["top_logprobs"].append(best)
            self._offset += sum(byte & 0xC0 != 0x80 for byte in spelled)  # characters that begin here
        return found


def shown(spelled: bytes) -> str:
    """A token for people."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def joined(before: Json | None, more: Json | None) -> Json | None:
    """The log-probabilities of two neighbouring pieces of a text."""
    if before is None or more is None:
        return before or more
    return {name: [*held, *more[name]] if held is not None else None for name, held in before.items()}
