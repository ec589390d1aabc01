"""The peer of the parity benchmark: onnxruntime-genai in a process of its own, measuring when it is asked.

Runs in the peer's own environment; it imports nothing of ours.

    python peer.py MODEL_DIRECTORY CPU

One JSON object per line: ``{"prompt": [ids], "tokens": n}`` in; ``{"tokens": [ids], "seconds": s}`` out, where
``s`` is from the first token that is picked to the last, so that neither loading nor the prompt is in it. The
first line out is ``{"versions": {...}}``, when the model is loaded.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from typing import Any

PACKAGES = ("onnxruntime-genai", "onnxruntime")


def answer(genai: Any, model: Any, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Decode ``tokens`` greedily after ``prompt``, taking each as it comes, as our callers get theirs."""
    params = genai.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(prompt) + tokens, batch_size=1)
    generator = genai.Generator(model, params)
    generator.append_tokens(prompt)
    generator.generate_next_token()
    began = time.perf_counter()
    for _ in range(tokens - 1):
        generator.generate_next_token()
        generator.get_next_tokens()
    seconds = time.perf_counter() - began
    made = [int(token) for token in generator.get_sequence(0)[len(prompt) :]]
    return {"tokens": made, "seconds": seconds}


def main(directory: str, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    # After pinning, so that every thread it starts is pinned, too.
    import onnxruntime_genai as genai  # type: ignore[import-not-found]  # it is only in the peer's environment

    model = genai.Model(directory)
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in PACKAGES}}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(answer(genai, model, asked["prompt"], asked["tokens"])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
