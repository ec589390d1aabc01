"""Sizes, rates and times as a person writes them: ``"8GiB"``, ``"1Gbit"``, ``"0.2ms"``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ruvrun.amounts import show_bytes as show_bytes

_SIZE = {
    "": 1.0,
    "b": 1.0,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
    "tib": 2.0**40,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
}
_BITS = {"bit": 0.125, "kbit": 125.0, "mbit": 125e3, "gbit": 125e6}
_RATE = {**_BITS, **{f"{unit}/s": width for unit, width in _BITS.items()}, "mb/s": 1e6, "gb/s": 1e9}
_TIME = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_MOST_BYTES, _LEAST_RATE, _LONGEST = 2**60, 1.0, 3600.0
"""What no machine has, no link is slower and none later than: beyond these, sums of times would be no numbers."""


def parse_size(text: str | int) -> int:
    """Bytes of ``"8GiB"``, ``"512 MiB"``, ``"2GB"`` or a plain number. Raises ValueError."""
    if (size := int(_quantity(text, _SIZE))) > _MOST_BYTES:
        raise ValueError(f"{text!r} is more than any machine has, so it is not a size")
    return size


def parse_rate(text: str | int) -> float:
    """Bytes per second of ``"1Gbit"``, ``"100Mbit/s"`` or ``"2GB/s"``. Raises ValueError."""
    if (rate := _quantity(text, _RATE)) < _LEAST_RATE:
        raise ValueError(f"{text!r} is less than 8bit/s, which carries nothing")
    return rate


def parse_time(text: str | int) -> float:
    """Seconds of ``"0.2ms"``, ``"50us"``. Raises ValueError."""
    if (time := _quantity(text, _TIME)) > _LONGEST:
        raise ValueError(f"{text!r} is more than an hour")
    return time


def _quantity(text: str | int, units: Mapping[str, float]) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z/]*)", str(text).strip(), re.ASCII)
    if not match or match.group(2).lower() not in units:
        shown = ", ".join(unit for unit in units if unit)
        raise ValueError(f"{text!r} is not a number with a unit ({shown})")
    value = float(match.group(1)) * units[match.group(2).lower()]
    if value <= 0 and units is not _TIME:
        raise ValueError(f"{text!r} is not more than zero")
    if value == float("inf"):
        raise ValueError(f"{text!r} is not finite")
    return value
