"""Comparisons: of a build with its uncut model (``staged``), with what its weights mean (``equality``), and with its
source (``loss``); ``build`` does what there is to do.
"""

from ruvcompile.verify.build import compare, failure
from ruvcompile.verify.loss import sample_tokens, source_loss
from ruvcompile.verify.tensors import tensors_agree

__all__ = ["compare", "failure", "sample_tokens", "source_loss", "tensors_agree"]
