"""A checkpoint in, a ``Program`` out, whatever file it is in: what all loading of decoders ends with.

1. The checkpoint's family describes the decoder and names its weights (``families``).
2. The canonical graph is drawn over the lazy weights (``checkpoint``).
3. What the head needs of the tokenizer is asked for, for a model of so many tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from ruvcompile.load.checkpoint import build_decoder, decoder_of
from ruvcompile.load.families import family_of
from ruvcompile.load.head import HeadFiles
from ruvcompile.load.stored import Checkpoint
from ruvcompile.program import Program, Source


def decoder_program(
    checkpoint: Checkpoint, name: str, source: Source, read_tokenizer: Callable[[int], HeadFiles]
) -> Program:
    """The program that ``checkpoint`` is; its float weights are decoded only when they are read.

    Args:
        checkpoint: configuration and tensors.
        name: of the model.
        source: where it came from.
        read_tokenizer: gives the head's files for a model of so many tokens.

    Raises:
        InputError: a family that is not known, or configuration, tensors and tokenizer that do not fit together.
    """
    family = family_of(checkpoint)
    form = family.describe(checkpoint)
    weights = family.weights(checkpoint, form)
    head = read_tokenizer(form.vocab)
    model = build_decoder(form, weights, name)
    decoder = decoder_of(form, checkpoint.model_type, head.eos)
    return Program(name, model, source, decoder, head.files, head.notes)
