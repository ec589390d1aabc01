"""What users of one served model notice of each other, on two stages on two cores.

    python users.py newcomer      time to first token of a prompt of 256 tokens while 8 others decode, and on an idle
                                  server; and the longest gap between two tokens that those 8 see, beside a usual one;
                                  on each back end
    python users.py prefix        time to first token of a second prompt that shares 1,024 tokens with a first one and
                                  has 32 of its own, beside that of the first

Times are those of a client of HTTP. The head and stage 0 share core 0; stage 1 has core 1.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from built import build, build_for
from harness import (
    Benchmark,
    Options,
    Target,
    finish,
    measure_pairs,
    ratio_report,
    read_options,
    tell,
    two_cores,
    versions,
)

BENCHMARKS = {
    "newcomer": Benchmark("newcomer", "ratio", Target(at_most=2.5)),
    "prefix": Benchmark("prefix", "ratio", Target(at_most=0.15)),
}
COMPANY, PROMPT, LONGEST_GAP = 8, 256, 3.0
SHARED, OWN = 1024, 32
CONTEXT, STREAMS = 1600, COMPANY + 1
WAIT = 120.0
_PYTHON = Path(sys.executable)


class Server:
    """A served model as a client sees it; prompts are random, and each is another one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._random = random.Random(0)

    def prompt(self, tokens: int) -> list[int]:
        return [self._random.randrange(1000, 40000) for _ in range(tokens)]

    def moments(self, prompt: list[int], tokens: int) -> Iterator[float]:
        """When the request was sent, and when each piece of its text came."""
        # Nothing but the number of tokens ends the text.
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "logit_bias": {"0": -100, "2": -100},
        }
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode())
        yield time.perf_counter()
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    yield time.perf_counter()

    def first(self, prompt: list[int]) -> float:
        """Milliseconds to the first token."""
        sent, *came = self.moments(prompt, 2)
        return 1e3 * (came[0] - sent)


@contextlib.contextmanager
def served(manifest: Path) -> Iterator[Server]:
    """The model of a build, until the end."""
    space = ["--context", str(CONTEXT), "--streams", str(STREAMS)]
    argv = [str(_PYTHON.parent / "ruvrun"), "serve", str(manifest), "--port", "0", *space]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = next((line.split()[1] for line in process.stdout if line.startswith("ready:")), None)
        if url is None:
            raise SystemExit("error: the model is not served; try `ruvrun serve` yourself")
        server = Server(url)
        server.first(server.prompt(16))
        yield server
    finally:
        process.terminate()
        process.wait(30)


class Company:
    """Eight who decode until they are told to stop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self.seen: list[list[float]] = [[] for _ in range(COMPANY)]
        self._threads = [threading.Thread(target=self._decode, args=(seen,)) for seen in self.seen]

    def __enter__(self) -> Company:
        for thread in self._threads:
            thread.start()
        until = time.monotonic() + WAIT
        while not all(len(seen) > 20 for seen in self.seen):
            if time.monotonic() > until or not all(thread.is_alive() for thread in self._threads):
                self._over.set()
                raise SystemExit(f"error: the company does not decode: {[len(seen) for seen in self.seen]} tokens came")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(WAIT)
            if thread.is_alive():
                raise SystemExit(f"error: one of the company still waits after {WAIT:.0f} s")

    def gaps(self, start: float, end: float) -> list[float]:
        """Milliseconds between neighbouring tokens of the same text, of those that came in this time."""
        pairs = itertools.chain.from_iterable(itertools.pairwise(list(seen)) for seen in self.seen)
        return [1e3 * (later - earlier) for earlier, later in pairs if start <= later <= end]

    def _decode(self, seen: list[float]) -> None:
        for moment in itertools.islice(self._server.moments(self._server.prompt(16), CONTEXT - 32), 1, None):
            seen.append(moment)
            if self._over.is_set():
                return


def newcomer(server: Server, pairs: int) -> tuple[Any, dict[str, Any], bool]:
    """Pairs of times to first token in company and alone; the gaps; whether those are kept."""
    worst: list[float] = []
    noise: list[float] = []

    def in_company() -> float:
        with Company(server) as company:
            start = time.perf_counter()
            time.sleep(1.0)
            before = time.perf_counter()
            taken = server.first(server.prompt(PROMPT))
            alone = company.gaps(start, before)
            usual = statistics.median(alone)
            worst.append(max(company.gaps(before, before + taken / 1e3)) / usual)
            noise.append(max(alone) / usual)
        tell(f"longest gap / usual gap: {worst[-1]:.2f}; in the second before the newcomer came: {noise[-1]:.2f}")
        return taken

    found = measure_pairs(in_company, lambda: server.first(server.prompt(PROMPT)), pairs, unit="ms")
    gap = statistics.median(worst)
    details = {"what": "A: 8 others decode; B: nobody does; ms to first token", "gap": gap, "gaps": worst}
    return found, {**details, "gap_at_most": LONGEST_GAP, "gaps_before": noise}, gap <= LONGEST_GAP


def prefix(server: Server, pairs: int) -> tuple[Any, dict[str, Any], bool]:
    """Pairs of times to first token of the second and of the first of two prompts that begin alike."""
    firsts: list[float] = []

    def second() -> float:
        shared = server.prompt(SHARED)
        firsts.append(server.first([*shared, *server.prompt(OWN)]))
        return server.first([*shared, *server.prompt(OWN)])

    found = measure_pairs(second, lambda: firsts[-1], pairs, unit="ms")
    return found, {"what": "A: the second prompt; B: the first; ms to first token", "shared": SHARED, "own": OWN}, True


def on_each_back_end(options: Options, cpus: tuple[int, int]) -> tuple[Any, dict[str, Any], bool]:
    """Newcomers on ONNX Runtime and on OpenVINO: pairs and details of the worse, and whether both are kept."""
    found = []
    for backend in ("onnxruntime", "openvino"):
        tell(f"on {backend}:")
        with served(build_for(backend, cpus, STREAMS, reuse=options.reuse)) as server:
            pairs, details, kept = newcomer(server, options.pairs)
        ratio = statistics.median(pairs.ratios)
        found.append((ratio, pairs, {"backend": backend, "ratio": ratio, **details}, kept))
    _, pairs, worst, _ = max(found, key=lambda each: each[0])
    others = [details for _, _, details, _ in found if details is not worst]
    return pairs, {**worst, "others": others}, all(kept for *_, kept in found)


def main(name: str) -> int:
    options, cpus = read_options(__doc__ or "", arguments=sys.argv[2:]), two_cores()
    packages: list[str] = []
    if name == "newcomer":
        pairs, details, kept = on_each_back_end(options, cpus)
        packages.append("openvino")
    else:
        with served(build("two-stages", cpus, reuse=options.reuse)) as server:
            pairs, details, kept = prefix(server, options.pairs)
    result = ratio_report(BENCHMARKS[name], pairs, details=details, versions=versions(*packages))
    return finish({**result, "ok": result["ok"] and kept})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
