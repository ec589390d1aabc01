"""Counters of a process, and their text for Prometheus. Pure: nothing here knows who counts or who asks.

A metric is a name, a sentence, and one number for each combination of its labels. ``Counter`` only rises,
``Gauge`` is set; that is all the head needs. ``render`` gives the text exposition format, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Gauge:
    """A number that may rise and fall, for each combination of the labels' values."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    values: dict[tuple[str, ...], float] = field(default_factory=dict)
    kind: ClassVar[str] = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """Set the number for these label values, in the order of ``labels``."""
        self._check(labels)
        self.values[labels] = value

    def add(self, amount: float, *labels: str) -> None:
        """Change the number for these label values by ``amount``; it starts at 0."""
        self._check(labels)
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def _check(self, labels: tuple[str, ...]) -> None:
        assert len(labels) == len(self.labels), f"{self.name} has the labels {self.labels}, got {labels}"


@dataclass
class Counter(Gauge):
    """A number that only rises: use ``add``."""

    kind: ClassVar[str] = "counter"

    def add(self, amount: float, *labels: str) -> None:
        """Raise the number for these label values by ``amount``."""
        assert amount >= 0, f"{self.name} only rises"
        super().add(amount, *labels)


def render(metrics: Iterable[Gauge]) -> str:
    """The metrics in Prometheus' text format, in the given order; series sorted by label values.

    A metric without labels that was never touched is 0; one with labels that was never touched has no series.
    """
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {_escape(metric.help)}", f"# TYPE {metric.name} {metric.kind}"]
        values = metric.values if metric.values or metric.labels else {(): 0.0}
        for labels, value in sorted(values.items()):
            pairs = ",".join(f'{name}="{_quote(text)}"' for name, text in zip(metric.labels, labels, strict=True))
            lines.append(f"{metric.name}{{{pairs}}} {_number(value)}" if pairs else f"{metric.name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quote(text: str) -> str:
    return _escape(text).replace('"', '\\"')
