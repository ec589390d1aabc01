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
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

HUGE = 2 << 20
PAGE = 4096
"""Files that are mapped together begin at multiples of this."""
_FULL = 0.9
_ADVISE, _COLLAPSE = 14, 25  # MADV_HUGEPAGE, MADV_COLLAPSE
_FIXED = 0x10  # MAP_FIXED
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


def mapped(files: Sequence[tuple[Path, int]]) -> npt.NDArray[np.uint8]:
    """Files of these lengths one behind the other, each from a multiple of ``PAGE`` on, read only when they are looked
    at; writing to them changes no file.
    """
    total = sum(-(-size // PAGE) * PAGE for _, size in files)
    if mmap.PAGESIZE != PAGE:  # a machine with larger ones cannot put them there
        joined = np.zeros(total, np.uint8)
        for (path, size), at in zip(files, _begins(files), strict=True):
            joined[at : at + size] = np.fromfile(path, np.uint8, size)
        return joined
    whole = np.frombuffer(mmap.mmap(-1, max(total, 1)), np.uint8, total)
    place = ctypes.CDLL(None, use_errno=True).mmap
    place.restype = ctypes.c_void_p
    place.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    for (path, size), at in zip(files, _begins(files), strict=True):
        with path.open("rb") as file:
            where = whole.ctypes.data + at
            rights = mmap.PROT_READ | mmap.PROT_WRITE
            if size and place(where, size, rights, mmap.MAP_PRIVATE | _FIXED, file.fileno(), 0) != where:
                raise OSError(ctypes.get_errno(), f"cannot map {path}")
    return whole


def _begins(files: Sequence[tuple[Path, int]]) -> Iterator[int]:
    at = 0
    for _, size in files:
        yield at
        at += -(-size // PAGE) * PAGE


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
