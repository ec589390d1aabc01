"""A graph that OpenVINO has compiled, kept beside the bundle: the next start reads it and need not compile.

It lies in the node's own part of the bundle, for it is of this machine alone, and is not needed to be there::

    node/compiled.toml    what it was made of and on, and the SHA-256 of the other file
    node/compiled.blob    what ``export_model`` gave

The first start leaves it, where it may write there. A later one takes it if all that decides is as it was: the files of
the stage, the settings, the device with its driver, the version of OpenVINO and the CPU. Else it is ignored, which is
told in one line, the graph is compiled, and what comes of that takes its place.

Decoders on a CPU have none: what is exported of paged attention lacks the sizes of its heads, and cannot be imported
(OpenVINO 2026.4). They are made ready when they are built, as far as they can be (``attention.py``).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import openvino as ov

from ruvrun.bundle import COMPILED, NODE, StageSpec, file_sha256
from ruvrun.elements import Array
from ruvrun.errors import InputError, MachineError
from ruvrun.executors.pages import mapped
from ruvrun.machine import cpu_features, cpu_name
from ruvrun.scratch import write_whole
from ruvrun.toml import FORMAT, dump_toml, read_toml

MADE, BLOB = COMPILED


class Made(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of ``compiled.toml``: what a blob was made of, with and on."""

    stage: str
    settings: str
    device: str
    driver: str
    openvino: str
    cpu: str
    sha256: str = ""
    format: int = FORMAT


@dataclass(frozen=True)
class Compiled:
    """A compiled graph.

    Attributes:
        model: an ``openvino.CompiledModel``.
        constants: what it was read from; kept as long as the model.
        ignored: one sentence, where a blob was there and does not fit.
    """

    model: Any
    constants: Array | None = None
    ignored: str = ""


def compile_graph(
    core: Any,
    directory: Path,
    spec: StageSpec,
    device: str,
    settings: Mapping[str, Any],
    read: Callable[[], Any],
    *,
    driver: str = "",
) -> Compiled:
    """The stage's graph, from its blob where there is one that fits, else compiled, and kept for the next time.

    Args:
        core: an ``openvino.Core``.
        directory: the bundle.
        device: where it is to run.
        settings: how it is compiled.
        read: gives the ``openvino.Model``.
        driver: its version, where the device has one.
    """
    here = Made(
        stage=_digest([[file.path, file.sha256] for file in spec.files]),
        settings=_digest(sorted((name, str(value)) for name, value in settings.items())),
        device=device,
        driver=driver,
        openvino=ov.__version__,
        cpu=f"{cpu_name()} {_digest(sorted(cpu_features()))[:8]}",
    )
    ignored = ""
    if (directory / MADE).is_file():
        found, ignored = _kept(core, directory, here, settings)
        if found is not None:
            return found
    model = core.compile_model(read(), device, settings)
    if (directory / NODE).is_dir():
        with contextlib.suppress(OSError, MachineError):  # a bundle may lie where nobody may write
            _keep(directory, here, model)
    return Compiled(model, ignored=ignored)


def _kept(core: Any, directory: Path, here: Made, settings: Mapping[str, Any]) -> tuple[Compiled | None, str]:
    """The blob, or why it is not taken."""
    blob, why = directory / BLOB, ""
    try:
        made = read_toml(directory / MADE, Made, "note of a compiled graph")
        other = [name for name in _TOLD if getattr(made, name) != getattr(here, name)]
        if other:
            why = "; ".join(_TOLD[name].format(getattr(made, name), getattr(here, name)) for name in other)
        elif file_sha256(blob) != made.sha256:
            why = "it is damaged"
        else:
            data = mapped([(blob, blob.stat().st_size)])
            return Compiled(core.import_model(ov.Tensor(data, shared_memory=True), here.device, settings), data), ""
    except InputError as error:
        why = error.message
    except (OSError, RuntimeError) as error:  # OpenVINO says last what it is, and first where in its sources
        *_, why = ["it cannot be read", *filter(str.strip, str(error).splitlines())]
    return None, f"ignored: {blob.name}, the compiled graph: {why}; compiling anew"


_TOLD = {
    "stage": "it is of another stage",
    "settings": "it was made with other settings",
    "device": "made for {}, this is {}",
    "driver": "made with driver {}, this is {}",
    "openvino": "made with OpenVINO {}, this is {}",
    "cpu": "made on {}, this is {}",
}
"""What must be as it was, and what is said where it is not."""


def _keep(directory: Path, here: Made, model: Any) -> None:
    exported = model.export_model()
    data = exported if isinstance(exported, bytes) else exported.getvalue()
    (directory / MADE).unlink(missing_ok=True)
    write_whole(directory / BLOB, data)
    write_whole(directory / MADE, dump_toml(msgspec.structs.replace(here, sha256=hashlib.sha256(data).hexdigest())))


def _digest(what: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()


__all__ = ["BLOB", "MADE", "Compiled", "Made", "compile_graph"]
