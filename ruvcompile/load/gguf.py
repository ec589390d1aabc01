"""A GGUF file in, a ``Program`` out.

1. The header is read and checked (``gguf_file``).
2. Metadata and tensors are told in the words of Hugging Face (``gguf_dialect``), so that from here on the file is a
   checkpoint like any other (``decoder``).
3. The tokenizer and the chat template are taken out of the metadata (``gguf_tokenizer``).

Only the header and the vocabulary are in memory afterwards. The file must stay where it is until the weights
have been read.
"""

from __future__ import annotations

import re
from pathlib import Path

from ruvcompile.load.decoder import decoder_program
from ruvcompile.load.gguf_dialect import checkpoint_of
from ruvcompile.load.gguf_file import open_gguf
from ruvcompile.load.gguf_tokenizer import read_tokenizer
from ruvcompile.program import Program, Source
from ruvrun.bundle import file_sha256

_QUANT_SUFFIX = re.compile(r"[.\-_](?:i?q\d\w*|tq\d\w*|b?f16|f32|fp16|fp32|mxfp4\w*)$", re.IGNORECASE)


def load_gguf(path: Path, named_as: str) -> Program:
    """Load the decoder in the GGUF file at ``path``; its float weights are decoded only when they are read.

    Args:
        path: the file.
        named_as: how the user called it; it stands in messages and in ``Source.path``.

    Raises:
        InputError: everything that can be wrong with the file, or a model that is not supported.
    """
    file = open_gguf(path, named_as)
    checkpoint = checkpoint_of(file)
    source = Source(named_as, file_sha256(path))
    return decoder_program(checkpoint, program_name(path), source, lambda vocab: read_tokenizer(file, vocab))


def program_name(path: Path) -> str:
    """The model's name out of its file's: ``SmolLM2-135M-Instruct.Q4_1.gguf`` is SmolLM2-135M-Instruct."""
    stem = path.stem if path.suffix.lower() == ".gguf" else path.name
    return _QUANT_SUFFIX.sub("", stem) or stem
