"""Puts what a stage has loaded, and its key/value space, on huge pages.

Weights, as the kernels packed them, are read from end to end at every token, and nothing else is in a cache by then: a
page walk for every 4 KiB costs more than what it finds. On pages of 2 MiB a step of the benchmark's model is a tenth
faster. Allocators do not get there by themselves: a packed matrix is often smaller than a huge page, and each is an
allocation of its own. But the kernel lays them side by side, so whole regions can be collapsed afterwards.

Only regions that are nearly full are taken: an untouched one (a thread's stack, key/value space nobody has used) would
come to life. Where the kernel is too old to do it now (before 6.1), it is asked to do so when it finds the time; where
it gives no huge pages, nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

HUGE = 2 << 20
_FULL = 0.9
_ADVISE, _COLLAPSE = 14, 25  # MADV_HUGEPAGE, MADV_COLLAPSE
_REGION = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[heap\])?$")


def use_huge_pages() -> None:
    """Collapse this process's own memory, as far as it is full, into huge pages; never fails."""
    try:
        text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
        advise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return
    for start, end in full_regions(text):
        first, last = -(-start // HUGE) * HUGE, end // HUGE * HUGE
        where, size = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
        advise(where, size, _ADVISE)
        advise(where, size, _COLLAPSE)


def zeroed(size: int) -> npt.NDArray[np.uint8]:
    """``size`` zero bytes, on huge pages where there are any; memory is taken when it is first written.

    Key/value space is read at every token like the weights, a little of each head's at a time: many pages.
    """
    memory = mmap.mmap(-1, max(size, 1))
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)


def full_regions(smaps: str) -> Iterator[tuple[int, int]]:
    """Start and end of the private, anonymous, writable regions of a ``/proc/PID/smaps`` that hold a huge page and are
    nearly full.
    """
    start = end = 0
    for line in smaps.splitlines():
        if line.startswith("Anonymous:"):
            size = end - start
            if size >= 2 * HUGE and int(line.split()[1]) << 10 >= _FULL * size:
                yield start, end
        elif found := _REGION.match(line):
            start, end = (int(text, 16) for text in found.groups())
        elif line[:1] in "0123456789abcdef":
            start = end = 0
