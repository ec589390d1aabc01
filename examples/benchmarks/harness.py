"""How every benchmark measures and reports: A and B in turn in one call, a median, a range, one JSON object.

A single timing on a shared machine says little; two that are taken one right after the other share whatever the
machine does at that time. So a ratio is the median of the ratios of neighbouring pairs, and the 10-90 % range of
those ratios is printed beside it.

Standard library only, so that the form of the report can be tested by itself.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "benchmarks"
PAIRS = 7
# Processes that wanted a core in the last minute: above 0.5 or so, somebody else is at work here.
LOAD_BEFORE = round(os.getloadavg()[0], 2)
PACKAGES = ("ruvcompile", "ruvrun", "onnxruntime", "numpy")


@dataclass(frozen=True)
class Target:
    """What a value must reach; one of the two is given."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def as_json(self) -> dict[str, float]:
        return {name: bound for name, bound in vars(self).items() if bound is not None}


@dataclass(frozen=True)
class Benchmark:
    """Its name, the unit of its value, and what the value must reach."""

    name: str
    unit: str
    target: Target


@dataclass(frozen=True)
class Options:
    """How long to measure; fewer or shorter runs than the defaults are for trying things out."""

    pairs: int = PAIRS
    prompt_tokens: int = 64
    tokens: int = 128
    reuse: bool = False


@dataclass
class Pairs:
    """Measurements of A and B, taken in turn; ``ratios`` are A to B, pair by pair."""

    a: list[float] = field(default_factory=list)
    b: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.a, self.b, strict=True)]


def measure_pairs(a: Callable[[], float], b: Callable[[], float], count: int, *, unit: str = "tokens/s") -> Pairs:
    """Measure A, B, A, B, ... ``count`` times each; every pair is told on standard error."""
    pairs = Pairs()
    for number in range(1, count + 1):
        pairs.a.append(a())
        pairs.b.append(b())
        tell(f"pair {number} of {count}: {pairs.a[-1]:.1f} / {pairs.b[-1]:.1f} {unit} = {pairs.ratios[-1]:.3f}")
    return pairs


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of them lie, interpolated between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ratio_report(
    benchmark: Benchmark, pairs: Pairs, *, details: dict[str, Any], versions: dict[str, str]
) -> dict[str, Any]:
    """The report of a benchmark whose value is a ratio of A to B."""
    return report(
        benchmark,
        statistics.median(pairs.ratios),
        runs=[{"a": a, "b": b, "ratio": r} for a, b, r in zip(pairs.a, pairs.b, pairs.ratios, strict=True)],
        spread=pairs.ratios,
        details={"a": statistics.median(pairs.a), "b": statistics.median(pairs.b), **details},
        versions=versions,
    )


def report(
    benchmark: Benchmark,
    value: float,
    *,
    runs: Sequence[Any],
    spread: Sequence[float],
    details: dict[str, Any],
    versions: dict[str, str],
    also: bool = True,
) -> dict[str, Any]:
    """The JSON object of a benchmark.

    Args:
        benchmark: what was measured.
        value: the result that the target is about.
        runs: the single measurements.
        spread: the values whose 10-90 % range is told.
        details: whatever explains the result.
        versions: of what was measured.
        also: whether everything else that is demanded is kept, too.
    """
    return {
        "name": benchmark.name,
        "value": value,
        "unit": benchmark.unit,
        "target": benchmark.target.as_json(),
        "ok": benchmark.target.met(value) and also,
        "runs": list(runs),
        "spread": {"p10": quantile(spread, 0.1), "p90": quantile(spread, 0.9)},
        "machine": machine(),
        "versions": versions,
        "details": details,
    }


def finish(result: dict[str, Any]) -> int:
    """Print a report: a sentence on standard error, the object as the last line of standard output; the exit code."""
    (word, bound), *_ = result["target"].items()
    low, high = result["spread"]["p10"], result["spread"]["p90"]
    verdict = "ok" if result["ok"] else "NOT ok"
    tell(f"{result['name']}: {result['value']:.3f} {result['unit']} (10-90 %: {low:.3f} to {high:.3f}), {verdict}")
    host = result["machine"]
    tell(
        f"  wanted {word.replace('_', ' ')} {bound:g}; {host['cores']} cores, {host['cpu']}, load before {LOAD_BEFORE}"
    )
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and how busy it was with other things before."""
    info = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load_before": LOAD_BEFORE,
    }


def versions(*more: str) -> dict[str, str]:
    """Of Python and the packages that are measured, these always and ``more``."""
    found = {name: importlib.metadata.version(name) for name in (*PACKAGES, *more)}
    return {"python": platform.python_version(), **found}


def two_cores() -> tuple[int, int]:
    """Two cores of this process, not two threads of one core where that can be had.

    Core 0 of the benchmarks is the first, core 1 the second.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise SystemExit("error: two cores are needed")
    first, *others = allowed
    siblings = Path(f"/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list")
    same = _cpu_list(siblings.read_text()) if siblings.exists() else {first}
    return first, next((cpu for cpu in others if cpu not in same), others[0])


def _cpu_list(text: str) -> set[int]:
    """``0-1,4`` -> {0, 1, 4}."""
    spans = [part.partition("-") for part in text.strip().split(",")]
    return {cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)}


def read_options(about: str, defaults: Options = Options(), *, arguments: Sequence[str] | None = None) -> Options:
    """The options on the command line."""
    parser = argparse.ArgumentParser(
        description=about.partition("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=defaults.pairs, help=f"fewer than {PAIRS} are only for trying")
    parser.add_argument("--prompt-tokens", type=int, default=defaults.prompt_tokens, help="of each request")
    parser.add_argument("--tokens", type=int, default=defaults.tokens, help="decoded in each measurement")
    parser.add_argument("--reuse", action="store_true", help="take the build of the last time")
    given = parser.parse_args(arguments)
    if given.pairs < 1 or given.tokens < 2 or given.prompt_tokens < 1:
        parser.error("at least one pair, one prompt token and two tokens are needed")
    return Options(given.pairs, given.prompt_tokens, given.tokens, given.reuse)


def tell(line: str) -> None:
    """A line for the person who watches; standard output is for the result."""
    print(line, file=sys.stderr, flush=True)
