"""The first moments of a simulated pipeline, as who works when: what a report draws."""

from __future__ import annotations

from ruvcompile.forecast import Forecast
from ruvcompile.simulate.load import Lengths, Load
from ruvcompile.simulate.ring import Span
from ruvcompile.simulate.service import Service

PROMPT_TOKENS = 32


def timeline(forecast: Forecast, streams: int, until_ms: float, prompt_tokens: int = PROMPT_TOKENS) -> tuple[Span, ...]:
    """Who works when while ``streams`` sequences begin together and go on and on.

    Args:
        forecast: the planned fleet; its pipelines share the sequences.
        streams: sequences (of a graph: callers).
        until_ms: spans that begin at this time or later are left out.
        prompt_tokens: of each sequence.

    Returns:
        Spans in order of their beginnings.
    """
    spans: list[Span] = []
    load = Load(streams if forecast.decoder else 10**4, Lengths(prompt_tokens), Lengths(10**9), users=streams)
    Service(forecast, load, until_ms=until_ms, spans=spans).run()
    kept = [span for span in spans if span.start_ms < until_ms]
    return tuple(sorted(kept, key=lambda span: (span.start_ms, span.end_ms)))
