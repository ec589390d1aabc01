"""What a step costs beside the back end's work: in the stage's process, in the head's, and on the way between them.

All of it is measured in a ring of real processes with real weights, since a step that finds the caches full of weights
takes several times what the same instructions take alone. For one sequence and for several:

    round = stage + head + 2 hops
    stage = the back end + what the process does from the end of one step to the begin of the next
    head  = the CPU time of the head's process; where a quota limits it, as much longer as the steps are
    hop   = what is then left of the round: the kernel's way from one process to the other, and waking up

A line through what one and several rows take gives the part per step and the part per row. What a byte costs is seen
between two ends in this process, with a small and a large frame: of one stage alone no activations travel.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np

from ruvrun import frames
from ruvrun.costs import Overhead
from ruvrun.elements import Value
from ruvrun.engine.blocks import MARGIN
from ruvrun.errors import MachineError
from ruvrun.frames import Step
from ruvrun.manifest import LOCAL, Space
from ruvrun.manifest.blocks import BLOCK
from ruvrun.placement import LOOPBACK
from ruvrun.profile.alone import Alone
from ruvrun.profile.clocked import Count
from ruvrun.profile.conditions import Conditions, Tell, silent
from ruvrun.profile.ring import Rounds, prompt_tokens, stage_ring, steps_of, tokens
from ruvrun.profile.steady import spread
from ruvrun.transport import Came, Peer, Transport, Up
from ruvrun.transport.keys import make_keypair
from ruvrun.transport.samehost import SameHost
from ruvrun.transport.zeromq import ZeroMq

ROWS = (1, 4)
ROUNDS = 16
REPEATS = 2
CALLS = 24
QUICKEST = 0.05

_FRAMES = (4 << 10, 256 << 10)
_SENT = 40
_LARGEST = 1 << 20
_ENDS = ("one", "other")
_PATIENCE = 10.0


def measure_overhead(
    alone: Alone,
    conditions: Conditions,
    *,
    network: bool,
    inputs: Mapping[str, Value] | None = None,
    tell: Tell = silent,
) -> tuple[Overhead, Count]:
    """The overhead of this kind of machine; ``source`` is 0.

    Args:
        alone: a stage that is a whole program.
        conditions: threads, cores and company.
        network: whether its links are those between machines.
        inputs: of a graph; a decoder makes its own.

    Returns:
        It, and what the stage's process counted.

    Raises:
        RuvError: the stage cannot run here.
    """
    program, (stage,) = alone.manifest.program, alone.manifest.stage
    decoder = program.kind == "decoder"
    space, rounds = Space(context=1, streams=1), ROUNDS
    if decoder:
        longest = prompt_tokens(program.context) + tokens(ROWS[-1], ROUNDS)
        rounds = max(1, ROUNDS - max(0, longest - program.context))
        space = _room_for(ROWS[-1], min(longest, program.context))
    seen: list[Rounds] = []
    with stage_ring(alone, conditions, space) as (ring, counts):
        for number in range(REPEATS):
            seen += [ring.decode(rows, rounds) for rows in ROWS] if decoder else [ring.call(inputs or {}, CALLS)]
            tell("ring", 1 + number, REPEATS)
    (count,) = counts
    per_byte = byte_ms(network)
    row = Overhead(
        kind=program.kind,
        target=stage.target,
        backend=stage.backend,
        threads=conditions.threads,
        beside=conditions.beside,
        **fit(seen, count, ring.carried * per_byte),
        byte_ms=round(per_byte, 12),
        runtime_bytes=count.bare_bytes,
        source=0,
    )
    return row, count


def _room_for(rows: int, context: int) -> Space:
    """Space for so many sequences at once: where all share a pool, one is let in only while there is more than that."""
    more = MARGIN * (rows - 1)
    return Space(context=context, streams=rows + -(-more // -(-context // BLOCK)))


def fit(seen: Sequence[Rounds], count: Count, carried_ms: float = 0.0) -> dict[str, float]:
    """The times of an ``Overhead`` from rounds of one row, or of one and of several.

    Args:
        carried_ms: what the bytes of a round take at each end; they are accounted for by themselves.
    """
    stage: list[tuple[int, float]] = []
    head: list[tuple[int, float]] = []
    hops: list[float] = []
    for rows in sorted({rounds.rows for rounds in seen}):
        of = [rounds for rounds in seen if rounds.rows == rows]
        steps = steps_of(count, rows)
        if not steps.inside_ms:  # sequences were too short for all of them to decode at once, twice in a row
            continue
        # A round that waits for a core that others use has no longer way: of rounds and steps the quickest count.
        quick, inside = (
            float(np.quantile(times, QUICKEST)) for times in ([ms for r in of for ms in r.ms], steps.inside_ms)
        )
        heads = steps.slowed * statistics.median(ms for rounds in of for ms in rounds.head_ms)
        beside = statistics.median(steps.beside_ms)
        stage.append((rows, beside))
        head.append((rows, heads))
        hops.append(max(0.0, quick - inside - beside - heads) / 2)
    (stage_ms, stage_row_ms), (head_ms, head_row_ms) = line(stage), line(head)
    found = {
        "stage_ms": max(0.0, stage_ms - carried_ms),
        "stage_row_ms": stage_row_ms,
        "head_ms": max(0.0, head_ms - carried_ms),
        "head_row_ms": head_row_ms,
        "hop_ms": statistics.fmean(hops),
    }
    first = min(rounds.rows for rounds in seen)
    noise = spread([ms for rounds in seen if rounds.rows == first for ms in rounds.ms])
    return {name: round(value, 6) for name, value in found.items()} | {"spread": noise}


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """What is there once, and what is there per row; neither is below 0."""
    (rows, ms), (last, most) = points[0], points[-1]
    if rows == last:
        return ms, 0.0
    per_row = min(max(0.0, (most - ms) / (last - rows)), ms / rows)
    return ms - per_row * rows, per_row


def byte_ms(network: bool) -> float:
    """CPU milliseconds per byte that one end of a link takes to send or to receive it."""
    one, other = _two_ends(network)
    try:
        (small, fast), (large, slow) = [(size, _frame_ms(one, other, size)) for size in _FRAMES]
    finally:
        one.close()
        other.close()
    return max(0.0, (slow - fast) / (large - small) / 2)


def _two_ends(network: bool) -> tuple[Transport, Transport]:
    """Two ends of a link in this process; the second has connected to the first."""
    one: Transport
    other: Transport
    if network:
        keys = {name: make_keypair() for name in _ENDS}
        public = {name: pair.public for name, pair in keys.items()}
        one, other = (ZeroMq(keys[name], public, largest=_LARGEST) for name in _ENDS)
    else:
        one, other = (SameHost(name, set(_ENDS), largest=_LARGEST) for name in _ENDS)
    host = LOOPBACK if network else LOCAL
    port = one.bind(host, 0 if network else int.from_bytes(os.urandom(7)))
    other.connect(_ENDS[0], host, port)
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        if any(isinstance(event, Up) for event in other.receive(0.05)):
            return one, other
        one.receive(0.0)
    one.close()
    other.close()
    raise MachineError(
        "loopback-silent", "two ends of a link on this machine do not meet", hint="bring loopback up: ip link set lo up"
    )


def _frame_ms(one: Transport, other: Transport, size: int) -> float:
    """CPU milliseconds, at both ends together, of a step with so many bytes of activations."""
    tensors = {"x": np.zeros((1, size // 4), np.float32)}
    message = Step(1, 0, ())
    took = []
    for _ in range(_SENT):
        start = time.process_time()
        other.send(Peer(_ENDS[0]), frames.encode(message, tensors))
        until = time.monotonic() + _PATIENCE
        while not (came := [event for event in one.receive(0.1) if isinstance(event, Came)]):
            if time.monotonic() > until:
                raise MachineError(
                    "loopback-silent",
                    "a frame did not arrive on this machine",
                    hint="bring loopback up: ip link set lo up",
                )
        _, arrays = frames.decode(came[0].parts)
        arrays["x"].sum()  # whoever reads it takes the pages in
        took.append(1e3 * (time.process_time() - start))
    return statistics.median(took)
