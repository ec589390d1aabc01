"""Graphs that OpenVINO has compiled, kept beside the bundle: the next start reads them and need not compile.

They lie in the node's own part of the bundle, for they are of this machine alone, and are not needed to be there::

    node/compiled/NAME.toml    what it was made of, with and on, and the SHA-256 of the other file
    node/compiled/NAME.blob    what ``export_model`` gave

A release that was installed is not the service's to write to. There they are kept in the folder that ``RUVRUN_CACHE``
names, ``NODE/NAME.toml`` and ``NODE/NAME.blob``, whatever release runs; what lies beside the bundle, made by the
self-check of install.sh, is taken where that one does not fit.

A start takes one if all that decides is as it was: the files of the stage, the sizes, the settings, the device with its
driver, the version of OpenVINO and the machine. Else it is ignored, which is told in one line, and the graph is
compiled. What was compiled takes its place when whoever serves with it says so (``keep``), which is after the stage was
seen to compute what it should; so does who looks whether it could serve (``ruvrun.doctor.selfcheck``). Who measures
says nothing, and leaves nothing behind.

It is kept where there is room: a blob holds the weights once more, on the disk and, while it is written, in memory. One
that a later start takes, and that does not compute what it should, is let go, and the stage is loaded again.

Two things a CPU exports cannot be used (OpenVINO 2026.4). Paged attention lacks the sizes of its heads, and is not
imported: decoders in the form for CPUs have no blobs, and are made ready when they are built, as far as they can be
(``cpu/attention``). A rotary embedding lacks sizes, too, is imported, and reads memory that nobody wrote: graphs that
have one are not kept for a CPU, which then is mostly in the place of a GPU or an NPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import openvino as ov

from ruvrun.backends import CPU
from ruvrun.bundle import COMPILED, NODE, StageSpec, file_sha256, node_name
from ruvrun.elements import Array
from ruvrun.errors import InputError, MachineError
from ruvrun.executors.openvino.devices import Device
from ruvrun.executors.pages import mapped
from ruvrun.machine import cpu_features, cpu_name, memory_available
from ruvrun.scratch import write_whole
from ruvrun.toml import FORMAT, dump_toml, read_toml

STAGE = "stage"
"""The name of the one graph of a stage whose shapes are as they are."""

CACHE = "RUVRUN_CACHE"
"""Names the folder where they are kept, where that is not the bundle's own."""

_let_go: set[Path] = set()
"""Folders of which this process takes nothing any more, though it could not remove what is in them."""

_DISK, _MEMORY = 2, 3
"""What must be free, in bytes for each byte of the stage's weights, where a blob is written."""


