"""A whole pipeline in this process: the real engine and the real workers, joined by nothing but calls.

``ruvcompile verify`` and the tests run it. What it computes is what the ring of processes computes, since
everything but the links is the same code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ruvrun import frames
from ruvrun.bundle import StageSpec, require_bundles, verify_bundle
from ruvrun.elements import Value, copied
from ruvrun.engine import Engine, Request
from ruvrun.executors import load_executor
from ruvrun.manifest import load_manifest
from ruvrun.pipeline.calls import refusal
from ruvrun.pipeline.worker import Result, Worker


class LocalPipeline:
    """All stages of one pipeline, in order.

    Args:
        workers: one per stage.
        context: positions per slot, for decoders.
        streams: sequences of so many positions, for decoders; where all stages have their space in blocks, more of
            them share it.
        chunk: tokens of a prompt per step.
        reuse: as for ``Engine``.
    """

    def __init__(
        self, workers: Sequence[Worker], context: int = 0, streams: int = 0, chunk: int = 256, reuse: int = 0
    ) -> None:
        self.workers = tuple(workers)
        self.context = context
        self.streams = streams
        self.chunk = chunk
        self.reuse = reuse
        self._epoch = 0

    def generate(self, requests: Iterable[Request]) -> dict[int, list[int]]:
        """Run all requests together to their ends; the tokens of each, an eos token included, by request id.

        Every call is a new epoch, so that one that failed leaves nothing behind.

        Raises:
            InputError: a request that cannot be served; none was run.
        """
        self._epoch += 1
        granted = [worker.granted for worker in self.workers]
        pooled = all(each.pool for each in granted)
        engine = Engine(
            stages=len(self.workers),
            context=self.context,
            streams=min(each.sequences for each in granted) if pooled else self.streams,
            chunk=self.chunk,
            epoch=self._epoch,
            reuse=self.reuse,
            pool=min(each.pool for each in granted if each.pool) if pooled else None,
        )
        answers: dict[int, list[int]] = {}
        for request in requests:
            engine.add(request)
            answers[request.id] = []
        ring: deque[frames.Sampled] = deque()
        while not engine.idle:
            while outgoing := engine.step():
                if result := self._around(*outgoing):
                    assert isinstance(result[0], frames.Sampled)
                    ring.append(result[0])
            if ring:
                for token in engine.receive(ring.popleft()):
                    answers[token.id].append(token.token)
        return answers

    def run(self, tensors: Mapping[str, Value]) -> dict[str, Value]:
        """Run a graph once: the program's inputs to its outputs, by name."""
        self._epoch += 1
        result = self._around(frames.Run(self._epoch, 0, 0), dict(tensors))
        assert result is not None
        message, outputs = result
        if isinstance(message, frames.Run) and message.refused:
            raise refusal(message)
        return {name: copied(value) for name, value in outputs.items()}

    def _around(self, message: frames.Message, tensors: dict[str, Value]) -> Result | None:
        """Send one message through all stages."""
        result: Result | None = (message, tensors)
        for worker in self.workers:
            if result is None:
                return None
            result = worker.handle(*result)
        return result


def open_local(
    manifest_path: Path, *, context: int | None = None, streams: int | None = None, threads: int = 1
) -> LocalPipeline:
    """Check and load all stages of a manifest's first pipeline, from the bundles beside it.

    Args:
        manifest_path: ``DIR/manifest.toml`` of a build.
        context: positions per sequence; as planned when None.
        streams: sequences at a time; as planned when None.
        threads: of each stage; 0 is all cores.

    Raises:
        InputError: the manifest or a bundle is missing or cannot be read.
        IntegrityError: a bundle is not what the manifest says.
    """
    manifest = load_manifest(manifest_path)
    placed = manifest.pipeline[0].stages
    bundles = require_bundles(manifest_path, manifest, [entry.node for entry in placed])
    space = manifest.space
    context = context or (space.context if space else manifest.program.context)
    streams = streams or (space.streams if space else max(4, 2 * len(placed)))
    checked = [(bundles[entry.node], verify_bundle(bundles[entry.node], manifest, entry.stage)) for entry in placed]
    return join_local(checked, context=context, streams=streams, threads=threads)


def join_local(
    stages: Sequence[tuple[Path, StageSpec]], *, context: int, streams: int, threads: int = 1
) -> LocalPipeline:
    """Load stages that have been checked as one pipeline.

    Args:
        stages: directory and spec of each, in order.
        context: positions per sequence; 0 for graphs.
        streams: sequences at a time; 0 for graphs.
        threads: of each stage; 0 is all cores.
    """
    workers = [
        Worker(load_executor(directory, spec, context=context, slots=streams, threads=threads), spec)
        for directory, spec in stages
    ]
    return LocalPipeline(workers, context, streams)
