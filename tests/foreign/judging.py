"""All cases, on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial

from tests.foreign import staged
from tests.foreign.cases import Case
from tests.foreign.verdict import ALL, Verdict, judge

_cases: Sequence[Case] = ()


def judge_all(cases: Sequence[Case], most: int = ALL, tell: Callable[[str], None] = lambda _: None) -> list[Verdict]:
    """The verdicts of ``cases``, in their order, each cut at ``most`` places; ``tell`` hears how far it is."""
    global _cases  # the children inherit them: models and arrays are not sent
    _cases = cases
    verdicts: list[Verdict] = []
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0)), staged.be_quick) as pool:
        for verdict in pool.imap(partial(_judge, most), range(len(cases)), chunksize=4):
            verdicts.append(verdict)
            if len(verdicts) % 100 == 0:
                tell(f"{len(verdicts)} of {len(cases)}")
    return verdicts


def _judge(most: int, number: int) -> Verdict:
    return judge(_cases[number], most)
