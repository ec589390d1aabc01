"""One stage on one core, one stream, against onnxruntime-genai with the same int4 weights: decode tokens/s.

    python parity.py PEER_PYTHON

Both sides decode the same number of tokens greedily after the same prompt, with one thread on the same core, and
neither loading nor the prompt is counted. Ours is ``ruvrun bench``: head, load, link and stage. The peer is its
library called from a loop, in a process that waits while ours is measured. Before anything is measured, both must
give the same tokens.

The peer's model is what its own builder makes by default. Its option ``fuse_mlp_gate_up`` makes one projection of two,
as our compiler always does; the ratio to that is in the details.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from built import bench, build, busy
from harness import CACHE, Benchmark, Target, finish, measure_pairs, ratio_report, read_options, two_cores, versions
from peer_model import write_peer_model

from ruvrun.bench import GREEDY, prompts
from ruvrun.engine import Request
from ruvrun.manifest import Manifest, load_manifest
from ruvrun.pipeline.local import open_local

BENCHMARK = Benchmark("parity", "ratio", Target(at_least=1.0))
# A plain sentence in the model's vocabulary, and an answer long enough to tell weights apart.
SENTENCE = (504, 3575, 282, 4649, 314)
COMPARED = 32


class Peer:
    """A running peer: lines of JSON in and out."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._in, self._out = stdin, stdout
        self.versions: dict[str, str] = self._read()["versions"]

    def answer(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        print(json.dumps({"prompt": [*prompt], "tokens": tokens}), file=self._in, flush=True)
        found = self._read()
        if len(found["tokens"]) != tokens:
            raise SystemExit(f"error: the peer gave {len(found['tokens'])} tokens of {tokens}")
        return found

    def _read(self) -> dict[str, Any]:
        line = self._out.readline()
        if not line:
            raise SystemExit("error: the peer ended; what it said stands above")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def running_peer(python: str, model: Path, cpu: int, script: str = "peer.py") -> Iterator[Peer]:
    """A peer process, ended at the end."""
    command = [python, str(Path(__file__).with_name(script)), str(model), str(cpu)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield Peer(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait()


def our_tokens(manifest: Path) -> list[int]:
    """Our greedy answer to ``SENTENCE``, in this process."""
    request = Request(0, SENTENCE, COMPARED, GREEDY, frozenset())
    return open_local(manifest, threads=1).generate([request])[0]


def require_same_tokens(ours: Sequence[int], theirs: Sequence[int]) -> None:
    """Refuse to measure two different models against each other."""
    if [*ours] != [*theirs]:
        raise SystemExit(f"error: the two sides do not run the same model\n  ours:   {ours}\n  theirs: {theirs}")


def main(python: str) -> int:
    options = read_options(__doc__ or "", arguments=sys.argv[2:])
    cpu, _ = two_cores()
    path = build("one-stage", [cpu], reuse=options.reuse)
    manifest: Manifest = load_manifest(path)
    bundle, context = path.parent / "bundles" / "core-0", manifest.program.context
    models = {fused: CACHE / ("peer-model-fused" if fused else "peer-model") for fused in (False, True)}
    for fused, directory in models.items():
        write_peer_model(bundle, manifest, directory, context=context, fused=fused)
    (prompt,) = prompts(manifest, 1, options.prompt_tokens)
    last: dict[str, Any] = {}
    against_fused: list[float] = []

    def ours() -> float:
        last.update(bench(path, options, streams=1))
        return float(last["tokens_per_s"])

    def rate(fused: bool) -> float:
        # A process of its own each time, as ours has: where its pages lie in memory moves it by some percent.
        with running_peer(python, models[fused], cpu) as peer:
            peer.answer(prompt, min(4, options.tokens))
            return (options.tokens - 1) / float(peer.answer(prompt, options.tokens)["seconds"])

    def theirs() -> float:
        measured = rate(False)
        against_fused.append(last["tokens_per_s"] / rate(True))
        return measured

    answer = our_tokens(path)
    for directory in models.values():
        with running_peer(python, directory, cpu) as peer:
            require_same_tokens(answer, peer.answer(SENTENCE, COMPARED)["tokens"])
    pairs = measure_pairs(ours, theirs, options.pairs)
    details = {
        "what": "A: ruvrun bench, one stage; B: onnxruntime-genai; one stream, one thread, one core; tokens/s",
        "ratio_to_peer_with_fuse_mlp_gate_up": statistics.median(against_fused),
        "cpu": cpu,
        "prompt_tokens": options.prompt_tokens,
        "tokens": options.tokens,
        "same_tokens": COMPARED,
        "last_a": {"bubble": last["bubble"], "stages": busy(last)},
    }
    used = versions() | {f"peer {name}": version for name, version in peer.versions.items()}
    return finish(ratio_report(BENCHMARK, pairs, details=details, versions=used))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
