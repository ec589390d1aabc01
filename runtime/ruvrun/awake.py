"""Keep a machine's cores out of deep sleep while it has steps to run.

A stage waits for its neighbours at every token, some milliseconds at a time. A core that falls asleep meanwhile
wakes up slowly, and with cold caches where a hypervisor has moved it: on the virtual machine of our benchmarks,
holding it awake made a two-stage pipeline 5 to 15 % faster (``examples/benchmarks/README.md``).

The kernel's own way to ask is PM QoS: whoever writes the longest wake-up it can bear, in microseconds, into
``/dev/cpu_dma_latency`` is heeded for as long as it keeps the file open. That is the whole machine's setting and costs
power, so it is held only while steps come, and let go a moment after the last one. The file belongs to root; where it
may not be opened, or does not exist, nothing happens.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

PM_QOS = Path("/dev/cpu_dma_latency")
LINGER = 1.0
"""Seconds without a step, after which it may rest."""


class Awake:
    """A wish to the kernel, made by ``work`` and withdrawn by ``rest``.

    Args:
        path: the kernel's interface.

    Attributes:
        held: whether the wish stands, so that ``rest`` has to be called some time.
        due: whether it would be made by ``work``; plain values, as every step asks for them.
    """

    def __init__(self, path: Path = PM_QOS) -> None:
        self.held = False
        self.due = True
        self._path = path
        self._file = -1

    def work(self) -> None:
        """There is work: stay awake."""
        if not self.due:
            return
        self.due = False
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return  # not ours to ask; it will not change while this process lives
        try:
            os.write(self._file, struct.pack("i", 0))
            self.held = True
        except OSError:
            os.close(self._file)

    def rest(self) -> None:
        """Nothing came for a while, or will: withdraw the wish, as the kernel does when a process ends."""
        if self.held:
            os.close(self._file)
            self.held, self.due = False, True
