"""Wheels for tests: small ones made on the spot, and folders of them that pip takes for its package index."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from ruvcompile.wheels.own import pack

NEEDED = ("pip", "numpy", "pyzmq", "msgspec", "click", "tomli", "tomli-w")
HEAD = ("tokenizers", "jinja2", "starlette", "uvicorn")
NATIVE = ("numpy", "pyzmq", "msgspec", "tokenizers", "onnxruntime")


def wheel(
    folder: Path,
    name: str,
    version: str = "99.0",
    requires: Iterable[str] = (),
    *,
    tag: str = "py3-none-any",
    extras: Iterable[str] = (),
    files: dict[str, bytes] | None = None,
) -> Path:
    """A wheel of nothing but its metadata, and of ``files``."""
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {each}" for each in requires]
    kind = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    content = {f"{info}/METADATA": "\n".join(lines).encode() + b"\n", f"{info}/WHEEL": kind.encode(), **(files or {})}
    path = folder / f"{plain}-{version}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(content, info))
    return path


def wheelhouse(folder: Path, machine: str = "aarch64", pythons: Iterable[str] = ("311",)) -> Path:
    """All that a node needs, as small wheels: native ones for ``machine`` and these Pythons, the others for all."""
    for name in (*NEEDED, *HEAD, "onnxruntime", "openvino"):
        if name in NATIVE:
            for python in pythons:
                wheel(folder, name, tag=f"cp{python}-cp{python}-manylinux_2_28_{machine}")
        else:
            wheel(folder, name)
    return folder


def only_from(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let pip take wheels out of ``folder`` and from nowhere else."""
    forget_index(monkeypatch)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip ask an index that nobody answers for."""
    forget_index(monkeypatch)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")


def forget_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
