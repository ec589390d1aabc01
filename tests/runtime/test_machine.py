"""What this machine and this process have and hold."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ruvrun import machine
from ruvrun.machine import peak_bytes


def test_a_process_has_the_peak_that_is_its_own() -> None:
    """Not what the process held that started it."""
    held = np.ones(32 << 20)  # 256 MiB
    code = "from ruvrun.machine import peak_bytes; print(peak_bytes())"
    child = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert held.nbytes < peak_bytes()
    assert 1 << 20 < child < held.nbytes


@pytest.mark.parametrize(
    ("groups", "files", "limited"),
    [
        ("0::/pod/one\n", {"pod/one/cpu.max": "50000 100000\n"}, True),
        ("0::/pod/one\n", {"pod/cpu.max": "50000 100000\n", "pod/one/cpu.max": "max 100000\n"}, True),
        ("0::/pod/one\n", {"pod/one/cpu.max": "max 100000\n"}, False),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, True),
        ("1:cpu,cpuacct:/box\n0::/\n", {"cpu,cpuacct/box/cpu.cfs_quota_us": "1000\n"}, True),
        ("1:cpu:/box\n", {"cpu/box/cpu.cfs_quota_us": "-1\n"}, False),
        ("4:memory:/box\n", {"cpu/box/cpu.cfs_quota_us": "1000\n"}, False),
        ("0::/\n", {}, False),
    ],
)
def test_a_quota_of_cpu_time_is_seen(tmp_path, monkeypatch, groups, files, limited) -> None:
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path / "groups")
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    assert machine.has_cpu_quota() is limited
