"""What plans promise against what their pipelines do: tokens/s or items/s, predicted and measured in turn.

    python prediction.py [--pairs N] [--reuse]

SmolLM2 in one and two stages on a core each, and in three that share the two cores, with 1, 2 and 8 streams; a text
detector and two light networks in two stages, planned for the two callers they have. Every case is measured ``--pairs``
times. Beside each measurement a calibration step is timed, the same one as beside the build whose costs the prediction
is made from (which is made again where the machine changed meanwhile), on as many cores and as busy as those of the
case (``calibration.py``); the prediction is scaled by the ratio of the two, so that a machine that became slower
meanwhile is not a wrong plan. A case whose own spread is above ``QUIET`` is repeated up to ``REPEATS`` times, and then
told as noisy: it is listed with what was seen, and is no part of the median.

Then half of one node is taken away (``slow.py``); it is measured as such, and planned for.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from built import MODEL, command
from calibration import Calibration
from graphs import write_graphs
from harness import (
    CACHE,
    Benchmark,
    Options,
    Target,
    finish,
    quantile,
    read_options,
    report,
    tell,
    two_cores,
    versions,
)
from slow import slowed

BENCHMARK = Benchmark("prediction", "median deviation", Target(at_most=0.05))
WORST = 0.10
QUIET = 0.05
REPEATS = 3
SLOWED_AT_LEAST = 0.90
HOME = CACHE / "prediction"
STREAMS = (1, 2, 8)
CALLERS = 2
SECONDS = 4
"""Of calls; as long as about four measurements of a decoder, of which the median counts."""


@dataclass(frozen=True)
class Case:
    """One build with so many in flight; ``arguments`` of ``ruvrun bench``, and how many cores are at work at a time."""

    name: str
    manifest: Path
    arguments: tuple[str, ...]
    cores: int
    calibrated_ms: float


def build(
    name: str,
    model: Path,
    cpus: Sequence[Sequence[int]],
    extra: Sequence[str],
    calibration: Calibration,
    *,
    reuse: bool,
) -> tuple[Path, tuple[float, ...]]:
    """Build ``model`` in one stage for each of ``cpus``.

    Returns:
        The manifest, and the calibration step on one core and on two as it was beside the build.
    """
    folder = HOME / name.replace(" ", "-")
    manifest, calibrated = folder / "dist" / "manifest.toml", folder / "calibrated.json"
    if reuse and manifest.is_file():
        return manifest, tuple(json.loads(calibrated.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    nodes = [
        f'[[node]]\nname = "core-{number}"\ntarget = "host"\ncpus = {list(where)}\nthreads = 1\n'
        for number, where in enumerate(cpus)
    ]
    (folder / "fleet.toml").write_text("\n".join(['format = 1\nhead = "core-0"\n', *nodes]))
    shape = ["--stages", str(len(cpus)), "--replicas", "1", "--quiet", *extra]
    where = ["--fleet", str(folder / "fleet.toml"), "-o", str(folder / "dist")]
    changed, tries = math.inf, 0
    while changed > QUIET and tries <= REPEATS:
        before, tries = _calibrated(calibration), tries + 1
        shutil.rmtree(folder / "dist", ignore_errors=True)
        command(["ruvcompile", "build", str(model), *where, *shape])
        after = _calibrated(calibration)
        changed = max(abs(now / then - 1) for then, now in zip(before, after, strict=True))
        ms = tuple(map(statistics.fmean, zip(before, after, strict=True)))
        tell(f"built {name}; calibration step on one core {ms[0]:.2f} ms, on two {ms[1]:.2f} ms; {changed:.1%} apart")
    calibrated.write_text(json.dumps(ms))
    return manifest, ms


def _calibrated(calibration: Calibration) -> tuple[float, ...]:
    return tuple(calibration.step_ms(cores) for cores in (1, 2))


def cases(cpus: tuple[int, int], calibration: Calibration, *, reuse: bool) -> Iterator[Case]:
    """All cases, each group of them right after its build, with the calibration step as it was beside that."""
    shapes = {"one stage": [[cpus[0]]], "two stages": [[cpus[0]], [cpus[1]]], "three on two cores": [list(cpus)] * 3}
    for name, where in shapes.items():
        quant = ["--quant", "int4", "--streams", str(max(STREAMS))]
        manifest, ms = build(name, MODEL, where, quant, calibration, reuse=reuse)
        for streams in STREAMS:
            repeats = str(max(1, 4 // streams))
            sizes = ("--streams", str(streams), "--prompt-tokens", "224", "--max-tokens", "64", "--repeats", repeats)
            cores = min(len(where), streams, len(cpus))
            yield Case(f"SmolLM2, {name}, streams {streams}", manifest, sizes, cores, ms[cores - 1])
    for name, (path, given, extra) in write_graphs(HOME / "graphs").items():
        planned = ["--streams", str(CALLERS), *extra]
        manifest, ms = build(name, path, shapes["two stages"], planned, calibration, reuse=reuse)
        sizes = ("--streams", str(CALLERS), "--input", str(given), "--seconds", str(SECONDS))
        yield Case(f"{name}, two stages, {CALLERS} callers", manifest, sizes, 2, ms[1])


def measure(case: Case, calibration: Calibration, pairs: int) -> dict[str, Any]:
    """Predicted and measured rates of a case, in turn; repeated while they scatter. What was seen last is told."""
    rounds, spread = 0, math.inf
    while spread > QUIET and rounds <= REPEATS:
        rounds += 1
        predicted, measured = [], []
        for _ in range(pairs):
            before = calibration.step_ms(case.cores)
            found = json.loads(command(["ruvrun", "bench", str(case.manifest), *case.arguments, "--json"]))
            now = statistics.fmean([before, calibration.step_ms(case.cores)])
            runs = found.get("runs", [found])
            told = runs[-1]
            predicted.append(told["predicted_per_s"] * case.calibrated_ms / now)
            measured.append(statistics.median(run.get("tokens_per_s", run.get("items_per_s")) for run in runs))
        ratios = [m / p for m, p in zip(measured, predicted, strict=True)]
        spread = (quantile(ratios, 0.9) - quantile(ratios, 0.1)) / statistics.median(ratios)
        deviation = abs(statistics.median(ratios) - 1)
        tell(
            f"{case.name}: {statistics.median(predicted):.1f}/s predicted, "
            f"{statistics.median(measured):.1f}/s measured, {statistics.median(ratios) - 1:+.1%}, spread {spread:.1%}"
        )
    return {
        "case": case.name,
        "predicted": statistics.median(predicted),
        "measured": statistics.median(measured),
        "ratio": statistics.median(ratios),
        "deviation": deviation,
        "spread": spread,
        "rounds": rounds,
        "noisy": spread > QUIET,
        "stages": [{key: stage[key] for key in ("node", "predicted_ms", "measured_ms")} for stage in told["stages"]],
        "memory": memory(case.manifest, told),
    }


def memory(manifest: Path, told: dict[str, Any]) -> list[dict[str, Any]]:
    """Peak memory of each process of a graph's stages, planned and measured; a run does not fill a decoder's space."""
    planned = json.loads((manifest.parent / "plan.json").read_text())["stages"]
    return [
        {"node": stage["node"], "planned": plan["predicted_rss_bytes"], "measured": stage["peak_rss_bytes"]}
        for plan, stage in zip(planned, told["stages"], strict=True)
        if not plan["kv_bytes"]
    ]


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst deviation of the cases that are not noisy, the names of those that are, and how far the memory
    of any process was off. Where all are noisy what was seen is told, and nothing has held.
    """
    quiet = [each["deviation"] for each in found if not each["noisy"]]
    seen = quiet or [each["deviation"] for each in found]
    kept = [each["planned"] / each["measured"] - 1 for case in found for each in case["memory"] if each["measured"]]
    return {
        "median": statistics.median(seen),
        "worst": max(seen),
        "worst_at_most": WORST,
        "held": bool(quiet) and max(quiet) <= WORST,
        "cases": len(found),
        "noisy": [each["case"] for each in found if each["noisy"]],
        "memory_worst": max(map(abs, kept), default=0.0),
    }


def main() -> int:
    options = read_options(__doc__ or "", Options(pairs=5))
    cpus = two_cores()
    HOME.mkdir(parents=True, exist_ok=True)
    calibration = Calibration(cpus)
    found = [measure(case, calibration, options.pairs) for case in cases(cpus, calibration, reuse=options.reuse)]
    told = summary(found)
    tell(f"median {told['median']:.1%}, worst {told['worst']:.1%} of {len(found)} cases; {len(told['noisy'])} noisy")
    tell(f"memory of stages is off by {told['memory_worst']:.1%} at most")
    slow = slowed(cpus, HOME, options)
    details = {
        "what": "|measured / predicted - 1| of the rate, median over the cases that are not noisy",
        **told,
        "slowed": slow,
        "slowed_at_least": SLOWED_AT_LEAST,
        "cpus": cpus,
    }
    also = told["held"] and slow["ratio"] >= SLOWED_AT_LEAST
    spread, value = [each["deviation"] for each in found], told["median"]
    return finish(report(BENCHMARK, value, runs=found, spread=spread, details=details, versions=versions(), also=also))


if __name__ == "__main__":
    sys.exit(main())
