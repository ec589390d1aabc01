"""The versions of this machine's OpenCL drivers, asked of OpenCL itself: OpenVINO, which computes with them on GPUs,
does not tell.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

LIBRARY = "libOpenCL.so.1"
_EVERY, _NAME, _DRIVER = 0xFFFFFFFF, 0x102B, 0x102D  # CL_DEVICE_TYPE_ALL, CL_DEVICE_NAME, CL_DRIVER_VERSION
_MOST = 32


def driver_versions() -> dict[str, str]:
    """The version of its driver by the name of each device; nothing where there is no OpenCL."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return {}
    found = {}
    for platform in _handles(lambda count, into, number: library.clGetPlatformIDs(count, into, number)):

        def devices_of(count: int, into: object, number: object, of: int = platform) -> int:
            every = ctypes.c_uint64(_EVERY)
            return int(library.clGetDeviceIDs(ctypes.c_void_p(of), every, count, into, number))

        for device in _handles(devices_of):
            found[_text(library, device, _NAME)] = _text(library, device, _DRIVER)
    return found


def _handles(ask: Callable[[int, object, object], int]) -> list[int]:
    """Platforms or devices, by a function that is given room for them and tells how many there are."""
    room, number = (ctypes.c_void_p * _MOST)(), ctypes.c_uint(0)
    if ask(_MOST, room, ctypes.byref(number)):
        return []
    return [handle for handle in room[: min(number.value, _MOST)] if handle]


def _text(library: ctypes.CDLL, device: int, what: int) -> str:
    text, size = ctypes.create_string_buffer(1024), ctypes.c_size_t(0)
    failed = library.clGetDeviceInfo(ctypes.c_void_p(device), what, ctypes.c_size_t(1024), text, ctypes.byref(size))
    return "" if failed else text.value.decode(errors="replace").strip()
