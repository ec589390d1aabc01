"""Any model a user names, read into a ``Program``: ``.gguf`` decoders and ``.onnx`` graphs.

What a file is, its first bytes decide before its name does. Each format is a module, imported on demand.
"""

from __future__ import annotations

import re
from pathlib import Path

from ruvcompile.errors import InputError
from ruvcompile.program import Program

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load(path_text: str) -> Program:
    """The program in the file called ``path_text``.

    Raises:
        InputError: it is missing, unreadable, a directory or hub id, or not a sound model.
    """
    path = Path(path_text)
    try:
        if path.is_dir():
            raise _unsupported(f"{path_text} is a directory")
        with path.open("rb") as file:
            head = file.read(4)
    except FileNotFoundError:
        if _HUB_ID.fullmatch(path_text) and path.suffix.lower() not in (".onnx", ".gguf"):
            raise _unsupported(f"there is no file {path_text}, and hub ids are not read") from None
        raise InputError("file-missing", f"no model at {path_text}", hint="check the path") from None
    except OSError as error:
        raise InputError(
            "file-unreadable", f"cannot read {path_text}: {error.strerror}", hint="check the path and its permissions"
        ) from None
    if head == b"GGUF" or path.suffix.lower() == ".gguf":
        from ruvcompile.load.gguf import load_gguf

        return load_gguf(path, path_text)
    from ruvcompile.load.decoder_onnx import as_decoder
    from ruvcompile.load.onnx import load_onnx

    return as_decoder(load_onnx(path, path_text), path)


def _unsupported(message: str) -> InputError:
    return InputError(
        "model-kind-unsupported", message, hint="this version reads .gguf decoders and .onnx graphs: name such a file"
    )


__all__ = ["load"]