class Made(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a blob was made of, with and on."""

    stage: str
    sizes: str
    settings: str
    device: str
    driver: str
    machine: str
    openvino: str
    sha256: str = ""
    format: int = FORMAT


_TOLD = {
    "stage": "it is of another stage",
    "sizes": "made for {}, this is {}",
    "settings": "it was made with other settings",
    "device": "made for {}, this is {}",
    "driver": "made with driver {}, this is {}",
    "machine": "made on {}, this is {}",
    "openvino": "made with OpenVINO {}, this is {}",
}
"""What must be as it was, and what is said where it is not."""


class Shelf:
    """Where the compiled graphs of a stage are; a ``ruvrun.executors.Shelf``.

    Args:
        core: an ``openvino.Core``.
        directory: the bundle.
        spec: its stage.
        device: where it runs.
        settings: how its graphs are compiled.

    Attributes:
        notes: a sentence about every blob that is there and does not fit.
        imported: whether any graph is from a blob.
    """

    def __init__(
        self, core: Any, directory: Path, spec: StageSpec, device: Device, settings: Mapping[str, Any]
    ) -> None:
        self.notes: list[str] = []
        self.imported = False
        self._core, self._directory, self._spec = core, directory, spec
        self._installed = directory / COMPILED
        cache = os.environ.get(CACHE, "")
        self._home = Path(cache) / (node_name(directory) or STAGE) if cache else self._installed
        self._settings = dict(settings)
        self._here = Made(
            stage=_digest([[file.path, file.sha256] for file in spec.files]),
            sizes="",
            settings=_digest(sorted((name, str(value)) for name, value in settings.items())),
            device=device.name,
            driver=device.driver,
            machine=device.title if not device.name.startswith(CPU) else _cpu(),
            openvino=ov.__version__,
        )
        self._read: list[Array] = []  # what graphs were read from, as long as they are
        self._taken: dict[str, Path] = {}
        self._fresh: dict[str, tuple[Made, Any]] = {}
        self._open = True

    def take(self, compiled: Callable[[], Any], name: str = STAGE, sizes: str = "") -> Any:
        """A compiled graph: from its blob where there is one that fits, else what ``compiled`` gives.

        Args:
            name: tells it from others of the stage.
            sizes: what it was made for, in words, where that is not the stage's own.
        """
        if not self._open:  # made while the stage serves: for whoever asked for it, and seldom
            return compiled()
        here = msgspec.structs.replace(self._here, sizes=sizes)
        found = self._imported(name, here)
        if found is None:
            found = compiled()
            self._fresh[name] = (here, found)
        return found

    def held(self, model: Any, constants: Array) -> Any:
        """``model``; its ``constants`` stay from now on as long as the stage: kernels read some where they are."""
        self._read.append(constants)
        return model

    def keep(self) -> None:
        """Write what had to be compiled, and let go what no start wants any more; never fails."""
        fresh, self._fresh, self._open = self._fresh, {}, False
        if not (self._directory / NODE).is_dir():
            return
        # A bundle may lie where nobody may write, and not every device exports.
        with contextlib.suppress(OSError, MachineError, RuntimeError):
            home = self._home
            home.mkdir(parents=True, exist_ok=True)
            for path in home.iterdir():
                if self._taken.get(path.stem) != home:
                    path.unlink()
            for name, (made, model) in fresh.items():
                if self._room() and not (made.device.startswith(CPU) and _rotates(model)):
                    exported = model.export_model()
                    data = exported if isinstance(exported, bytes) else exported.getvalue()
                    sha256 = hashlib.sha256(data).hexdigest()
                    write_whole(_blob(home, name), data)
                    write_whole(_note(home, name), dump_toml(msgspec.structs.replace(made, sha256=sha256)))

    def drop(self) -> None:
        """Let go of all that is kept; never fails. What cannot be removed is not taken again by this process."""
        for folder in (self._home, self._installed):
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                _let_go.add(folder)

    def _imported(self, name: str, here: Made) -> Any:
        """The graph in a blob; None where there is none, or none is taken, which is noted."""
        notes = []
        for folder in dict.fromkeys((self._home, self._installed)):
            if folder in _let_go or not _note(folder, name).is_file():
                continue
            model, why = self._read_blob(folder, name, here)
            if model is not None:
                self.imported = True
                self._taken[name] = folder
                return model
            shown = _blob(Path(COMPILED) if folder == self._installed else folder, name)
            notes.append(f"ignored: {shown}, a compiled graph: {why}; compiling anew")
        self.notes += notes
        return None

    def _read_blob(self, folder: Path, name: str, here: Made) -> tuple[Any, str]:
        """The graph in a blob, or None and why it is not taken."""
        blob, note = _blob(folder, name), _note(folder, name)
        try:
            made = read_toml(note, Made, "note of a compiled graph")
            pairs = {each: (getattr(made, each), getattr(here, each)) for each in _TOLD}
            other = [
                _TOLD[each].format(was or "none", now or "none") for each, (was, now) in pairs.items() if was != now
            ]
            if other:
                why = "; ".join(other)
            elif file_sha256(blob) != made.sha256:
                why = "it is damaged"
            else:
                data = mapped([(blob, blob.stat().st_size)])
                model = self._core.import_model(ov.Tensor(data, shared_memory=True), here.device, self._settings)
                self._read.append(data)
                return model, ""
        except InputError as error:
            why = error.message
        except (OSError, RuntimeError) as error:  # OpenVINO says last what it is, and first where in its sources
            *_, why = ["it cannot be read", *filter(str.strip, str(error).splitlines())]
        return None, why

    def _room(self) -> bool:
        weights = self._spec.weight_bytes
        return shutil.disk_usage(self._home).free > _DISK * weights and memory_available() > _MEMORY * weights


def _rotates(model: Any) -> bool:
    """Whether a graph that was compiled for a CPU has a rotary embedding in one of its kernels."""
    return any(node.get_rt_info()["layerType"].astype(str) == "RoPE" for node in model.get_runtime_model().get_ops())


def _cpu() -> str:
    return f"{cpu_name()} {_digest(sorted(cpu_features()))[:8]}"


def _blob(folder: Path, name: str) -> Path:
    return folder / f"{name}.blob"


def _note(folder: Path, name: str) -> Path:
    return folder / f"{name}.toml"


def _digest(what: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()


__all__ = ["STAGE", "Made", "Shelf"]
