"""Comparisons: of a build with its uncut model (``staged``), with what its weights mean (``equality``), and with its
source (``loss``); ``build`` does what there is to do.
"""

from ruvcompile.verify.build import FEWER_TOKENS, compare, failure
from ruvcompile.verify.equality import Comparison, measure
from ruvcompile.verify.loss import sample_tokens, source_loss
from ruvcompile.verify.record import record
from ruvcompile.verify.staged import is_rounded
from ruvcompile.verify.tensors import tensors_agree

__all__ = [
    "FEWER_TOKENS",
    "Comparison",
    "compare",
    "failure",
    "is_rounded",
    "measure",
    "record",
    "sample_tokens",
    "source_loss",
    "tensors_agree",
]
