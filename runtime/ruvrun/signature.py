"""What a graph takes: the names, types and shapes of its inputs, held against what somebody wants to put in.

Arrays come from files (``ruvrun run --input``) and from HTTP; the questions and the sentences are the same. Nothing is
allocated here for a shape that was only claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ruvrun.errors import InputError, did_you_mean
from ruvrun.manifest import Tensor

_SHOWN = 80
_SHOWN_AXES = 10


def require_names(given: Iterable[str], wanted: Sequence[Tensor], *, where: str) -> None:
    """Refuse names that the graph has not, and inputs that nobody gave and that are not optional.

    Args:
        given: the names that were given.
        wanted: the graph's inputs.
        where: whose names they are, for the hint.

    Raises:
        InputError: the first name that is wrong.
    """
    names = [tensor.name for tensor in wanted]
    found = set(given)
    for name in sorted(found - set(names)):
        shown = shorten(name)
        raise InputError("input-unknown", f"the model has no input {shown!r}", hint=did_you_mean(shown, names))
    for tensor in wanted:
        name = tensor.name
        if name not in found and not is_optional(tensor):
            raise InputError(
                "input-missing",
                f"no array for the model's input {name!r}",
                context=[f"it takes {', '.join(map(describe, wanted))}"],
                hint=where,
            )


def require_shape(tensor: Tensor, shape: Sequence[int], sizes: dict[str, int]) -> None:
    """Refuse a shape that the graph does not take; a symbolic size must be the same wherever it stands.

    Args:
        tensor: the input.
        shape: what was given for it.
        sizes: symbolic sizes that are known already; those that this input tells are added.

    Raises:
        InputError: another rank, or a size that does not fit.
    """
    if is_optional(tensor):  # no manifest tells the shape of what may be absent
        return
    fits = len(tensor.shape) == len(shape)
    for wanted, size in zip(tensor.shape, shape, strict=False):
        fits = fits and (sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted) == size
    if not fits:
        raise InputError(
            "input-shape-wrong",
            f"{tensor.name!r} is {show_shape(shape)}, the model takes {describe(tensor)}",
            context=[f"{name} is {size}" for name, size in sizes.items()],
            hint="give the shape the model takes",
        )


def is_optional(tensor: Tensor) -> bool:
    """Whether an input may be left out."""
    return tensor.dtype.startswith("optional(")


def is_sequence(tensor: Tensor) -> bool:
    """Whether a value is a sequence of tensors, which have no common shape."""
    return "seq(" in tensor.dtype


def describe(tensor: Tensor) -> str:
    """``x float32[n, 3]``."""
    return f"{tensor.name} {tensor.dtype}{tensor.shape}".replace("'", "")


def show_shape(shape: Sequence[int]) -> str:
    """A shape for a message, which a stranger may have made as long as he likes."""
    if len(shape) <= _SHOWN_AXES:
        return shorten(str(list(shape)))
    return f"of {len(shape)} axes"


def shorten(text: str) -> str:
    """What a stranger wrote, short enough for a message."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
