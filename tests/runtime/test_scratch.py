"""Folders for a while: named for their process, gone with the block, and swept up after a process that was killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ruvrun.scratch import scratch_folder, sweep

DEAD = 2**22 + 1
"""Above every process id that Linux gives out."""
KILLED = """
import os, signal, sys
from pathlib import Path
from ruvrun.scratch import scratch_folder
with scratch_folder("ours", Path(sys.argv[1])) as folder:
    (folder / "weights.bin").write_bytes(bytes(100))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_of_its_process_and_goes_with_the_block(tmp_path: Path) -> None:
    with scratch_folder("ours", tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.name.startswith(f"ours-{os.getpid()}-")
        (folder / "x").write_text("x")
    assert not folder.exists()
    with pytest.raises(ZeroDivisionError), scratch_folder("ours", tmp_path) as folder:
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert (left / "weights.bin").stat().st_size == 100
    with scratch_folder("ours", tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_what_others_have_there_stays(tmp_path: Path) -> None:
    stays = [f"ours-{os.getpid()}-a", "ours-1-a", f"ours-{DEAD}", "ours-x-a", f"theirs-{DEAD}-a", f"not-ours-{DEAD}-a"]
    for name in [*stays, f"ours-{DEAD}-a", f".mine-{DEAD}-a"]:
        (tmp_path / name).mkdir()
    sweep(tmp_path, "ours", ".mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stays)


def test_a_full_disk_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space") as caught, scratch_folder("ours", tmp_path) as folder:
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(folder)
    with pytest.raises(OSError, match="No space") as caught, scratch_folder("ours", tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device", "weights.bin")
    assert caught.value.filename == "weights.bin"
