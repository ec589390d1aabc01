"""The peer of the benchmark ``openvino-parity``: OpenVINO GenAI in a process of its own, measuring when it is asked.

Runs in the peer's own environment; it imports nothing of ours.

    python openvino_peer.py MODEL_DIRECTORY CPU

Lines are as in ``peer.py``; ``seconds`` are the library's own count, from the first token to the last. It runs the
pipeline that it calls paged attention, with one thread, on the precision, the type of keys and values and the groups of
activations that stand in the directory's ``settings.json``.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("openvino-genai", "openvino")


def load(genai: Any, directory: Path) -> Any:
    """The pipeline, with space for a few sequences."""
    told = json.loads((directory / "settings.json").read_text("utf-8"))
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = told.pop("blocks")
    scheduler.max_num_batched_tokens = 256
    scheduler.enable_prefix_caching = False
    machine = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False, "PERFORMANCE_HINT": "LATENCY"}
    tokenizer = genai.Tokenizer(directory)
    return genai.LLMPipeline(
        directory, tokenizer, "CPU", scheduler_config=scheduler, ATTENTION_BACKEND="PA", **machine, **told
    )


def answer(genai: Any, openvino: Any, pipeline: Any, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Decode ``tokens`` greedily after ``prompt``."""
    import numpy as np

    ids = np.array([prompt], np.int64)
    asked = genai.GenerationConfig()
    asked.max_new_tokens, asked.do_sample, asked.ignore_eos = tokens, False, True
    found = pipeline.generate(genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))), asked)
    told = found.perf_metrics
    seconds = (told.get_generate_duration().mean - told.get_ttft().mean) / 1e3
    return {"tokens": [int(token) for token in found.tokens[0]], "seconds": seconds}


def main(directory: str, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    # After pinning, so that every thread it starts is pinned, too.
    import openvino
    import openvino_genai as genai  # type: ignore[import-not-found]  # it is only in the peer's environment

    pipeline = load(genai, Path(directory))
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in PACKAGES}}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(answer(genai, openvino, pipeline, asked["prompt"], asked["tokens"])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
