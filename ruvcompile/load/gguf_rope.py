"""The rotary embedding of a GGUF file, as ``config.json`` would tell it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ruvcompile.errors import InputError
from ruvcompile.load.gguf_data import read_tensor
from ruvcompile.load.gguf_file import GgufFile

FACTORS = "rope_freqs.weight"
LONG_FACTORS = "rope_factors_long.weight"
SHORT_FACTORS = "rope_factors_short.weight"

# Of llama 3.1 to 3.3, whose files keep only the divisors that they give.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_LONGEST_FACTORS = 4096


def rope_keys(file: GgufFile, architecture: str, head_size: int) -> dict[str, Any]:
    """``rope_theta``, ``rope_scaling`` and what else there is of the rotary embedding.

    Raises:
        InputError: keys or factors make no sense, or the way of scaling is not known.
    """
    key = architecture + ".rope."
    base = file.number(key + "freq_base", 1e6 if architecture == "gemma3" else 1e4)
    keys: dict[str, Any] = {"rope_theta": base}
    if architecture == "gemma3":
        keys["rope_local_base_freq"] = file.number(key + "freq_base_swa", 1e4)
    rotated = file.count(key + "dimension_count", head_size)
    if rotated > head_size or rotated % 2:
        raise _wrong(file, f"{rotated} of the {head_size} channels of a head are rotated")
    if rotated != head_size:
        share = rotated / head_size
        # So that head_size * share, cut to a whole number, is what it came from.
        keys["partial_rotary_factor"] = share if int(head_size * share) == rotated else math.nextafter(share, 1.0)
    scaling = _scaling(file, key)
    if FACTORS in file.tensors:
        scaling = _by_factors(file, base, rotated)
    if SHORT_FACTORS in file.tensors and LONG_FACTORS in file.tensors:
        original = file.count(key + "scaling.original_context_length")
        scaling = {
            "rope_type": "longrope",
            "short_factor": _factors(file, SHORT_FACTORS, rotated),
            "long_factor": _factors(file, LONG_FACTORS, rotated),
            "original_max_position_embeddings": original,
        }
        if key + "scaling.attn_factor" in file.metadata:
            scaling["attention_factor"] = file.number(key + "scaling.attn_factor")
        keys["original_max_position_embeddings"] = original
    return keys | {"rope_scaling": scaling}


def _scaling(file: GgufFile, key: str) -> dict[str, Any] | None:
    # Without a kind, a factor alone means the oldest one.
    kind = file.metadata.get(key + "scaling.type", "linear" if key + "scaling.factor" in file.metadata else "none")
    if key + "scale_linear" in file.metadata:  # how it was written before there were kinds
        return {"rope_type": "linear", "factor": file.number(key + "scale_linear")}
    if kind == "linear":
        return {"rope_type": "linear", "factor": file.number(key + "scaling.factor")}
    if kind == "yarn" and file.number(key + "scaling.yarn_ext_factor", 1.0) == 1.0:
        said: dict[str, Any] = {"rope_type": "yarn", "factor": file.number(key + "scaling.factor")}
        if key + "scaling.original_context_length" in file.metadata:
            said["original_max_position_embeddings"] = file.count(key + "scaling.original_context_length")
        for name in ("beta_fast", "beta_slow"):
            if key + f"scaling.yarn_{name}" in file.metadata:
                said[name] = file.number(key + f"scaling.yarn_{name}")
        if key + "scaling.yarn_attn_factor" in file.metadata:
            said["attention_factor"] = file.number(key + "scaling.yarn_attn_factor")
        if file.metadata.get(key + "scaling.yarn_log_multiplier"):
            said |= {"mscale": 1.0, "mscale_all_dim": file.number(key + "scaling.yarn_log_multiplier")}
        return said
    if kind == "none" or (kind == "longrope" and SHORT_FACTORS in file.tensors and LONG_FACTORS in file.tensors):
        return None
    raise InputError(
        "model-unsupported",
        f"{file.named_as} scales its rotary embedding by the method {kind!r}",
        hint="use a plain model of this family",
    )


def _by_factors(file: GgufFile, base: float, rotated: int) -> dict[str, Any]:
    """The stretching that the divisors in the file are those of: llama 3's, or one with no other name."""
    factors = _factors(file, FACTORS, rotated)
    rule: dict[str, Any] = {"rope_type": "llama3", "factor": max(factors), **_LLAMA3}
    if np.allclose(factors, _llama3(rule, base, rotated), rtol=1e-5, atol=0):
        return rule
    # The longest context is not stretched by these, so the gain that longrope would take from it is none.
    context = file.count(file.architecture + ".context_length")
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": context,
        "attention_factor": 1.0,
    }


def _llama3(rule: dict[str, Any], base: float, rotated: int) -> npt.NDArray[np.float64]:
    """The divisors that the published rule gives: 1 for fast channels, the factor for slow ones, a mean between."""
    frequencies = base ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)
    turns = rule["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = rule["low_freq_factor"], rule["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    result: npt.NDArray[np.float64] = 1 / (kept + (1 - kept) / rule["factor"])
    return result


def _factors(file: GgufFile, name: str, rotated: int) -> list[float]:
    stored = file.tensors[name]
    if stored.shape != (rotated // 2,) or rotated > _LONGEST_FACTORS:
        raise _wrong(file, f"{name} has shape {stored.shape}, not {(rotated // 2,)}")
    values = read_tensor(file, stored)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise _wrong(file, f"{name} holds numbers that divide nothing")
    return [float(str(value)) for value in values]


def _wrong(file: GgufFile, what: str) -> InputError:
    return InputError(
        "gguf-metadata-wrong",
        f"the metadata of {file.named_as} does not fit together: {what}",
        hint="convert the checkpoint again with a current converter",
    )
