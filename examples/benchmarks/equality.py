"""How far pipelines are from what their weights mean: all four ways to put two stages on two back ends.

Each is built with int8 activations (the default) and with float ones, and `ruvcompile verify` puts a real text before
it and before the uncut model with the same weights in float64. The value is the largest mean KL divergence of those
with int8 activations; ok is what verify's own bounds say of all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from built import MODEL, build, command
from harness import Benchmark, Target, finish, report, tell, two_cores, versions

BENCHMARK = Benchmark("equality", "KL", Target(at_most=0.01))
TOKENS = 2048
VERIFICATION_FAILED = 5
ONNX, OPEN = "onnxruntime", "openvino"
PAIRS = ((ONNX, OPEN), (OPEN, ONNX), (ONNX, ONNX), (OPEN, OPEN))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of the text; fewer are only for trying")
    parser.add_argument("--reuse", action="store_true", help="take the builds of the last time")
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for activations in ("int8", "float"):
        measured: list[str] = []
        for backends in PAIRS:
            name = f"equality-{activations}-{'-'.join(backends)}"
            more = ["--activations", activations, *measured]
            manifest = build(name, two_cores(), reuse=options.reuse, backends=backends, more=more)
            # Nothing here is about time: what the first build measured does for the others.
            measured = measured or ["--costs", str(manifest.with_name("costs.toml"))]
            arguments = ["ruvcompile", "verify", str(manifest), "--model", str(MODEL), "--tokens", str(options.tokens)]
            result = json.loads(command([*arguments, "--json"], fine=(0, VERIFICATION_FAILED)))
            (found,) = result["equality"]
            ok = result["identical"] and not result["beyond"]
            runs.append({"activations": activations, **found, "ok": ok, "beyond": result["beyond"]})
            tell(f"{activations}, {' + '.join(backends)}: {json.dumps(runs[-1])}")
    quantised = [run["mean_kl"] for run in runs if run["activations"] == "int8"]
    result = report(
        BENCHMARK,
        max(quantised),
        runs=runs,
        spread=quantised,
        details={"tokens": options.tokens},
        versions=versions("openvino"),
        also=all(run["ok"] for run in runs),
    )
    return finish(result)


if __name__ == "__main__":
    sys.exit(main())
