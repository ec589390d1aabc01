"""Rotary tables out of ``config.json``: the base, and how a model was stretched to more positions than it began with.

Two ways of writing are in use: ``rope_theta`` with ``rope_scaling`` beside it, and ``rope_parameters`` that holds
both. With angles per position ``f_i = base ** (-2 i / n)``, n the rotated channels of a head:

* ``default``: as they are;
* ``linear``: all divided by ``factor``;
* ``llama3``: slow ones (fewer than ``low_freq_factor`` turns over the original context) divided by ``factor``, fast
  ones (more than ``high_freq_factor`` turns) left alone, those between mixed in proportion;
* ``yarn`` (arXiv 2309.00071): the same idea, mixed by index between the channels that make ``beta_fast`` and
  ``beta_slow`` turns; and cosines and sines multiplied by ``0.1 ln(factor) + 1``, which sharpens attention;
* ``longrope`` (arXiv 2402.13753): each divided by a factor of its own, one list up to the original context and another
  beyond it. Keys are rotated once and kept, so one set of factors must serve a whole answer: the short ones, and
  the context ends where the original one does.

What changes with the length of the text (``dynamic``) is refused, since kept keys would have to change too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ruvcompile.load.families.config import Config
from ruvcompile.load.form import Rotary

Angles = npt.NDArray[np.float64]


def rotary_of(config: Config, head_size: int, default_base: float = 10000.0, *, partial: bool = False) -> Rotary:
    """The rotary table of a model that has one, as its ``config`` describes it.

    Args:
        config: of the model.
        head_size: channels of a head.
        default_base: where the configuration names none.
        partial: whether the family may leave a part of each head alone. Transformers pays no heed to the key in the
            others, programs elsewhere do: what was trained with it cannot be told.

    Raises:
        InputError: the description is incomplete, or of a kind that is not supported.
    """
    stretch = _stretch(config)
    if nested := [key for key, value in stretch.items() if isinstance(value, Mapping)]:
        raise config.unsupported(f"has rotary tables of its own for {' and '.join(nested)}")
    flat = Config(config.named_as, {**config.keys, **stretch})
    share = flat.number("partial_rotary_factor", 1.0)
    if share != 1 and not partial:
        raise config.unsupported(f"rotates only {share:g} of each head, which others of its family do not")
    return table(flat, head_size, default_base)


def _stretch(config: Config) -> Mapping[str, Any]:
    """The keys of both ways of writing. Where both are there, they must not say two things: each would be believed by
    some program, and a wrong base or factor gives answers that are only a little wrong.
    """
    new, old = config.part("rope_parameters").keys, config.part("rope_scaling").keys
    beside = {"rope_theta": config.keys.get("rope_theta")} | dict(old)
    for key, value in new.items():
        if key in beside and None not in (value, beside[key]) and value != beside[key]:
            raise config.wrong(f"{key} is {value!r} in rope_parameters, and {beside[key]!r} outside of it")
    return {**new, **old}


def context_of(config: Config) -> int:
    """How many positions the rotary table of ``config`` is good for."""
    scaling = _stretch(config)
    longest = config.count("max_position_embeddings")
    both = Config(config.named_as, {**config.keys, **scaling})
    kind = _kind(both)
    if kind == "longrope":
        return min(longest, both.count("original_max_position_embeddings", longest))
    if kind == "yarn" and scaling.get("original_max_position_embeddings"):
        # Some leave the length of the original context in max_position_embeddings.
        reach = both.number("factor", 1.0) * both.count("original_max_position_embeddings")
        return max(longest, int(reach))
    return longest


def table(config: Config, head_size: int, default_base: float) -> Rotary:
    """The rotary table that a flat ``config`` (``rope_theta``, ``rope_type``, ``factor``...) describes."""
    share = config.number("partial_rotary_factor", 1.0)
    rotated = int(head_size * share)
    if not 0 < rotated <= head_size or rotated % 2:
        raise config.wrong(f"{rotated} of the {head_size} channels of a head are rotated")
    base = config.number("rope_theta", default_base)
    plain: Angles = base ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)
    try:
        with np.errstate(all="ignore"):
            angles, gain = _stretched(config, plain, base)
    except ArithmeticError:  # a base, a context or a factor of one
        angles, gain = plain * math.nan, 1.0
    if not np.isfinite(angles).all() or not math.isfinite(gain):
        raise config.wrong("its rotary embedding comes to no numbers")
    return Rotary(tuple(angles.tolist()), gain)


def _stretched(config: Config, plain: Angles, base: float) -> tuple[Angles, float]:
    """The angles as ``config`` stretches them, and the gain."""
    kind = _kind(config)
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / config.number("factor"), 1.0
    if kind == "llama3":
        return _llama3(config, plain), 1.0
    if kind == "yarn":
        return _yarn(config, plain, base)
    if kind == "longrope":
        return _longrope(config, plain)
    raise config.unsupported(f"scales its rotary embedding by the method {kind!r}")


def _kind(config: Config) -> str:
    return config.text("rope_type", config.text("type", "default"))


def _llama3(config: Config, plain: Angles) -> Angles:
    original = config.count("original_max_position_embeddings", config.count("max_position_embeddings"))
    low, high = config.number("low_freq_factor"), config.number("high_freq_factor")
    if low >= high:
        raise config.wrong(f"low_freq_factor is {low:g}, not below high_freq_factor, which is {high:g}")
    turns = original * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    result: Angles = plain * (kept + (1 - kept) / config.number("factor"))
    return result


def _yarn(config: Config, plain: Angles, base: float) -> tuple[Angles, float]:
    longest = config.count("max_position_embeddings")
    original = config.count("original_max_position_embeddings", longest)
    factor = config.number("factor", longest / original)
    rotated = 2 * len(plain)

    def channel(turns: float) -> float:
        """The index of the channel that makes so many turns over the original context."""
        return rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = channel(config.number("beta_fast", 32.0)), channel(config.number("beta_slow", 1.0))
    if config.flag("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotated - 1)
    stretched = np.clip((np.arange(len(plain)) - first) / max(last - first, 0.001), 0, 1)
    angles: Angles = plain * (1 - stretched + stretched / factor)
    return angles, _yarn_gain(config, factor)


def _yarn_gain(config: Config, factor: float) -> float:
    def gain(share: float) -> float:
        return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0

    share, whole = config.optional_number("mscale"), config.optional_number("mscale_all_dim")
    inferred = gain(share) / gain(whole) if share and whole else gain(1.0)
    return config.number("attention_factor", inferred)


def _longrope(config: Config, plain: Angles) -> tuple[Angles, float]:
    factors: Any = config.items("short_factor", len(plain))
    sound = factors is not None and all(type(each) in (int, float) and 0 < each < math.inf for each in factors)
    if not sound or len(config.keys["short_factor"]) != len(plain):
        raise config.wrong(f"short_factor is no list of {len(plain)} positive numbers")
    longest = config.count("max_position_embeddings")
    original = config.count("original_max_position_embeddings", longest)
    factor = config.number("factor", longest / original)
    gain = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    angles: Angles = plain / np.array(factors, np.float64)
    return angles, config.number("attention_factor", gain)
