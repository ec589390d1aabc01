"""How a chunk of a prompt becomes calls of ONNX Runtime: one, but for a few lengths two.

Its product of four-bit weights takes ``STRIPE`` rows of activations at a time. Where a single row is left over, that
one is computed as if it were alone, and so as a generated position is, with other last digits: in a chunk of 129 or of
257 tokens the last position, from which the first token is drawn, would not be what it is in chunks of other lengths.
Such a chunk is computed without its last two tokens, and then those.
"""

from __future__ import annotations

from collections.abc import Iterator

from ruvrun.executors import Span

STRIPE = 128


def calls_of(span: Span) -> Iterator[Span]:
    """The calls for a span, in order; none is of one token but where the span is."""
    if span.count > 1 and span.count % STRIPE == 1:
        last = min(span.rows, 2)
        yield Span(span.slot, span.position, span.count - 2, span.rows - last)
        yield Span(span.slot, span.position + span.count - 2, 2, last)
    else:
        yield span
