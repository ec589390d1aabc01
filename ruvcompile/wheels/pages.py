"""Whether what is native in a wheel can be loaded with memory pages of a machine's size.

A shared library says for each part that is mapped (PT_LOAD) at what multiple it has to lie. A kernel with larger pages
cannot map it there: a Raspberry Pi 5 has pages of 16 KiB, and refuses a library that was linked for 4.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

_MAGIC = b"\x7fELF"
_WIDE = 2
_PT_LOAD = 1
_HEADER = 64
_SEGMENT = 56


def too_fine(wheel: Path, page: int) -> dict[str, int]:
    """The libraries in a wheel that cannot be mapped with pages of ``page`` bytes, and for what size they are made."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".so") and ".so." not in name:
                continue
            with archive.open(name) as stream:
                finest = alignment(stream.read(4096))
            if finest and finest % page:
                found[name] = finest
    return found


def alignment(head: bytes) -> int:
    """At what multiple the parts of a library have to lie, the finest; 0 where these are not the first bytes of one."""
    if len(head) < _HEADER or head[:4] != _MAGIC or head[4] != _WIDE:
        return 0
    (start,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    found = []
    for number in range(count):
        offset = start + number * size
        if size >= _SEGMENT and offset + _SEGMENT <= len(head):
            (kind,), (multiple,) = struct.unpack_from("<I", head, offset), struct.unpack_from("<Q", head, offset + 48)
            found += [multiple] if kind == _PT_LOAD else []
    return min(found, default=0)
