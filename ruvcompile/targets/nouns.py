"""A kind of machine, and where what is said of the kinds lies.

``data_root`` finds the data: ``_targets`` beside this package in an installed wheel, ``targets`` in a checkout.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ruvrun.backends import BACK_ENDS

FILE = "target.toml"
SHARED = "_shared"
TEMPLATES = "templates"
HERE = Path("targets")
"""Where a person keeps targets of their own: one folder each, no code."""
NATIVE = "native"
FIGURE_KINDS = ("theoretical", "published", "measured", "scaled")
FIGURES: Mapping[str, str] = {
    **dict.fromkeys(("memory_bandwidth", "memory_bandwidth_peak", "int4_matvec", "int8_matvec"), "B/s"),
    **dict.fromkeys(("int4_matmat", "int8_matmat", "f32_matmat"), "FLOP/s"),
    "node_overhead": "s",
    "clock": "Hz",
    "int8_peak": "OP/s",
}
"""Figures that a target may have, and their units: those of ``ruvrun.profile.rates``, and bounds of them."""


@dataclass(frozen=True)
class Figure:
    """A number about a kind of machine, and where it is from.

    ``kind``: ``theoretical``, ``published`` by others, ``measured``, or ``scaled`` from another figure, which is in
    ``source``. Those that costs are scaled by are of all its cores together.
    """

    name: str
    value: float
    unit: str
    kind: str
    source: str
    date: str


@dataclass(frozen=True)
class Accelerator:
    """What an accelerator takes, and who compiles for it: the table ``[accelerator]``.

    ``command`` is the vendor's, which ``where`` says how to get; ``steps`` are the command lines that compile a part,
    ``{part}.onnx``, to ``result``. ``opset`` is the newest that its parser reads; ``operators`` are those it takes, of
    which ``worth`` are what it is there for. ``calibrate``, ``run`` and ``decoders`` are sentences: what the compiled
    numbers are worth, who runs them, and what there is for decoders. ``source`` and ``date``: where all that is from.
    """

    name: str
    compiler: str
    command: str
    where: str
    opset: int
    operators: tuple[str, ...]
    worth: tuple[str, ...]
    steps: tuple[str, ...]
    result: str
    calibrate: str
    run: str
    decoders: str
    source: str
    date: str


@dataclass(frozen=True)
class Target:
    """One kind of machine.

    ``arch`` is as ``platform.machine()`` says, or ``native``; ``features`` are CPU flags as in /proc/cpuinfo.
    Of several ``backends`` the plan takes the faster one for each stage; a file with one may call it ``backend``.
    The first of ``kv_types`` is the default. ``memory`` holds the bytes installed in the models that are
    sold, the one to assume first; empty: asked of this machine. ``golden_bound`` is how far a stage's outputs
    may be from those of the build machine, as a fraction of the largest absolute value; what comes of rounding
    activations to 8 bits is measured by the build, and comes on top. ``devices`` are the
    kernel's names of what a stage opens besides files (/proc/devices), ``drivers`` the packages that make it work, and
    ``resources`` are what a pod asks a cluster for to be given one of each, by the names that a device plugin gives it.
    ``deploy`` are files for its nodes beside those that every target's have, each rendered from a template of its own.
    ``pythons`` are those of its systems, ``glibc`` is the oldest C library that it has to run with, ``pages`` are the
    sizes of memory pages that its kernels may have, in bytes; empty: as here.
    ``notes`` are sentences for whoever sets such a machine up.
    """

    name: str
    folder: Path
    title: str
    backends: tuple[str, ...]
    arch: str
    features: tuple[str, ...]
    quants: tuple[str, ...]
    kv_types: tuple[str, ...]
    memory: tuple[int, ...]
    packages: tuple[str, ...]
    golden_bound: float
    cores: int = 0
    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    deploy: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    glibc: str = ""
    pages: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    accelerator: Accelerator | None = None

    @property
    def backend(self) -> str:
        """The back end, of several the first."""
        return self.backends[0]

    def on(self, backend: str) -> Target:
        """The same with this back end alone, and the types of keys and values that it has."""
        kinds = tuple(kind for kind in self.kv_types if kind in BACK_ENDS[backend].kinds)
        return replace(self.among((backend,)), kv_types=kinds)

    def among(self, backends: tuple[str, ...]) -> Target:
        """The same with these back ends alone, and the packages they need."""
        others = {f"ruvrun[{other}]" for other in self.backends if other not in backends}
        packages = tuple(package for package in self.packages if package not in others)
        return replace(self, backends=backends, packages=packages)

    @property
    def machine(self) -> str:
        """The architecture, ``native`` resolved to the one this runs on."""
        return platform.machine() if self.arch == NATIVE else self.arch

    @property
    def libc(self) -> str:
        """The version of the oldest C library that has to do: the target's, or that of this machine."""
        return self.glibc or platform.libc_ver()[1] or "2.34"

    @property
    def page(self) -> int:
        """Bytes of the largest memory page that has to do: the target's, or this machine's."""
        return max(self.pages, default=os.sysconf("SC_PAGE_SIZE"))

    @property
    def installed(self) -> int:
        """Bytes of memory to assume where the fleet does not say: the first model's, or this machine's."""
        return self.memory[0] if self.memory else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @property
    def kv_type(self) -> str:
        """The type of keys and values: what was asked for (``fleet_targets``), else the default."""
        return self.kv_types[0]

    def figure(self, name: str) -> Figure | None:
        """The figure of that name, if the target has one."""
        return next((figure for figure in self.figures if figure.name == name), None)

    def template(self, name: str) -> Path:
        """The file of a template: the target's own if it has one, else the shared one."""
        own = self.folder / TEMPLATES / name
        return own if own.is_file() else data_root() / SHARED / TEMPLATES / name


def data_root() -> Path:
    """The folder that holds the targets that come with the compiler."""
    installed = Path(__file__).parents[1] / "_targets"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "targets"
