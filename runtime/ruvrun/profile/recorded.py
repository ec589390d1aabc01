"""A decoder's stage that is run with its back end's own profiler on: what each kernel of each run took.

ONNX Runtime writes all runs into a file, which is read when the session ends. OpenVINO keeps the counters of the last
run (``PERF_COUNT``), which are read after it. Both name kernels after nodes of the stage's graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from ruvrun.backends import device_for
from ruvrun.bundle import StageSpec
from ruvrun.executors import DecoderExecutor, back_end
from ruvrun.executors.pages import use_huge_pages
from ruvrun.profile.places import Ground
from ruvrun.profile.trace import Kernel, read_trace
from ruvrun.scratch import scratch_folder

Run = dict[Kernel, float]
"""Microseconds of each kernel of one run."""


class Measured(DecoderExecutor, Protocol):
    """An executor whose key/value space can be filled without sequences."""

    def occupy(self, slots: int, depth: int) -> None:
        """Fill the first ``depth`` positions of the first ``slots`` with something."""


@dataclass(frozen=True)
class Recording:
    """A stage that is recorded.

    Attributes:
        executor: the stage, its key/value space not filled.
        ran: to be called after every run.
        runs: all runs so far, in order; nothing can be run any more.
    """

    executor: Measured
    ran: Callable[[], None]
    runs: Callable[[], list[Run]]


def counts(spec: StageSpec) -> bool:
    """Whether the back end can keep the time of every kernel at next to no cost, 1 % with OpenVINO."""
    return bool(device_for(spec.backend))


def counted(executor: Any) -> Run:
    """What the last run took, of a stage that counts (``open_counted``)."""
    run: Run = defaultdict(float)
    for name, kind, microseconds in executor.kernels():
        run[name, kind] += microseconds
    return dict(run)


@contextmanager
def recorded(directory: Path, spec: StageSpec, where: Ground, threads: int) -> Iterator[Recording]:
    """Open the stage in ``directory`` with the profiler on."""
    if counts(spec):
        decoder, runs = open_counted(directory, spec, where, threads), list[Run]()
        yield Recording(decoder, lambda: runs.append(counted(decoder)), lambda: runs)
        return
    with scratch_folder("ruvrun") as folder:
        yield _onnxruntime(directory, spec, where, threads, folder / "trace")


def _onnxruntime(directory: Path, spec: StageSpec, where: Ground, threads: int, profile: Path) -> Recording:
    from ruvrun.executors.onnxruntime import OnnxDecoder
    from ruvrun.executors.sessions import open_session
    from ruvrun.executors.stateful import StatefulDecoder

    session = open_session(directory / spec.model, threads=threads, fused=not spec.exported, profile=profile)
    kind = StatefulDecoder if spec.exported else OnnxDecoder
    executor = kind(session, spec, context=where.context, slots=where.slots)
    return Recording(executor, lambda: None, lambda: read_trace(Path(session.end_profiling())))


def open_counted(directory: Path, spec: StageSpec, where: Ground, threads: int) -> Measured:
    """Load a stage that keeps the time of every kernel, ready to be run."""
    decoder = back_end(spec).open_decoder(
        directory, spec, context=where.context, slots=where.slots, threads=threads, profile=True
    )
    decoder.settle()
    use_huge_pages()
    return cast(Measured, decoder)
