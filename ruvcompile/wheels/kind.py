"""What wheels a machine takes: its processor, its Python, its C library.

A wheel's platform tag names the oldest C library that it runs with (``manylinux_2_28``), so a machine takes all tags
from its own down. pip, asked for another machine, takes tags as they are given and adds no older ones by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

OLDEST = {"x86_64": 5, "aarch64": 17}
"""Processors that there are wheels for, and the first version 2.x of the C library that tags have names for."""

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, order=True)
class Kind:
    """What is installed on: ``machine`` as of ``platform.machine()``, ``python`` as in ``3.11``, ``glibc`` in ``2.36``.

    ``page`` is the size in bytes of the machine's memory pages.
    """

    machine: str
    python: str
    glibc: str
    page: int = 4096

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags of wheels that run there, newest first."""
        tags: list[str] = []
        for minor in range(int(self.glibc.partition(".")[2]), OLDEST[self.machine] - 1, -1):
            tags.append(f"manylinux_2_{minor}_{self.machine}")
            tags += [f"{_LEGACY[minor]}_{self.machine}"] if minor in _LEGACY else []
        return (*tags, f"linux_{self.machine}")

    @property
    def markers(self) -> dict[str, str]:
        """What markers of requirements are compared with there.

        Of a Python only the series is known: its first release, for which most of what fills gaps is wanted.
        """
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }
