"""Two stages on two cores against one stage on one core, decode tokens/s.

    python two_nodes.py two-nodes         two stages serve two streams, the one stage serves one
    python two_nodes.py two-nodes-one     one stream each: what the links cost a single user

The head and the load share core 0 with stage 0 (or the only stage); stage 1 has core 1.
"""

from __future__ import annotations

import sys
from typing import Any

from built import bench, build, busy
from harness import Benchmark, Target, finish, measure_pairs, ratio_report, read_options, two_cores, versions

STREAMS = {"two-nodes": 2, "two-nodes-one": 1}
BENCHMARKS = {
    "two-nodes": Benchmark("two-nodes", "ratio", Target(at_least=1.7)),
    "two-nodes-one": Benchmark("two-nodes-one", "ratio", Target(at_least=0.85)),
}


def main(name: str) -> int:
    options = read_options(__doc__ or "", arguments=sys.argv[2:])
    cpus = two_cores()
    two, one = build("two-stages", cpus, reuse=options.reuse), build("one-stage", cpus[:1], reuse=options.reuse)
    last: dict[str, Any] = {}

    def a() -> float:
        last["a"] = bench(two, options, streams=STREAMS[name])
        return float(last["a"]["tokens_per_s"])

    def b() -> float:
        last["b"] = bench(one, options, streams=1)
        return float(last["b"]["tokens_per_s"])

    pairs = measure_pairs(a, b, options.pairs)
    details = {
        "what": f"A: two stages on two cores, {STREAMS[name]} streams; B: one stage on one core, one stream; tokens/s",
        "cpus": cpus,
        "prompt_tokens": options.prompt_tokens,
        "tokens": options.tokens,
        "last_a": {"bubble": last["a"]["bubble"], "stages": busy(last["a"])},
        "last_b": {"bubble": last["b"]["bubble"], "stages": busy(last["b"])},
    }
    return finish(ratio_report(BENCHMARKS[name], pairs, details=details, versions=versions()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
