"""Checkpoint directories as a test changes them, and the one error that loading such a one gives."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ruvcompile.load import load
from ruvrun.errors import InputError
from tests.checkpoints import CONFIGS

CONFIG = CONFIGS["llama"]
INDEX = "model.safetensors.index.json"
Change = Callable[[Path], object]


def refusal(path: Path) -> InputError:
    """The error that loading ``path`` gives; it has all that an error needs."""
    with pytest.raises(InputError) as caught:
        load(str(path))
    error = caught.value
    assert error.exit_code == 3
    assert error.hint
    assert "\n" not in error.message
    return error


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file, or take out those that become ``...``."""
    said = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not ...}))


def shard(directory: Path, number: int) -> Path:
    return directory / f"model-{number:05}-of-00003.safetensors"


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path
