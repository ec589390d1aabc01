"""The golden check before anything serves: whether this machine computes what the build machine computed.

It loads each stage as `serve` would, so that what had to be compiled for it is there when it starts; with the space
of one stream where there is no memory for all. Where a running service leaves too little even for that, the check is
not lost: a stage that starts repeats it before it joins.
"""

from __future__ import annotations

from collections.abc import Iterator

from ruvrun import machine
from ruvrun.bundle import HEAD
from ruvrun.doctor.finding import Finding
from ruvrun.errors import RuvError
from ruvrun.machine import size
from ruvrun.pipeline.loading import load_worker
from ruvrun.placement import Placement, space


def selfcheck(placement: Placement) -> Iterator[Finding]:
    """Load what runs here, compare, and let it go again."""
    planned = space(placement.manifest, None, None)
    for name in placement.stages:
        check = f"self-check {name}"
        wanted = {
            streams: machine.needs(placement.manifest, [name], context=planned.context, streams=streams)[0].total
            for streams in (planned.streams, 1)
        }
        available = machine.memory_available()
        streams = next((each for each, need in wanted.items() if need <= available), 0)
        if not streams:
            seen = f"left for the start: it takes {size(wanted[1])}, and {size(available)} are free beside what runs"
            yield Finding(check, "warn", seen)
            continue
        placed = placement.manifest.place_of(name)
        assert placed is not None, f"{name} holds no stage"
        threads = placement.manifest.node_named(name).threads
        try:
            load_worker(
                placement.bundles[name],
                placement.manifest,
                placed[1].stage,
                context=planned.context,
                streams=streams,
                threads=threads,
            )
        except RuvError as error:
            yield Finding(check, "fail", "; ".join([error.message, *error.context]), error.hint, error.exit_code)
        else:
            yield Finding(check, "ok", "it computes what the build machine computed")
    if placement.head and placement.manifest.program.kind == "decoder":
        yield _tokenizer(placement)


def _tokenizer(placement: Placement) -> Finding:
    try:
        from ruvrun.tokenizer import Tokenizer

        Tokenizer(placement.head_bundle / HEAD)
    except ImportError as error:
        return Finding("self-check of the head", "fail", str(error), "pip install 'ruvrun[head]'", 3)
    except RuvError as error:
        return Finding("self-check of the head", "fail", error.message, error.hint, error.exit_code)
    return Finding("self-check of the head", "ok", "its tokenizer and chat template can be read")
