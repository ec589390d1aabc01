"""How far pipelines are from what their weights mean: all four ways to put two stages on two back ends.

The model is cut in its middle and each half lowered for each back end, with int8 activations (the default) and with
float ones. What `ruvcompile verify` does with a build is done with all of them at once: a real text is put before them
and before the uncut model with the same weights in float64. Nothing is measured that a busy machine could change.

The value is the largest mean KL divergence with int8 activations; ok is what verify's own bounds say of all of them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from built import MODEL
from harness import CACHE, Benchmark, Target, finish, report, tell, versions

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.parts import Stage
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.passes.quantise import ACCURACY, quantise
from ruvcompile.program import Program
from ruvcompile.progress import Silent
from ruvcompile.verify.equality import TOKENS, measure

BENCHMARK = Benchmark("equality", "KL", Target(at_most=0.01))
BACKENDS = ("onnxruntime", "openvino")
WAYS = tuple((first, second) for first in BACKENDS for second in BACKENDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of the text; fewer are only for trying")
    parser.add_argument("--threads", type=int, default=1, help="of each stage")
    options = parser.parse_args()
    source = passes.run(load(str(MODEL)))
    runs: list[dict[str, Any]] = []
    for activations, accuracy in ACCURACY.items():
        program = quantise(source, "int4", accuracy=accuracy)
        folder = CACHE / "equality"
        shutil.rmtree(folder, ignore_errors=True)
        halves = write_halves(program, folder)
        chains = {number: [halves[0, way[0]], halves[1, way[1]]] for number, way in enumerate(WAYS)}
        for found in measure(program, chains, options.tokens, folder, options.threads, Silent()):
            runs.append({"activations": activations, **found.as_json(), "beyond": found.beyond})
            tell(
                f"{activations}, {' + '.join(found.backends)}: KL {found.found.kl:.3g}, same first choice "
                f"{100 * found.found.top1:.2f} %, largest difference of logits {found.found.largest:.3g}"
            )
        shutil.rmtree(folder)
    quantised = [run["mean_kl"] for run in runs if run["activations"] == "int8"]
    result = report(
        BENCHMARK,
        max(quantised),
        runs=runs,
        spread=quantised,
        details={"tokens": options.tokens},
        versions=versions("openvino"),
        also=not any(run["beyond"] for run in runs),
    )
    return finish(result)


def write_halves(program: Program, folder: Path) -> dict[tuple[int, str], Stage]:
    """Both halves of the model for each of the back ends."""
    units, store, made = program_units(program), WeightStore(folder / "store"), {}
    for number, piece in enumerate(pieces(program, units, (len(units) // 2,))):
        for backend in BACKENDS:
            directory = folder / f"{backend}-{number}"
            spec = write_stage(program, piece, directory, store, backend=backend, target="host")
            made[number, backend] = (directory, spec)
    return made


if __name__ == "__main__":
    sys.exit(main())
