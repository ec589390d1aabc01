"""What OpenCL says of its drivers, by a library that answers as OpenCL does."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from ruvrun.executors.openvino import opencl

DEVICES = {17: {1: ("Intel(R) Arc(TM) Graphics", "24.35.30872.31")}, 18: {2: ("cpu", "3.0"), 3: ("odd", "")}}


class Library:
    """Two platforms, one with two devices; a third has none, which OpenCL calls an error."""

    def clGetPlatformIDs(self, room: int, into: Any, number: Any) -> int:  # noqa: N802 - OpenCL's name
        return self._give([*DEVICES, 19], room, into, number)

    def clGetDeviceIDs(self, platform: Any, kind: Any, room: int, into: Any, number: Any) -> int:  # noqa: N802
        assert kind.value == 0xFFFFFFFF
        found = DEVICES.get(platform.value)
        return self._give([*found], room, into, number) if found else -1

    def clGetDeviceInfo(self, device: Any, what: int, size: Any, into: Any, needed: Any) -> int:  # noqa: N802
        name, driver = next(found[device.value] for found in DEVICES.values() if device.value in found)
        text = {0x102B: name, 0x102D: driver}[what].encode()
        needed._obj.value = len(text) + 1
        assert needed._obj.value <= size.value
        into.value = text
        return 0

    @staticmethod
    def _give(handles: list[int], room: int, into: Any, number: Any) -> int:
        for place, handle in enumerate(handles[:room]):
            into[place] = handle
        number._obj.value = len(handles)
        return 0


def test_every_device_of_every_platform_is_told_with_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library())
    found = {"Intel(R) Arc(TM) Graphics": "24.35.30872.31", "cpu": "3.0", "odd": ""}
    assert opencl.driver_versions() == found


def test_a_machine_without_opencl_has_no_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl, "LIBRARY", "libNoSuchOpenCL.so.1")
    assert opencl.driver_versions() == {}
