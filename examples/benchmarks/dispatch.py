"""Everything of a step but the model: how long a round of 8 sequences takes beyond the back end's own work.

A ring of one stage, head and stage as processes on one core, as `ruvrun serve` starts them. A round is from the moment
when the last of the 8 has got its token to the next such moment; what the stage's process spent inside the executor is
taken off. What is left is the engine, both links, the worker, and sampling: greedy (A), or top_p 0.9 (B). The
executor's own lines around its back end's call count as the call.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from built import build
from harness import Benchmark, Target, finish, measure_pairs, quantile, read_options, report, two_cores, versions

from ruvrun.bundle import load_spec
from ruvrun.frames import Sampling
from ruvrun.manifest import Space, load_manifest
from ruvrun.profile.alone import stand_alone
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.ring import stage_ring, steps_of, tokens

ROWS = 8
MOST_MORE = 1.0
BENCHMARK = Benchmark("dispatch", "ms", Target(at_most=0.5))
GREEDY = Sampling(0.0, 1.0, 1)
TOP_P = Sampling(1.0, 0.9, 1)


def main() -> int:
    options = read_options(__doc__ or "")
    cpu, _ = two_cores()
    os.sched_setaffinity(0, {cpu})
    manifest = build("one-stage", (cpu,), reuse=options.reuse)
    seen: dict[str, list[dict[str, float]]] = {"greedy": [], "top_p": []}

    def measured(name: str, sampling: Sampling) -> float:
        seen[name].append(outside(manifest, cpu, sampling, options.tokens))
        return seen[name][-1]["outside_ms"]

    pairs = measure_pairs(
        lambda: measured("greedy", GREEDY), lambda: measured("top_p", TOP_P), options.pairs, unit="ms"
    )
    more = [b - a for a, b in zip(pairs.a, pairs.b, strict=True)]
    details = {
        "what": f"A: greedy, B: top_p {TOP_P.top_p}; ms of a round of {ROWS} outside the executor, head and stage",
        "more_for_top_p_ms": statistics.median(more),
        "more_spread": {"p10": quantile(more, 0.1), "p90": quantile(more, 0.9)},
        "more_target": {"at_most": MOST_MORE},
        **{name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in seen.items()},
    }
    return finish(
        report(
            BENCHMARK,
            statistics.median(pairs.a),
            runs=[{"a": a, "b": b} for a, b in zip(pairs.a, pairs.b, strict=True)],
            spread=pairs.a,
            details=details,
            versions=versions(),
            also=statistics.median(more) <= MOST_MORE,
        )
    )


def outside(manifest: Path, cpu: int, sampling: Sampling, rounds: int) -> dict[str, float]:
    """A ring in fresh processes; medians of its rounds, ms."""
    (placed,) = load_manifest(manifest).pipeline[0].stages
    bundle = manifest.parent / "bundles" / placed.node
    context = 8 + tokens(ROWS, rounds)
    with tempfile.TemporaryDirectory() as folder:
        alone = stand_alone(bundle, load_spec(bundle), Path(folder), context=context, network=False)
        conditions = Conditions(threads=1, cpus=((cpu,),))
        with stage_ring(alone, conditions, Space(context=context, streams=ROWS)) as (ring, counts):
            seen = ring.decode(ROWS, rounds, sampling)
    steps = steps_of(counts[0], ROWS)
    whole, inside = statistics.median(seen.ms), statistics.median(steps.inside_ms)
    found: dict[str, Any] = {
        "outside_ms": whole - inside,
        "round_ms": whole,
        "inside_ms": inside,
        "head_cpu_ms": statistics.median(seen.head_ms),
        "stage_cpu_ms": statistics.median(steps.beside_ms),
    }
    return found


if __name__ == "__main__":
    sys.exit(main())
