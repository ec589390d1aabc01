"""Huge pages: which regions are taken, that they are, and that empty space stays empty."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ruvrun.executors.pages import PAGE, full_regions, mapped, zeroed

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")

SMAPS = """\
00400000-00c00000 rw-p 00000000 00:00 0                          [heap]
Size:               8192 kB
Anonymous:          8192 kB
AnonHugePages:         0 kB
10000000-11000000 rw-p 00000000 00:00 0
Anonymous:         16000 kB
20000000-21000000 rw-p 00000000 00:00 0
Anonymous:          1024 kB
30000000-31000000 r--p 00000000 fe:01 42                         /a/file of weights
Anonymous:         16384 kB
40000000-41000000 rw-p 00000000 fe:01 42                         /a/file
Anonymous:         16384 kB
50000000-50200000 rw-p 00000000 00:00 0
Anonymous:          2048 kB
60000000-61000000 rw-p 00000000 00:00 0                          [stack]
Anonymous:         16384 kB
"""


def test_own_and_full_regions_are_taken_and_no_others() -> None:
    assert list(full_regions(SMAPS)) == [(0x400000, 0xC00000), (0x10000000, 0x11000000)]


FILL = """
import re
import numpy as np
from ruvrun.executors.pages import use_huge_pages
kept = [np.ones(1 << 17) for _ in range(64)]  # 64 MiB, each smaller than a huge page
empty = np.zeros(8 << 20)  # 64 MiB that nobody has written
def kib(key): return sum(map(int, re.findall(key + r": +(\\d+) kB", open("/proc/self/smaps").read())))
def asked():
    regions = re.split(r"(?m)^(?=[0-9a-f]+-)", open("/proc/self/smaps").read())
    return sum(int(re.findall(r"Anonymous: +(\\d+) kB", one)[0]) for one in regions if " hg" in one)
before = asked(), kib("Rss")
use_huge_pages()
print(*before, asked(), kib("Rss"), int(sum(array.sum() for array in kept)))
"""


@pytest.mark.skipif(not ENABLED.is_file() or "[never]" in ENABLED.read_text(), reason="this kernel gives no huge pages")
def test_what_was_loaded_is_put_on_huge_pages_and_takes_no_more_memory() -> None:
    """How many of them the kernel finds at once depends on the machine; what it was asked for does not."""
    done = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, check=True)
    asked_before, rss_before, asked, rss, total = map(int, done.stdout.split())
    assert total == 64 << 17
    assert asked - asked_before >= 48 << 10, "most of 64 MiB shall be on huge pages"
    assert rss - rss_before <= 8 << 10, "what nobody has written stays empty"


@pytest.mark.parametrize("page", [4096, 65536])
def test_files_are_put_one_behind_the_other_and_never_changed(page, tmp_path, monkeypatch) -> None:
    """Also where pages of memory are too large to map them so."""
    contents = [b"a" * 5000, b"", b"b" * 4096, b"c"]
    files = []
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}"
        path.write_bytes(content)
        files.append((path, len(content)))
    monkeypatch.setattr("ruvrun.executors.pages.mmap.PAGESIZE", page)
    found = mapped(files)
    wanted = b"".join(content.ljust(-(-len(content) // PAGE) * PAGE, b"\0") for content in contents)
    assert found.tobytes() == wanted
    found[:] = 1
    assert [path.read_bytes() for path, _ in files] == contents
    assert mapped([]).shape == (0,)


def test_a_mapped_file_may_go(tmp_path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"w" * 9000)
    found = mapped([(path, 9000)])
    path.unlink()
    assert found[:9000].tobytes() == b"w" * 9000


def test_zeroed_space_is_zero_and_can_be_written() -> None:
    space = zeroed(5 << 20)
    assert space.shape == (5 << 20,)
    assert not space[::4096].any()
    space[-1] = 7
    assert space[-1] == 7
    assert zeroed(0).shape == (0,)
