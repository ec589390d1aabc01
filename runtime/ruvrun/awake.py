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
from collections.abc import Callable
from pathlib import Path

PM_QOS = Path("/dev/cpu_dma_latency")
LINGER = 1.0


class Awake:
    """A wish to the kernel, made by ``work`` and withdrawn by ``rest`` once ``LINGER`` seconds passed without work.

    Args:
        clock: seconds, monotonic.
        path: the kernel's interface.
    """

    def __init__(self, clock: Callable[[], float], path: Path = PM_QOS) -> None:
        self._clock = clock
        self._path: Path | None = path
        self._file: int | None = None
        self._last = 0.0

    @property
    def held(self) -> bool:
        """Whether the wish stands, so that ``rest`` has to be called some time."""
        return self._file is not None

    def work(self) -> None:
        """There is work: stay awake."""
        self._last = self._clock()
        if self._file is not None or self._path is None:
            return
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._file, struct.pack("i", 0))
        except OSError:
            self._path = None  # not ours to ask; it will not change while this process lives
            self.close()

    def rest(self) -> None:
        """Nothing came for a while."""
        if self._clock() - self._last >= LINGER:
            self.close()

    def close(self) -> None:
        """Withdraw the wish; the kernel does the same when the process ends."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
