"""From a bundle on disk to a worker that may join: checked, loaded, and seen to compute what it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ruvrun
from ruvrun.bundle import StageSpec, verify_bundle
from ruvrun.errors import InputError, IntegrityError
from ruvrun.executors import ShelvedExecutor, load_executor
from ruvrun.manifest import Manifest
from ruvrun.pipeline.selfcheck import check_golden
from ruvrun.pipeline.sockets import largest_part
from ruvrun.pipeline.worker import Worker
from ruvrun.session import too_old


def load_worker(
    directory: Path,
    manifest: Manifest,
    stage: int,
    *,
    context: int,
    streams: int,
    threads: int,
    say: Callable[[str], None] = lambda _: None,
) -> Worker:
    """Check every byte of a bundle, load it, and repeat its golden check.

    Args:
        say: gets what the executor has to say of how it was loaded, a line each.

    Raises:
        IntegrityError: it is not what it says it is, or does not compute here what it should.
        InputError: it cannot be loaded here.
    """
    spec = verify_bundle(directory, manifest, stage)
    _require(spec)
    executor = load_executor(directory, spec, context=context, slots=streams, threads=threads)
    shelf = executor.shelf if isinstance(executor, ShelvedExecutor) else None
    for note in shelf.notes if shelf else ():
        say(note)
    try:
        check_golden(directory, spec, executor)
    except IntegrityError:
        if not (shelf and shelf.imported):
            raise
        say("ignored: compiled graphs, which do not compute what they should; compiling anew")
        shelf.drop()
        return load_worker(directory, manifest, stage, context=context, streams=streams, threads=threads, say=say)
    if shelf:
        shelf.keep()
    return Worker(executor, spec, largest=largest_part(manifest))


def _require(spec: StageSpec) -> None:
    needed = spec.requires.get("ruvrun", "")
    if too_old(ruvrun.__version__, needed):
        raise InputError(
            "ruvrun-too-old",
            f"this bundle requires ruvrun {needed}, this is {ruvrun.__version__}",
            hint="pip install --upgrade ruvrun",
        )
