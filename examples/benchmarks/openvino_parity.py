"""One stage on OpenVINO, one core, one stream, against OpenVINO GenAI with the same int4 weights: decode tokens/s.

    python openvino_parity.py PEER_PYTHON

Both sides run OpenVINO's paged attention with numbers of 32 bits and keys and values of eight, decode the same number
of tokens greedily after the same prompt, with one thread on the same core, and neither loading nor the prompt is
counted. Ours is ``ruvrun bench``: head, load, link and stage. The peer is its library called from a process of its own.
Before anything is measured, both must give the same tokens.

Then each side is started anew with a prompt of five tokens, and the time is taken from the start of the process to its
first token. That ratio is in the details, and must be at most 0.9.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from built import MODEL, bench, build, busy
from harness import CACHE, Benchmark, Target, finish, measure_pairs, ratio_report, read_options, two_cores, versions
from openvino_peer_model import write_peer_model
from parity import COMPARED, SENTENCE, require_same_tokens, running_peer

from ruvrun.bench import prompts
from ruvrun.bundle import load_spec
from ruvrun.manifest import load_manifest

BENCHMARK = Benchmark("openvino-parity", "ratio", Target(at_least=1.0))
START = Target(at_most=0.9)
PEER = "openvino_peer.py"
FIRST = Path(__file__).with_name("openvino_first.py")


def asked(prompt: Sequence[int], tokens: int) -> str:
    return json.dumps({"prompt": [*prompt], "tokens": tokens}) + "\n"


def start(command: Sequence[str]) -> tuple[float, float]:
    """Seconds from the start of a process to its first token, and the most bytes it held, in MiB."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(asked(SENTENCE, 1))
        process.stdin.flush()
        for line in process.stdout:
            if "tokens" in json.loads(line):
                seconds = time.perf_counter() - began
                peak = Path(f"/proc/{process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
                process.stdin.close()
                return seconds, int(peak) / 1024
    raise SystemExit(f"error: {command[1]} ended without a token; what it said stands above")


def main(python: str) -> int:
    options = read_options(__doc__ or "", arguments=sys.argv[2:])
    cpu, _ = two_cores()
    path = build("openvino-u8", [cpu], reuse=options.reuse, backends=["openvino"], more=["--kv-type", "u8"])
    manifest = load_manifest(path)
    spec = load_spec(path.parent / "bundles" / "core-0")
    models = {stacked: CACHE / f"openvino-peer-model{'-stacked' if stacked else ''}" for stacked in (False, True)}
    for stacked, directory in models.items():
        write_peer_model(MODEL, spec, directory, context=options.prompt_tokens + options.tokens, stacked=stacked)
    (prompt,) = prompts(manifest, 1, options.prompt_tokens)
    last: dict[str, Any] = {}
    against_stacked: list[float] = []

    def ours() -> float:
        last.update(bench(path, options, streams=1))
        return float(last["tokens_per_s"])

    def rate(stacked: bool) -> float:
        with running_peer(python, models[stacked], cpu, PEER) as peer:
            peer.answer(prompt, min(4, options.tokens))
            return (options.tokens - 1) / float(peer.answer(prompt, options.tokens)["seconds"])

    def theirs() -> float:
        measured = rate(False)
        against_stacked.append(last["tokens_per_s"] / rate(True))
        return measured

    def first(command: Sequence[str], name: str) -> float:
        seconds, peaks[name] = start(command)
        return seconds

    answer = _first_tokens(path, cpu)
    for directory in models.values():
        with running_peer(python, directory, cpu, PEER) as peer:
            require_same_tokens(answer, peer.answer(SENTENCE, COMPARED)["tokens"])
    pairs = measure_pairs(ours, theirs, options.pairs)
    peaks: dict[str, float] = {}
    there = [python, str(FIRST.with_name(PEER)), str(models[False]), str(cpu)]
    here = [sys.executable, str(FIRST), str(path), str(cpu)]
    starts = measure_pairs(lambda: first(here, "a"), lambda: first(there, "b"), options.pairs, unit="s to first token")
    ratio = statistics.median(starts.ratios)
    details = {
        "what": "A: ruvrun bench, one stage; B: openvino_genai's paged attention; one stream, one thread, one core",
        "ratio_to_peer_with_stacked_products": statistics.median(against_stacked),
        "start": {"ratio": ratio, **START.as_json(), "a": starts.a, "b": starts.b, "peak_mib": peaks},
        "cpu": cpu,
        "prompt_tokens": options.prompt_tokens,
        "tokens": options.tokens,
        "same_tokens": COMPARED,
        "last_a": {"bubble": last["bubble"], "stages": busy(last)},
    }
    used = versions("openvino") | {f"peer {name}": version for name, version in peer.versions.items()}
    result = ratio_report(BENCHMARK, pairs, details=details, versions=used)
    return finish(result | {"ok": result["ok"] and START.met(ratio)})


def _first_tokens(manifest: Path, cpu: int) -> list[int]:
    """Our greedy answer to ``SENTENCE``."""
    command = [sys.executable, str(FIRST), str(manifest), str(cpu)]
    told = subprocess.run(command, input=asked(SENTENCE, COMPARED), capture_output=True, text=True, check=True)
    tokens: list[int] = json.loads(told.stdout)["tokens"]
    return tokens


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
