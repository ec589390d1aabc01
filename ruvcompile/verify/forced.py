"""Logits of a text that is given and not generated: at every position, after what the text has before it.

Both modes of a back end take part, as when it serves: of each window the first half is a prompt and goes in chunks,
and the rest goes token by token. A window is a sequence of its own, from position 0 on.

Stages are run one after the other, so that only one of them is in memory at a time, and the last one gives its logits
a few rows at a time: all of them would be gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ruvcompile.parts import Stage
from ruvrun.executors import Array, Span, load_decoder
from ruvrun.executors.openvino.forms import on_cpu
from ruvrun.pipeline.halves import over_link

WINDOW = 1024
CHUNK = 64


class Reading(NamedTuple):
    """One call: ``tokens`` tokens of the text from ``at`` on, which are the sequence's from ``position`` on."""

    at: int
    position: int
    tokens: int


def readings(tokens: int, window: int, chunk: int = CHUNK, *, single: bool = True) -> list[Reading]:
    """The calls that read a text of so many tokens.

    Args:
        tokens: of the text.
        window: positions of a sequence.
        chunk: tokens of a call at most.
        single: whether the second half of a window goes token by token.
    """
    found = []
    for start in range(0, tokens, window):
        length = min(window, tokens - start)
        prompt = -(-length // 2) if single else length
        for position in range(0, prompt, chunk):
            found.append(Reading(start + position, position, min(chunk, prompt - position)))
        found += [Reading(start + position, position, 1) for position in range(prompt, length)]
    return found


def forced_logits(stages: Iterable[Stage], ids: Array, calls: Sequence[Reading], threads: int) -> Iterator[Array]:
    """The logits ``[rows, vocab]`` of all calls in turn; an array is the caller's until the next one.

    Args:
        stages: directory and spec of each, or of parts of them (``parts.Parts``), in order.
        ids: the text.
        calls: how it is read.
        threads: of each stage.

    Raises:
        IntegrityError: ``link-overflow``, where links have a type that cannot hold what crosses.
    """
    known = {"input_ids": ids}
    context = max(call.position + call.tokens for call in calls)
    for directory, spec in stages:
        executor = load_decoder(directory, on_cpu(spec), context=context, slots=1, threads=threads)
        made: dict[str, list[Array]] = {tensor.name: [] for tensor in spec.outputs}
        for call in calls:
            some = slice(call.at, call.at + call.tokens)
            given = {tensor.name: over_link(tensor, known[tensor.name][some]) for tensor in spec.inputs}
            rows = call.tokens if spec.last else 0
            outputs = executor.step([Span(0, call.position, call.tokens, rows)], given)
            if spec.last:
                yield outputs["logits"]
                continue
            for name, array in outputs.items():
                made[name].append(array.copy())
        if not spec.last:
            known |= {name: np.concatenate(arrays) for name, arrays in made.items()}
        del executor


def in_blocks(arrays: Iterable[Array], rows: int) -> Iterator[Array]:
    """The same rows, copied, ``rows`` at a time; the last may be fewer."""
    held: list[Array] = []
    for array in arrays:
        held.append(array.copy())
        while sum(map(len, held)) >= rows:
            joined = np.concatenate(held)
            yield joined[:rows]
            held = [joined[rows:]]
    if sum(map(len, held)):
        yield np.concatenate(held)
