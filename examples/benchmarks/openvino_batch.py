"""Sixteen sequences together against one, one stage on OpenVINO on one core: decode tokens/s.

What else a step of several tokens is for is a guess that is looked at: a step with four tokens of one sequence must
take at most 1.3 times a step with one. It is measured on the executor alone; the ratio is in the details.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from built import bench, build, busy
from harness import Benchmark, Target, finish, measure_pairs, ratio_report, read_options, tell, two_cores, versions

BENCHMARK = Benchmark("openvino-batch", "ratio", Target(at_least=4.4))
GUESSED = Target(at_most=1.3)
STREAMS, TOKENS = 16, 4
_STEPS = 24


def guesses(bundle: Path, cpu: int, depth: int, rounds: int) -> list[float]:
    """Of each round, a step with ``TOKENS`` tokens of one sequence in steps with one, ``depth`` positions deep."""
    os.sched_setaffinity(0, {cpu})
    # After pinning, so that every thread it starts is pinned, too.
    from ruvrun.bundle import load_spec
    from ruvrun.executors import Span, load_decoder

    decoder = load_decoder(bundle, load_spec(bundle), context=depth + TOKENS, slots=1, threads=1)
    decoder.step([Span(0, 0, depth, 0)], {"input_ids": np.arange(depth) % 1000})

    def seconds(count: int) -> float:
        ids, found = np.arange(count), []
        for _ in range(_STEPS):
            began = time.perf_counter()
            decoder.step([Span(0, depth, count, 1)], {"input_ids": ids})
            found.append(time.perf_counter() - began)
        return statistics.median(found)

    return [seconds(TOKENS) / seconds(1) for _ in range(rounds)]


def main() -> int:
    options = read_options(__doc__ or "")
    cpu, _ = two_cores()
    path = build("openvino-u8", [cpu], reuse=options.reuse, backends=["openvino"], more=["--kv-type", "u8"])
    last: dict[str, Any] = {}

    def rate(streams: int) -> float:
        last[f"{streams}"] = bench(path, options, streams=streams)
        return float(last[f"{streams}"]["tokens_per_s"])

    pairs = measure_pairs(lambda: rate(STREAMS), lambda: rate(1), options.pairs)
    ratios = guesses(path.parent / "bundles" / "core-0", cpu, options.prompt_tokens, options.pairs)
    guessed = statistics.median(ratios)
    tell(f"{TOKENS} tokens of one sequence: {guessed:.3f} steps")
    details = {
        "what": f"A: {STREAMS} streams; B: one stream; ruvrun bench of one stage, one thread, one core; tokens/s",
        "tokens_of_one_sequence": {"tokens": TOKENS, "steps": guessed, **GUESSED.as_json(), "runs": ratios},
        "cpu": cpu,
        "prompt_tokens": options.prompt_tokens,
        "tokens": options.tokens,
        "last": {streams: {"bubble": each["bubble"], "stages": busy(each)} for streams, each in last.items()},
    }
    result = ratio_report(BENCHMARK, pairs, details=details, versions=versions("openvino"))
    return finish(result | {"ok": result["ok"] and GUESSED.met(guessed)})


if __name__ == "__main__":
    sys.exit(main())
