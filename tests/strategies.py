"""All hypothesis strategies, in one file."""

from __future__ import annotations

from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.engine import Request

SEEDS = st.integers(-(2**63), 2**64 - 1)


def samplings() -> st.SearchStrategy[frames.Sampling]:
    """Greedy, or any temperature and top_p a client may send."""
    drawn = st.builds(frames.Sampling, st.floats(0.05, 3.0), st.floats(0.01, 1.0), SEEDS)
    return st.just(frames.Sampling(0.0, 1.0, 0)) | drawn


@st.composite
def requests(draw: st.DrawFn, number: int, *, context: int, vocab: int) -> Request:
    """A request that fits ``context``; a few of the tokens may end it."""
    length = draw(st.integers(1, context - 1))
    prompt = draw(st.lists(st.integers(0, vocab - 1), min_size=length, max_size=length))
    return Request(
        number,
        tuple(prompt),
        draw(st.integers(1, 12)),
        draw(samplings()),
        draw(st.frozensets(st.integers(0, vocab - 1), max_size=4)),
    )
