"""A GGUF file in, a ``Program`` out: the table of contents of loading a decoder checkpoint.

1. The header is read and checked (``gguf_file``).
2. The family of the file's architecture describes the decoder and names its weights (``llama``).
3. The canonical graph is drawn over the lazy weights (``checkpoint``).
4. The tokenizer and the chat template are taken out of the metadata (``tokenizer``).

Only the header and the vocabulary are in memory afterwards. The file must stay where it is until the weights
have been read.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Protocol

from ruvcompile.errors import InputError
from ruvcompile.load.checkpoint import build_decoder, decoder_of
from ruvcompile.load.form import Form, Weight
from ruvcompile.load.gguf_file import GgufFile, open_gguf
from ruvcompile.load.tokenizer import read_tokenizer
from ruvcompile.program import Program, Source
from ruvrun.bundle import file_sha256

FAMILIES = {"llama": "ruvcompile.load.llama"}

_QUANT_SUFFIX = re.compile(r"[.\-_](?:i?q\d\w*|tq\d\w*|b?f16|f32|fp16|fp32|mxfp4\w*)$", re.IGNORECASE)


class Family(Protocol):
    """What a family module offers."""

    def describe(self, file: GgufFile) -> Form:
        """The form of the decoder, out of the metadata."""

    def weights(self, file: GgufFile, form: Form) -> dict[str, Weight]:
        """Every canonical weight of the form."""


def load_gguf(path: Path, named_as: str) -> Program:
    """Load the decoder in the GGUF file at ``path``; its float weights are decoded only when they are read.

    Args:
        path: the file.
        named_as: how the user called it; it stands in messages and in ``Source.path``.

    Raises:
        InputError: everything that can be wrong with the file, or a model that is not supported.
    """
    file = open_gguf(path, named_as)
    family = _family(file)
    form = family.describe(file)
    weights = family.weights(file, form)
    tokenizer = read_tokenizer(file, form.vocab)
    name = program_name(path)
    decoder = decoder_of(form, file.architecture, tokenizer.eos)
    model = build_decoder(form, weights, name)
    return Program(name, model, Source(named_as, file_sha256(path)), decoder, tokenizer.files)


def program_name(path: Path) -> str:
    """The model's name out of its file's: ``SmolLM2-135M-Instruct.Q4_1.gguf`` is SmolLM2-135M-Instruct."""
    stem = path.name.removesuffix(".gguf")
    return _QUANT_SUFFIX.sub("", stem) or stem


def _family(file: GgufFile) -> Family:
    architecture = file.architecture
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise InputError(
            "model-unsupported",
            f"{file.named_as} holds not a model but: {kind}",
            hint="give the file of the model itself",
        )
    if architecture in FAMILIES:
        family: Family = importlib.import_module(FAMILIES[architecture])
        return family
    experts = file.metadata.get(f"{architecture}.expert_count")
    raise InputError(
        "model-unsupported",
        f"{file.named_as} is of architecture {architecture!r}, which is not supported",
        context=[f"supported: {', '.join(sorted(FAMILIES))}"]
        + ([f"it is a mixture of {experts} experts; experts are not supported in any architecture"] if experts else []),
        hint="use a model of a supported architecture",
    )
