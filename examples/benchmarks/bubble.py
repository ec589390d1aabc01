"""How long stages stand idle though there is something to do: 8 streams of requests that come at random.

    python bubble.py [--pairs N] [--reuse]

The share of the time in which a stage had no step to work on while the head held a sequence that could have gone (its
next token was not awaited) and the window had room; the worse of two stages. Eight users ask, read and think: prompts
of 16 to 256 tokens, answers of 16 to 128, pauses of half a second on average, all drawn. Head and stages note their
times by the clock that all processes of a machine share. The head and stage 0 are on core 0, stage 1 on core 1.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec
from built import build_for
from driven import driven, prompt
from harness import Benchmark, Options, Target, finish, read_options, report, tell, two_cores, versions

from ruvrun import frames, launch
from ruvrun.bench import GREEDY
from ruvrun.engine import Engine, Lost, Request, Token
from ruvrun.engine.engine import Outgoing
from ruvrun.manifest import load_manifest
from ruvrun.pipeline.chunks import chunks_beside
from ruvrun.pipeline.loading import load_worker
from ruvrun.pipeline.meter import Meter
from ruvrun.pipeline.sockets import open_sockets
from ruvrun.pipeline.worker import Worker
from ruvrun.placement import Placement, place
from ruvrun.stage import Stage
from ruvrun.supervise import Process
from ruvrun.supervise.child import end_with_parent

BENCHMARK = Benchmark("bubble", "share", Target(at_most=0.05))
STREAMS, CONTEXT = 8, 512
PROMPTS, ANSWERS, PAUSE = (16, 256), (16, 128), 0.5
SETTLING, SECONDS = 3.0, 30.0
Span = tuple[float, float]


class Noting(Meter):
    """A stage's meter that keeps when each step began and ended."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        super().__init__(time.monotonic)

    def done(self, began: tuple[float, float]) -> None:
        super().done(began)
        self.spans.append((began[0], time.monotonic()))


class Watched(Engine):
    """An engine that keeps from when to when it held a sequence that could have gone while the window had room."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.held: list[Span] = []
        self._since: float | None = None

    def step(self) -> Outgoing | None:
        outgoing = super().step()
        if outgoing is None:
            self._look()
        return outgoing

    def receive(self, message: frames.Sampled) -> list[Token]:
        tokens = super().receive(message)
        self._look()
        return tokens

    def _look(self) -> None:
        holds = len(self._flights) < self.window and any(not each.due for each in self._roster.running.values())
        now = time.monotonic()
        if holds and self._since is None:
            self._since = now
        elif not holds and self._since is not None:
            self.held.append((self._since, now))
            self._since = None


class User(threading.Thread):
    """Asks, waits for the whole answer, thinks, and asks again until the end."""

    def __init__(self, driver: Any, number: int, until: float) -> None:
        super().__init__()
        self._driver, self._draws, self._until = driver, random.Random(number), until
        self.failed = ""

    def run(self) -> None:
        draws = self._draws
        while (left := self._until - time.monotonic()) > 0:
            time.sleep(min(left, draws.expovariate(1 / PAUSE)))
            over = threading.Event()

            def hear(event: Token | Lost, over: threading.Event = over) -> None:
                if isinstance(event, Lost):
                    self.failed = event.why
                if isinstance(event, Lost) or event.finish:
                    over.set()

            text = prompt(draws, draws.randint(*PROMPTS))
            self._driver.submit(
                Request(self._driver.next_id(), text, draws.randint(*ANSWERS), GREEDY, frozenset()), hear
            )
            over.wait()


def stage(path: str, node: str, endpoints: str, context: int, file: str) -> None:
    """A stage's process, as ``ruvrun serve`` has it, that writes when it worked as it ends."""
    end_with_parent()
    placement = launch.with_endpoints(place(Path(path), node), endpoints)
    manifest, directory = placement.manifest, placement.bundles[node]
    os.sched_setaffinity(0, manifest.node_named(node).cpus)
    where = manifest.place_of(node)
    assert where is not None
    noting = Noting()

    def load() -> Worker:
        worker = load_worker(directory, manifest, where[1].stage, context=context, streams=STREAMS, threads=1)
        worker.meter = noting
        return worker

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        partial = Path(file).with_suffix(".partial")
        partial.write_text(json.dumps(noting.spans))
        partial.replace(file)
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    transport = open_sockets(manifest, node, directory, placement.endpoints)
    Stage(manifest, node, placement.endpoints, transport, load, lambda _line: None).run()


