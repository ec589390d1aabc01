"""The wheel of ``ruvrun`` itself, packed out of what runs here.

A release may be installed from an index, from a file, or as an editable checkout; a node gets the very code that
measured and checked its bundle. It is Python only, so a wheel is nothing but its files, its metadata and a list of both
with their hashes. No builder is needed, no network, and the same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import ruvrun
from ruvcompile.errors import MachineError

NAME = "ruvrun"
_WHEEL = "Wheel-Version: 1.0\nGenerator: ruvcompile\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_KEPT = ("METADATA", "entry_points.txt", "licenses/LICENSE")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16


def own_metadata() -> str:
    """The metadata of the ``ruvrun`` that runs here.

    Raises:
        MachineError: it is no installed distribution, or another version of it than the code.
    """
    hint = "pip install ruvrun; in a checkout: pip install -e ./runtime"
    try:
        found = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        raise MachineError("wheels-own", f"{NAME} runs here without being installed", hint=hint) from None
    if found.version != ruvrun.__version__:
        what = f"{NAME} {found.version} is installed, and the code that runs is {ruvrun.__version__}"
        raise MachineError("wheels-own", what, hint=hint)
    return found.read_text("METADATA") or ""


def own_wheel() -> tuple[str, bytes]:
    """Name and content of the wheel of ``ruvrun``. Raises as ``own_metadata``."""
    own_metadata()
    info = f"{NAME}-{ruvrun.__version__}.dist-info"
    return f"{NAME}-{ruvrun.__version__}-py3-none-any.whl", pack(dict(_files(info)), info)


def pack(files: Mapping[str, bytes], info: str) -> bytes:
    """A wheel of these files, whose own folder is ``info``; always the same bytes."""
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in sorted(files.items())]
    record = f"{info}/RECORD"
    listed = {**files, record: "\n".join([*lines, f"{record},,"]).encode() + b"\n"}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(listed.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = _MODE
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return made.getvalue()


def _files(info: str) -> Iterator[tuple[str, bytes]]:
    package = Path(ruvrun.__file__).parent
    for path in package.rglob("*"):
        inside = path.relative_to(package)
        if path.is_file() and "__pycache__" not in inside.parts:
            yield f"{NAME}/{inside.as_posix()}", path.read_bytes()
    found = metadata.distribution(NAME)
    for name in _KEPT:
        if (text := found.read_text(name)) is not None:
            yield f"{info}/{name}", text.encode()
    yield f"{info}/WHEEL", _WHEEL.encode()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
