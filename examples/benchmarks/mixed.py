"""Two nodes of unlike back ends with two streams against the better single node with one, decode tokens/s.

Stage 0 is on ONNX Runtime and stage 1 on OpenVINO. The single node is the whole model on core 0 on the one and on the
other: both are measured in every round, and the one with the higher median is what the pipeline is held against. The
head and the load share core 0 with stage 0 (or the only stage); stage 1 has core 1.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from built import bench, build, busy
from harness import Benchmark, Pairs, Target, finish, ratio_report, read_options, tell, two_cores, versions

BENCHMARK = Benchmark("mixed", "ratio", Target(at_least=1.6))
BACKENDS = ("onnxruntime", "openvino")


def main() -> int:
    options = read_options(__doc__ or "")
    cpus = two_cores()
    mixed = build("mixed", cpus, reuse=options.reuse, backends=BACKENDS)
    single = {
        backend: build(f"only-{backend}", cpus[:1], reuse=options.reuse, backends=[backend]) for backend in BACKENDS
    }
    rates: dict[str, list[float]] = {name: [] for name in ("mixed", *BACKENDS)}
    last: dict[str, Any] = {}
    for number in range(1, options.pairs + 1):
        last["mixed"] = bench(mixed, options, streams=2)
        last |= {backend: bench(manifest, options, streams=1) for backend, manifest in single.items()}
        for name, result in last.items():
            rates[name].append(float(result["tokens_per_s"]))
        told = ", ".join(f"{name} {values[-1]:.1f}" for name, values in rates.items())
        tell(f"round {number} of {options.pairs}: {told} tokens/s")
    better = max(BACKENDS, key=lambda backend: statistics.median(rates[backend]))
    details = {
        "what": "A: a stage on ONNX Runtime and one on OpenVINO, two streams; B: one stage, one stream; tokens/s",
        "better": better,
        "single": {backend: statistics.median(rates[backend]) for backend in BACKENDS},
        "cpus": cpus,
        "prompt_tokens": options.prompt_tokens,
        "tokens": options.tokens,
        "last_a": {"bubble": last["mixed"]["bubble"], "stages": busy(last["mixed"])},
    }
    pairs = Pairs(rates["mixed"], rates[better])
    return finish(ratio_report(BENCHMARK, pairs, details=details, versions=versions("openvino")))


if __name__ == "__main__":
    sys.exit(main())
