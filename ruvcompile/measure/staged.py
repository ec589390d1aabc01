"""The stages of a build, measured together: as processes, in their pipeline, with as many in flight as planned.

The plan adds up what parts cost that were measured before there were stages. What a lowered stage takes while the
others work beside it is the truth the plan is held against (``settle``). It is measured by ``ruvrun bench`` on the
build itself, a process of its own as it will be for the user, so this works where every stage is a process of this
machine, and nowhere else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

from ruvrun.elements import Array
from ruvrun.errors import MachineError, how_it_ended, parse_error
from ruvrun.npz import write_npz

TOKENS = 64
"""Decoded by each stream of a decoder; the prompt before them is as long as makes the planned depth their middle."""

SECONDS = 1.5
"""How long callers of a graph begin new calls."""

LONGEST_S = 900
_LAST_WORDS = 12


@dataclass(frozen=True)
class Reality:
    """What a pipeline did: the median step of each stage (ms), its process's peak memory (bytes), and in all.

    ``own_ms`` are the CPU times of the threads that step: where processes take turns on a core, the time by the clock
    has the others' in it. ``per_s`` is tokens or items per second with ``streams`` in flight; a peak is None where a
    node told nothing.
    """

    stage_ms: tuple[float, ...]
    peak_bytes: tuple[int | None, ...]
    per_s: float
    streams: int
    own_ms: tuple[float, ...] = ()


class NotMeasuredError(MachineError):
    """The pipeline cannot run on this machine as it is now: memory, cores or permissions are missing."""


def measure_staged(
    manifest: Path, streams: Sequence[int], *, depth: int = 0, samples: Mapping[str, Array] | None = None
) -> tuple[Reality, ...]:
    """Run the build at ``manifest``, all stages at once, with so many sequences or callers, one number after the other.

    Of those that take several turns the mean is told.

    Args:
        manifest: of a build whose nodes are all processes of this machine; its golden checks are run, too.
        streams: in flight at a time.
        depth: of a decoder, the tokens of context in the middle of what is measured.
        samples: inputs of a graph; without them it is a decoder.

    Returns:
        What was seen with each of ``streams``.

    Raises:
        NotMeasuredError: with what the run said.
    """
    arguments = ["--streams", ",".join(map(str, turns(streams, graph=bool(samples))))]
    given = manifest.parent / "samples.npz"
    if samples:
        with given.open("wb") as file:
            write_npz(file, samples)
        arguments += ["--input", str(given), "--seconds", str(SECONDS)]
    else:
        arguments += ["--prompt-tokens", str(prompt_tokens(depth)), "--max-tokens", str(TOKENS), "--reuse"]
    try:
        told = _bench(manifest, arguments)
    finally:
        given.unlink(missing_ok=True)
    seen = [_reality(run) for run in told.get("runs", [told])]
    return tuple(mean_of([each for each in seen if each.streams == count]) for count in streams)


def turns(streams: Sequence[int], *, graph: bool) -> tuple[int, ...]:
    """The numbers of sequences or callers in the order in which they are measured.

    Each takes two turns, some seconds apart: a machine with neighbours is not as fast in one second as in the next. Not
    the largest of several numbers of sequences: their prompts take long, and they themselves long enough.
    """
    return (*streams, *(streams if graph or len(streams) == 1 else sorted(streams)[:-1]))


def mean_of(seen: Sequence[Reality]) -> Reality:
    """What equal runs did on the whole: mean times, and of the rates the one of the mean round; the highest peaks."""
    return Reality(
        tuple(map(mean_ms, zip(*(each.stage_ms for each in seen), strict=True))),
        tuple(max(known, default=None) for known in _known(seen)),
        harmonic_mean([each.per_s for each in seen]),
        seen[0].streams,
        tuple(map(mean_ms, zip(*(each.own_ms for each in seen), strict=True))),
    )


def mean_ms(times: Iterable[float]) -> float:
    """The mean of the times of those who had anything to do; 0 where nobody had."""
    known = [ms for ms in times if ms]
    return fmean(known) if known else 0.0


def _known(seen: Sequence[Reality]) -> Iterator[list[int]]:
    for peaks in zip(*(each.peak_bytes for each in seen), strict=True):
        yield [peak for peak in peaks if peak is not None]


def _reality(run: Mapping[str, Any]) -> Reality:
    stages = run["stages"]
    return Reality(
        tuple(float(stage["measured_ms"] or 0.0) for stage in stages),
        tuple(stage["peak_rss_bytes"] for stage in stages),
        float(run["tokens_per_s"] if "tokens_per_s" in run else run["items_per_s"]),
        int(run["streams"]),
        tuple(float(stage["own_ms"] or 0.0) for stage in stages),
    )


def prompt_tokens(depth: int) -> int:
    """Of each stream, so that ``depth`` is the middle of what it decodes."""
    return max(2, depth - TOKENS // 2)


def _bench(manifest: Path, arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "ruvrun", "bench", str(manifest), "--json", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotMeasuredError("staged-not-measured", f"they were not done after {LONGEST_S} s", hint=None) from None
    last = done.stdout.strip().rpartition("\n")[2]
    if (problem := parse_error(last)) is not None:
        raise NotMeasuredError(problem.ref, problem.message, context=problem.context, hint=problem.hint)
    if done.returncode or not last:
        said = done.stderr.strip().splitlines()[-_LAST_WORDS:]
        what = f"ruvrun bench ended: {how_it_ended(done.returncode)}{': ' if said else ''}{said[-1] if said else ''}"
        raise NotMeasuredError("staged-not-measured", what, context=said, hint=None)
    told: dict[str, Any] = json.loads(last)
    return told
