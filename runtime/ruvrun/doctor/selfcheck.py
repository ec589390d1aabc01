"""The golden check before anything serves: whether this machine computes what the build machine computed.

It loads each stage as `serve` would, so that what had to be compiled for it is there when it starts; with the space
of one stream where there is no memory for all. Where a running service leaves too little even for that, the check is
not lost: a stage that starts repeats it before it joins.
"""

from __future__ import annotations

from collections.abc import Iterator

from ruvrun import machine
from ruvrun.amounts import show_bytes
from ruvrun.bundle import HEAD
from ruvrun.doctor.finding import Finding, failed, failure, warning, well
from ruvrun.errors import RuvError
from ruvrun.manifest import Space
from ruvrun.needs import needs
from ruvrun.pipeline.loading import load_worker
from ruvrun.placement import Placement

_WHY = "a stage that computes something else gives wrong answers, and nobody sees it"


def selfcheck(placement: Placement, asked: Space) -> Iterator[Finding]:
    """Load what runs here with the space that is asked for, compare, and let it go again."""
    for name in placement.stages:
        check = f"self-check {name}"
        wanted = {
            streams: needs(placement.manifest, [name], context=asked.context, streams=streams)[0].total
            for streams in (asked.streams, 1)
        }
        available = machine.memory_available()
        streams = next((each for each, need in wanted.items() if need <= available), 0)
        if not streams:
            takes, free = show_bytes(wanted[1]), show_bytes(available)
            seen = f"left for the start: it takes {takes}, and {free} are free beside what runs"
            hint = "nothing: it is made when this release starts; to make it now, end what takes the memory"
            yield warning(check, seen, _WHY, hint)
            continue
        placed = placement.manifest.place_of(name)
        assert placed is not None, f"{name} holds no stage"
        threads = placement.manifest.node_named(name).threads
        try:
            load_worker(
                placement.bundles[name],
                placement.manifest,
                placed[1].stage,
                context=asked.context,
                streams=streams,
                threads=threads,
            )
        except RuvError as error:
            yield failed(check, error, _WHY)
        else:
            yield well(check, "it computes what the build machine computed")
    if placement.head and placement.manifest.program.kind == "decoder":
        yield _tokenizer(placement)


def _tokenizer(placement: Placement) -> Finding:
    check, why = "self-check of the head", "without its tokenizer the head can read no prompt and write no answer"
    try:
        from ruvrun.tokenizer import Tokenizer

        Tokenizer(placement.head_bundle / HEAD)
    except ImportError as error:
        return failure(check, str(error), why, "pip install 'ruvrun[head]'", 3)
    except RuvError as error:
        return failed(check, error, why)
    return well(check, "its tokenizer and chat template can be read")
