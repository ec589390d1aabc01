"""What it costs and brings that sequences share space which is too small for all of them::

    python -m tests.runtime.pressure [--requests N]

The engine of one stage, whose steps take what OpenVINO's were measured to take (SmolLM2-135M on a core), and a line of
requests of four shapes, to space for 4 sequences of 1,024. For slots, and for blocks with different margins, it prints
tokens per second, sequences at work, and how many tokens were computed again.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass

import numpy as np

from ruvrun import frames
from ruvrun.engine import Engine, Request, blocks
from ruvrun.manifest.blocks import pool_of, sequences_of
from tests.runtime.consistency import check
from tests.runtime.fakes import greedy

CONTEXT, STREAMS, CHUNK = 1024, 4, 256
ROWS, PER_S = (1, 2, 4, 8, 16, 32), (90, 169, 275, 388, 491, 552)
CHUNK_MS = 321.0


@dataclass(frozen=True)
class Shape:
    """From and to how many tokens prompts and answers have."""

    prompt: tuple[int, int]
    answer: tuple[int, int]


SHAPES = {
    "mixed": Shape((20, 600), (20, 400)),
    "long answers": Shape((20, 100), (20, 900)),
    "long prompts": Shape((400, 900), (10, 100)),
    "short": Shape((20, 200), (10, 200)),
}


@dataclass(frozen=True)
class Load:
    """What came of it: seconds, tokens that clients got, tokens that were needed for that, and that were computed;
    sequences at work on the mean.
    """

    seconds: float
    answered: int
    needed: int
    computed: int
    at_work: float

    @property
    def again(self) -> float:
        return self.computed / self.needed - 1

    @property
    def per_s(self) -> float:
        return self.answered / self.seconds


def load(shape: Shape, count: int, *, pooled: bool, checked: bool = False) -> Load:
    """Let an engine serve so many requests."""
    draw = random.Random(0)
    engine = Engine(
        stages=1,
        context=CONTEXT,
        streams=sequences_of(STREAMS) if pooled else STREAMS,
        chunk=CHUNK,
        pool=pool_of(CONTEXT, STREAMS) if pooled else None,
    )
    needed = answered = computed = 0
    for number in range(count):
        prompt, answer = draw.randint(*shape.prompt), draw.randint(*shape.answer)
        engine.add(Request(number, tuple(draw.randrange(300) for _ in range(prompt)), answer, greedy(), frozenset()))
        needed += prompt + answer - 1
        answered += answer
    seconds, at_work = 0.0, 0.0
    while not engine.idle:
        results = []
        while sent := engine.step():
            if isinstance(sent[0], frames.Step):
                tokens = len(sent[1]["input_ids"])
                decodes = all(seq.count == 1 for seq in sent[0].seqs)
                per_s = float(np.interp(tokens, ROWS, PER_S)) if decodes else 1e3 * CHUNK / CHUNK_MS
                seconds += tokens / per_s
                at_work += tokens / per_s * engine.running
                computed += tokens
                due = tuple((seq.id, (7,)) for seq in sent[0].seqs if seq.rows)
                results.append(frames.Sampled(sent[0].epoch, sent[0].step, due))
        for result in results:
            engine.receive(result)
        if checked:
            check(engine)
    return Load(seconds, answered, needed, computed, at_work / seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What it costs and brings that sequences share space.")
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    for name, shape in SHAPES.items():
        print(name)
        for margin in (None, 0, 1, 2, 4, 8):
            blocks.MARGIN = margin or 0
            found = load(shape, options.requests, pooled=margin is not None)
            what = "slots" if margin is None else f"blocks, margin {margin}"
            print(f"  {what:16} {found.per_s:5.0f} tokens/s, {found.at_work:4.1f} at work, {found.again:5.1%} again")
