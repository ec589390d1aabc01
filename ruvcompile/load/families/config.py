"""The keys of ``config.json``, checked: what is missing or of the wrong kind is one error that names key and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruvcompile.errors import InputError
from ruvcompile.load.stored import Checkpoint

LARGEST = 1 << 96
"""Beyond any number that a configuration may hold, and far enough below those that arithmetic overflows at."""


@dataclass(frozen=True)
class Config:
    """The configuration of a checkpoint. A key that is ``null`` counts as missing, unless ``says`` asks.

    Args:
        named_as: what the user called the checkpoint.
        keys: of ``config.json``, over those that the family takes for granted.
    """

    named_as: str
    keys: Mapping[str, Any]

    def says(self, key: str) -> bool:
        """Whether the key is there at all, ``null`` or not."""
        return key in self.keys

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < LARGEST:
            raise self.wrong(f"{key} is {value!r}, not a positive whole number")
        return value

    def whole(self, key: str) -> int:
        """A whole number that may be 0."""
        return self.count(key) if self.keys.get(key) != 0 else 0

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
            raise self.wrong(f"{key} is {value!r}, not a positive number")
        return float(value)

    def optional_number(self, key: str) -> float:
        """A positive number, or 0 where there is none."""
        return self.number(key) if self.keys.get(key) is not None else 0.0

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(f"{key} is {value!r}, not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(f"{key} is {value!r}, not a string")
        return value

    def items(self, key: str, length: int) -> Sequence[Any] | None:
        """A list of at least ``length`` items, cut to so many; None where there is none."""
        value = self.keys.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) < length:
            raise self.wrong(f"{key} is {value!r}, not a list of {length}")
        return value[:length]

    def part(self, key: str) -> Config:
        """The object under ``key`` as a configuration of its own; empty where there is none."""
        value = self.keys.get(key) or {}
        if not isinstance(value, Mapping):
            raise self.wrong(f"{key} is {value!r}, not an object")
        return Config(self.named_as, value)

    def wrong(self, what: str) -> InputError:
        """The error for a configuration that makes no sense."""
        return InputError(
            "config-wrong",
            f"the configuration of {self.named_as} does not fit: {what}",
            hint="the file is damaged or was converted wrongly; get or convert it again",
        )

    def unsupported(self, what: str, hint: str = "use a plain model of this family") -> InputError:
        """The error for a model that has something the canonical form has not."""
        return InputError("model-unsupported", f"{self.named_as} {what}", hint=hint)

    def _value(self, key: str, default: Any) -> Any:
        value = self.keys.get(key)
        value = default if value is None else value
        if value is None:
            raise self.wrong(f"{key} is missing")
        return value


def config_of(checkpoint: Checkpoint, **defaults: Any) -> Config:
    """The configuration of a checkpoint; ``defaults`` are what the family means by a key that is not there."""
    return Config(checkpoint.named_as, {**defaults, **checkpoint.config})
