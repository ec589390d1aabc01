"""One prompt of 1,024 tokens to its first token: two stages on two cores, and one stage on one core.

    python prefill.py [--pairs N] [--reuse]

Only the last token's logits are computed. Two nodes work at the same time on different chunks of the prompt, in the
chunks that the engine makes; one node gets chunks of the size with which it is fastest, which is tried out first.
"""

from __future__ import annotations

import os
import queue
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from built import build
from driven import driven, prompt
from harness import Benchmark, Target, finish, measure_pairs, ratio_report, read_options, tell, two_cores, versions

from ruvrun.bench import GREEDY
from ruvrun.engine import Engine, Lost, Request
from ruvrun.engine.scheduler import CHUNK

BENCHMARK = Benchmark("prefill", "ratio", Target(at_least=1.35))
TOKENS = 1024
SIZES = (64, 128, 256, 512, 1024)
TURNS = 3
WAIT = 120.0


def seconds(manifest: Path, stages: int, chunk: int) -> float:
    """From handing the prompt in to its first token, in fresh processes; the median of some prompts."""
    engine = Engine(stages=stages, context=TOKENS + 2, streams=1, chunk=chunk)
    draws, found = random.Random(0), []
    with driven(manifest, engine, 1) as driver:
        for _ in range(1 + TURNS):
            events: queue.SimpleQueue[Any] = queue.SimpleQueue()
            began = time.perf_counter()
            driver.submit(Request(driver.next_id(), prompt(draws, TOKENS), 1, GREEDY, frozenset()), events.put)
            event = events.get(timeout=WAIT)
            if isinstance(event, Lost):
                raise SystemExit(f"error: {event.why}")
            found.append(time.perf_counter() - began)
    return statistics.median(found[1:])  # the first prompt brings key/value space to life


def main() -> int:
    options = read_options(__doc__ or "")
    cpus = two_cores()
    os.sched_setaffinity(0, cpus)
    two, one = build("two-stages", cpus, reuse=options.reuse), build("one-stage", cpus[:1], reuse=options.reuse)
    tried = {stages: {size: seconds(each, stages, size) for size in SIZES} for stages, each in ((1, one), (2, two))}
    for stages, times in tried.items():
        told = ", ".join(f"{size}: {taken:.2f} s" for size, taken in times.items())
        tell(f"{stages} stage{'s' * (stages - 1)}, by tokens of a chunk: {told}")
    best = min(SIZES, key=lambda size: tried[1][size])
    pairs = measure_pairs(lambda: seconds(one, 1, best), lambda: seconds(two, 2, CHUNK), options.pairs, unit="s")
    details = {
        "what": f"A: one stage in chunks of {best}; B: two stages in chunks of {CHUNK}; seconds to the first token",
        "prompt_tokens": TOKENS,
        "best_chunk_of_one": best,
        "tried": tried,
        "cpus": cpus,
    }
    return finish(ratio_report(BENCHMARK, pairs, details=details, versions=versions()))


if __name__ == "__main__":
    sys.exit(main())
