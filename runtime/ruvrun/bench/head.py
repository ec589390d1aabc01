"""Measures the head of a decoder that runs elsewhere, as its users meet it: over HTTP, in streams of text.

The figures are those of ``ruvrun bench`` otherwise, with two differences. A text comes when it is certain, several
tokens at a time where one is a part of a character; so tokens count as evenly spread between the first text and the
last. And HTTP, and the way there, are part of every figure; what each stage did is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ruvrun import client
from ruvrun.bench import Timeline, Work, figures, prompts
from ruvrun.errors import UnreachableError
from ruvrun.manifest import Manifest

WHY = "measured over HTTP, which is part of the figures; what each stage did is not known here"


def bench_texts(url: str, key: str | None, manifest: Manifest, work: Work) -> dict[str, Any]:
    """One measurement of the head at ``url``, after a short warm-up; as the JSON of ``ruvrun bench``.

    Raises:
        RuvError: nobody answers, or the head refused; then with its own words.
    """
    model = next(iter(client.models(url, key)), "")
    asked = prompts(manifest, work.streams, work.prompt_tokens)
    eos = {str(token): -100 for token in manifest.program.eos}  # an answer ends by its length

    def once(prompt: Sequence[int], tokens: int) -> Timeline:
        body = {"model": model, "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "logit_bias": eos}
        began, times, count = time.monotonic(), list[float](), 0
        for chunk in client.complete(url, "/v1/completions", body, key):
            if any(choice["text"] for choice in chunk["choices"]):
                times.append(time.monotonic())
            count = (chunk.get("usage") or {}).get("completion_tokens", count)
        if not times or not count:
            raise UnreachableError("answer-cut", f"{url} ended an answer early", hint="see `ruvrun status`")
        return Timeline(began, [float(when) for when in np.linspace(times[0], times[-1], count)])

    def caller(prompt: Sequence[int]) -> list[Timeline]:
        until, found = time.monotonic() + (work.seconds or 0.0), [once(prompt, work.max_tokens)]
        while time.monotonic() < until:
            found.append(once(prompt, work.max_tokens))
        return found

    once(asked[0][:16], min(4, work.max_tokens))
    with ThreadPoolExecutor(work.streams) as pool:
        timelines = [line for lines in pool.map(caller, asked) for line in lines]
    return {
        **figures(timelines, steady=work.seconds is None),
        "streams": work.streams,
        "prompt_tokens": work.prompt_tokens,
        "stages": [],
        "bubble": None,
        "accepted_per_step": None,
        "verdict": WHY,
    }
