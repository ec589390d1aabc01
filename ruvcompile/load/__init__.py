"""Any model a user names, read into a ``Program``: checkpoint directories, ``.gguf`` decoders and ``.onnx`` graphs.

What a file is, its first bytes decide before its name does; what a directory is, the files in it. Each format is a
module, imported on demand.
"""

from __future__ import annotations

import re
from pathlib import Path

from ruvcompile.errors import InputError
from ruvcompile.load.json_file import check_regular
from ruvcompile.program import Program

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load(path_text: str) -> Program:
    """The program in the file or directory called ``path_text``.

    Raises:
        InputError: it is missing, unreadable, a hub id, or not a sound model.
    """
    path = Path(path_text)
    try:
        if path.is_dir():
            return _load_directory(path, path_text.rstrip("/") or path_text)
        check_regular(path, path_text)
        with path.open("rb") as file:
            head = file.read(8)
    except FileNotFoundError:
        if _HUB_ID.fullmatch(path_text) and path.suffix.lower() not in (".onnx", ".gguf"):
            raise _unsupported(f"there is no file {path_text}, and hub ids are not read") from None
        raise InputError("file-missing", f"no model at {path_text}", hint="check the path") from None
    except OSError as error:
        raise InputError(
            "file-unreadable", f"cannot read {path_text}: {error.strerror}", hint="check the path and its permissions"
        ) from None
    if head[:4] == b"GGUF" or path.suffix.lower() == ".gguf":
        from ruvcompile.load.gguf import load_gguf

        return load_gguf(path, path_text)
    if (what := _part(path.suffix.lower(), head)) is not None:
        raise InputError(
            "model-kind-unsupported",
            f"{path_text} {what[0]}",
            hint=what[1].format(directory=path_text[: -len(path.name)] or "."),
        )
    from ruvcompile.load.decoder_onnx import as_decoder
    from ruvcompile.load.onnx import load_onnx

    return as_decoder(load_onnx(path, path_text), path)


def _part(suffix: str, head: bytes) -> tuple[str, str] | None:
    """What a file is that is only a part of a model, or of a kind that is not read, and what to do; else None."""
    if head[4:8] == b"ORTM":
        return "is in ONNX Runtime's own format, which is not read", "name the .onnx file that it was made of"
    if suffix == ".safetensors":
        return "holds only weights", "name its directory, {directory}, which has config.json and the tokenizer too"
    if suffix == ".json":
        return "is a part of a checkpoint", "name its directory: {directory}"
    if suffix in (".bin", ".pt", ".pth", ".ckpt") and (head[:2] == b"PK" or head[:1] == b"\x80"):
        return "is a file of torch's, which is not read", "save the model as safetensors, and name the directory"
    return None


def _load_directory(path: Path, named_as: str) -> Program:
    """A checkpoint where there are safetensors or nothing else is there; else the one model in the directory."""
    names = sorted(entry.name for entry in path.iterdir())
    weights = any(".safetensors" in name for name in names)
    others = [name for name in names if Path(name).suffix.lower() in (".gguf", ".onnx")]
    if "config.json" in names and (weights or not others):
        from ruvcompile.load.directory import load_directory
        from ruvcompile.load.huggingface import is_foreign, load_huggingface, missing
        from ruvcompile.load.json_file import read_json_object

        config = read_json_object(path / "config.json", f"{named_as}/config.json")
        if is_foreign(config) and not missing():
            return load_huggingface(path, named_as, config)
        return load_directory(path, named_as)
    if "adapter_config.json" in names and not others:
        raise InputError(
            "model-is-adapter",
            f"{named_as} holds an adapter, which is what a model was changed by, and not the model",
            hint="merge it into its model and save that: merge_and_unload() of the library peft",
        )
    if len(others) == 1:
        return load(f"{named_as}/{others[0]}")
    if others:
        shown = ", ".join(others[:6]) + (", ..." if len(others) > 6 else "")
        raise InputError(
            "model-ambiguous",
            f"{named_as} holds {len(others)} models",
            context=[shown],
            hint=f"name one of them: {named_as}/{others[0]}",
        )
    raise InputError(
        "directory-without-model",
        f"{named_as} holds no model" + (" that can be read without config.json" if weights else ""),
        context=[f"it holds {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" if names else "it is empty"],
        hint="a checkpoint is config.json with its safetensors and tokenizer; else name a .gguf or .onnx file",
    )


def _unsupported(message: str) -> InputError:
    return InputError(
        "model-kind-unsupported",
        message,
        hint="this version reads checkpoint directories, .gguf decoders and .onnx graphs: name one of those",
    )


__all__ = ["load"]
