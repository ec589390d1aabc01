"""Two nodes against one, decode tokens/s: two stages on two cores, and one stage on one core.

    python two_nodes.py two-nodes         two streams against one
    python two_nodes.py two-nodes-one     one stream each: what the links cost a single user
    python two_nodes.py scaling           16 streams against 8, so that steps have as many rows; on each back end
    python two_nodes.py users16           16 streams against one; users16-ov on OpenVINO
    python two_nodes.py users32           32 streams against one; users32-ov on OpenVINO

The head and the load share core 0 with stage 0 (or the only stage); stage 1 has core 1. Each pipeline was built for as
many streams as it is measured with: where a cut is best depends on the rows of a step.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from built import bench, build_for, busy
from harness import (
    Benchmark,
    Options,
    Pairs,
    Target,
    finish,
    measure_pairs,
    ratio_report,
    read_options,
    tell,
    two_cores,
    versions,
)

ORT, OV = "onnxruntime", "openvino"


@dataclass(frozen=True)
class Case:
    """Streams of two nodes and of one, the back ends on which that is measured, and what it must give on each."""

    two: int
    one: int
    at_least: float
    backends: tuple[str, ...] = (ORT,)


CASES = {
    "two-nodes": Case(2, 1, 1.75),
    "two-nodes-one": Case(1, 1, 0.87),
    "scaling": Case(16, 8, 1.8, (ORT, OV)),
    "users16": Case(16, 1, 4.0),
    "users16-ov": Case(16, 1, 6.8, (OV,)),
    "users32": Case(32, 1, 4.1),
    "users32-ov": Case(32, 1, 8.0, (OV,)),
}


def measure(case: Case, backend: str, cpus: Sequence[int], options: Options) -> tuple[Pairs, dict[str, Any]]:
    """Pairs of tokens/s, and what the stages did in the last of them."""
    two = build_for(backend, cpus, case.two, reuse=options.reuse)
    one = build_for(backend, cpus[:1], case.one, reuse=options.reuse)
    last: dict[str, Any] = {}

    def a() -> float:
        last["a"] = bench(two, options, streams=case.two)
        return float(last["a"]["tokens_per_s"])

    def b() -> float:
        last["b"] = bench(one, options, streams=case.one)
        return float(last["b"]["tokens_per_s"])

    pairs = measure_pairs(a, b, options.pairs)
    told = {
        f"last_{name}": {key: last[name][key] for key in ("bubble", "verdict")} | {"stages": busy(last[name])}
        for name in ("a", "b")
    }
    return pairs, {"backend": backend, "ratio": statistics.median(pairs.ratios), "pairs": pairs.ratios, **told}


def main(name: str) -> int:
    options = read_options(__doc__ or "", arguments=sys.argv[2:])
    case, cpus = CASES[name], two_cores()
    found = [measure(case, backend, cpus, options) for backend in case.backends]
    for _, each in found:
        tell(f"{each['backend']}: {each['ratio']:.3f}")
    pairs, worst = min(found, key=lambda each: each[1]["ratio"])
    details = {
        "what": f"A: two stages on two cores, {case.two} streams; B: one stage on one core, {case.one}; tokens/s"
        + ("; of both back ends the worse" if len(found) > 1 else ""),
        "cpus": cpus,
        "prompt_tokens": options.prompt_tokens,
        "tokens": options.tokens,
        **worst,
        "others": [each for _, each in found if each is not worst],
    }
    benchmark = Benchmark(name, "ratio", Target(at_least=case.at_least))
    packages = ["openvino"] if OV in case.backends else []
    return finish(ratio_report(benchmark, pairs, details=details, versions=versions(*packages)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
