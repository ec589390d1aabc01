"""Comparisons: a build with its uncut model (``staged``), and the quantised program with its source (``loss``)."""

from ruvcompile.verify.loss import sample_tokens, source_loss
from ruvcompile.verify.staged import compare, same_logits, same_tokens, uncut
from ruvcompile.verify.tensors import tensors_agree

__all__ = ["compare", "same_logits", "same_tokens", "sample_tokens", "source_loss", "tensors_agree", "uncut"]
