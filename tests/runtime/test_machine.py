"""What this machine and this process have and hold."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from ruvrun.machine import peak_bytes


def test_a_process_has_the_peak_that_is_its_own() -> None:
    """Not what the process held that started it."""
    held = np.ones(32 << 20)  # 256 MiB
    code = "from ruvrun.machine import peak_bytes; print(peak_bytes())"
    child = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert held.nbytes < peak_bytes()
    assert 1 << 20 < child < held.nbytes
