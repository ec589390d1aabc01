"""From the engine's tokens to the answer.

An answer is always a stream of chunks, made by ``Reply``. A client that did not ask for a stream gets
``fold`` of the same chunks: one path, so both say the same. Where log-probabilities are wanted, a chunk has those of
the tokens since the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ruvrun.engine import Token
from ruvrun.openai.call import Call
from ruvrun.openai.scores import Scored, Spell, joined
from ruvrun.openai.stops import Stops
from ruvrun.tokenizer import Decoder

Json = dict[str, Any]


class Choice:
    """One text in the making: tokens in, certain text out, ended by eos, length or a stop string."""

    def __init__(self, decoder: Decoder, stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._stops = Stops(stop)
        self.tokens = 0
        self.finish: str | None = None

    @property
    def ended(self) -> bool:
        """Whether this text is complete."""
        return self.finish is not None

    def push(self, token: Token) -> str:
        """Take the next token and return the text that became certain; sets ``finish`` at the end.

        A token counts whether or not it has text; the eos token has none.
        """
        assert not self.ended, "no token after the end"
        self.tokens += 1
        new = "" if token.finish == "stop" else self._decoder.push([token.token])
        if token.finish:
            new += self._decoder.flush()
        text, stopped = self._stops.push(new)
        if stopped:
            self.finish = "stop"
        elif token.finish:
            text += self._stops.flush()
            self.finish = token.finish
        return text


class Reply:
    """One answer in the making: the engine's tokens in, OpenAI's stream chunks out.

    Args:
        call: what was asked.
        model: the model's name, as the answer states it.
        key: what makes the answer's id unique.
        created: Unix time, s.
        prompt_tokens: of all prompts together.
        decoders: one for each prompt.
        spell: the bytes of a token.
    """

    def __init__(
        self,
        call: Call,
        *,
        model: str,
        key: str,
        created: int,
        prompt_tokens: int,
        decoders: Sequence[Decoder],
        spell: Spell,
    ) -> None:
        self._call = call
        self._prompt_tokens = prompt_tokens
        chat = call.kind == "chat"
        self._head: Json = {
            "id": f"chatcmpl-{key}" if chat else f"cmpl-{key}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        self.choices = [Choice(decoder, call.stop) for decoder in decoders]
        self._scored = [Scored(call.kind, spell) for _ in decoders] if call.scored else None

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.ended for choice in self.choices)

    def start(self) -> list[Json]:
        """The chunks before any token: in a chat, who speaks."""
        if self._call.kind == "text":
            return []
        return [self._chunk(at, {"role": "assistant", "content": ""}, None) for at in range(len(self.choices))]

    def push(self, at: int, tokens: Iterable[Token]) -> list[Json]:
        """Chunks for the next tokens of choice ``at``: none while no text is certain.

        Tokens after the end are dropped: a stop string may have ended the text while more were on their way.
        """
        choice, text = self.choices[at], ""
        if choice.ended:
            return []
        for token in tokens:
            if choice.finish is None:
                text += choice.push(token)
                if self._scored:
                    self._scored[at].push(token)
        if not text and not choice.finish:
            return []
        scores = self._scored[at].take() if self._scored else None
        if self._call.kind == "text":
            return [self._chunk(at, text, choice.finish, scores)]
        chunks = [self._chunk(at, {"content": text}, None, scores)] if text else []
        if choice.finish:
            chunks.append(self._chunk(at, {}, choice.finish, None if text else scores))
        return chunks

    def usage(self) -> Json:
        """The last chunk: what it cost. It has no choices."""
        completion = sum(choice.tokens for choice in self.choices)
        counts = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self._prompt_tokens + completion,
        }
        return {**self._head, "choices": [], "usage": counts}

    def _chunk(self, at: int, content: Json | str, finish: str | None, scores: Json | None = None) -> Json:
        part: Json = {"delta": content} if isinstance(content, dict) else {"text": content}
        chunk = {**self._head, "choices": [{"index": at, **part, "logprobs": scores, "finish_reason": finish}]}
        if self._call.include_usage:
            chunk["usage"] = None
        return chunk


def fold(chunks: Iterable[Json]) -> Json:
    """The plain answer: what a stream of chunks, its ``usage`` included, adds up to."""
    answer: Json = {}
    choices: dict[int, Json] = {}
    for chunk in chunks:
        answer = {**chunk, "choices": []}
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"index": part["index"]})
            if "text" in part:
                choice["text"] = choice.get("text", "") + part["text"]
            else:
                message = choice.setdefault("message", {"role": "assistant", "content": "", "refusal": None})
                message["content"] += part["delta"].get("content", "")
            choice["logprobs"] = joined(choice.get("logprobs"), part["logprobs"])
            choice["finish_reason"] = part["finish_reason"]
    answer["choices"] = [choices[at] for at in sorted(choices)]
    if answer["object"] == "chat.completion.chunk":
        answer["object"] = "chat.completion"
    return answer