def overlap(spans: Sequence[Span], others: Sequence[Span]) -> float:
    """Seconds that are in both; each list is in order and has no two that touch."""
    total, at = 0.0, 0
    for begin, end in spans:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        for other in others[at:]:
            if other[0] >= end:
                break
            total += min(end, other[1]) - max(begin, other[0])
    return total


def idle(busy: Sequence[Span], window: Span) -> list[Span]:
    """What of the window is between the spans."""
    edges = [window[0], *(edge for span in busy for edge in span), window[1]]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [
        (max(begin, window[0]), min(end, window[1])) for begin, end in gaps if begin < window[1] and end > window[0]
    ]


def run(manifest: Path) -> dict[str, Any]:
    """Some seconds of the eight; of each stage its shares of the time."""
    loaded = load_manifest(manifest)
    nodes = [placed.node for placed in loaded.pipeline[0].stages]
    expected = [loaded.plan.of(node) for node in nodes]
    engine = Watched(stages=len(nodes), context=CONTEXT, streams=STREAMS, beside=chunks_beside(expected))
    with tempfile.TemporaryDirectory() as folder:

        def start(placement: Placement, _settings: launch.Settings) -> list[Process]:
            told = msgspec.json.encode(placement.endpoints).decode()
            command = [sys.executable, __file__, "stage", str(manifest)]
            env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            return [Process(node, [*command, node, told, str(CONTEXT), f"{folder}/{node}.json"], env) for node in nodes]

        with driven(manifest, engine, STREAMS, start) as driver:
            begin = time.monotonic() + SETTLING
            users = [User(driver, number, begin + SECONDS) for number in range(STREAMS)]
            for user in users:
                user.start()
            for user in users:
                user.join()
        if lost := [user.failed for user in users if user.failed]:
            raise SystemExit(f"error: {lost[0]}")
        window = (begin, begin + SECONDS)
        shares = []
        for node in nodes:
            gaps = idle(json.loads(Path(folder, f"{node}.json").read_text()), window)
            shares.append(
                {
                    "node": node,
                    "idle": sum(last - first for first, last in gaps) / SECONDS,
                    "bubble": overlap(gaps, engine.held) / SECONDS,
                }
            )
    return {"stages": shares, "value": max(share["bubble"] for share in shares)}


def main() -> int:
    options = read_options(__doc__ or "", Options())
    cpus = two_cores()
    manifest = build_for("onnxruntime", cpus, STREAMS, reuse=options.reuse)
    runs = []
    for number in range(1, options.pairs + 1):
        runs.append(run(manifest))
        told = ", ".join(
            f"{each['node']} {each['bubble']:.1%} of {each['idle']:.1%} idle" for each in runs[-1]["stages"]
        )
        tell(f"run {number} of {options.pairs}: {told}")
    values = [each["value"] for each in runs]
    details = {
        "what": "share of the time a stage is idle while the head holds what could go and the window has room",
        "seconds": SECONDS,
        "cpus": cpus,
    }
    return finish(
        report(BENCHMARK, statistics.median(values), runs=runs, spread=values, details=details, versions=versions())
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["stage"]:
        path, node, endpoints, context, file = sys.argv[2:]
        stage(path, node, endpoints, int(context), file)
    sys.exit(main())
